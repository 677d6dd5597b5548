mod builder;
#[cfg(feature = "fixed")]
mod fixed;
mod service_name;
mod source;
pub(crate) mod state;

use std::{sync::Arc, time::Duration};

use fairmesh_model::{Invalid, SpiffeId};

#[cfg(feature = "fixed")]
pub use self::fixed::{FixedMesh, Injection};
use self::state::MeshState;
pub use self::{builder::MeshBuilder, service_name::IntoServiceName};
use crate::{
    fault::Fault,
    observe::{Freshness, Stats},
    service::ServiceHandle,
};

/// The entry point: one per program, cheap to clone. Dropping the last clone and the last handle ends it.
#[derive(Clone, Debug)]
pub struct Mesh {
    pub(crate) state: Arc<MeshState>,
}

impl Mesh {
    /// Connects as the environment configures: by the agent at `FAIRMESH_AGENT`, else the control plane at `FAIRMESH_CONTROL`, else
    /// the agent at its default socket.
    ///
    /// # Errors
    /// When a variable is malformed. A missing agent is no error: see [`MeshBuilder::connect`].
    pub async fn connect() -> Result<Self, Invalid> {
        Self::builder().connect().await
    }

    /// As [`connect`](Self::connect), and waits until there are records to decide calls by.
    ///
    /// # Errors
    /// As [`MeshBuilder::connect_ready`]: there are none within `timeout`.
    pub async fn connect_ready(timeout: Duration) -> Result<Self, Fault> {
        Self::builder().connect_ready(timeout).await
    }

    /// Configures what the environment does not.
    pub fn builder() -> MeshBuilder {
        MeshBuilder::default()
    }

    /// A service by its name, such as `shop/cart`. Returns immediately; the records that calls need are fetched in the
    /// background, and kept current from then on.
    ///
    /// # Errors
    /// When the name is malformed. Whether the service is declared, the first call reports.
    pub fn service(&self, name: impl IntoServiceName) -> Result<ServiceHandle, Invalid> {
        let subscription = self.state.source.subscription(&name.into_service_name()?);
        Ok(ServiceHandle::new(Arc::clone(&self.state), subscription))
    }

    /// Waits without a bound until the first snapshot has arrived, from the agent or from its copy on disk. For
    /// programs that must not serve before. Calls wait by themselves, but not for long while there is no agent: without its copy
    /// on disk, they fail until it responds.
    pub async fn first_snapshot(&self) {
        self.state.source.first_snapshot().await;
    }

    /// Reports the last calls, for views of the mesh, and tells the agent that this program makes no more, so that drains do not wait
    /// for it to reconnect. Returns within two seconds. For programs that end; services of this mesh are not followed any more.
    ///
    /// Certificates that are revoked afterwards are not refused any more by calls in flight, unless the mesh was connected by
    /// [`MeshBuilder::transport`]: such a transport keeps its identity.
    pub async fn close(self) {
        let identity = async {
            if !self.state.shares_identity {
                self.state.transport.transport.close().await;
            }
        };
        tokio::join!(self.state.source.close(), self.state.service_lookasides.close(), identity);
    }

    /// The age and the source of the records.
    pub fn freshness(&self) -> Freshness {
        self.state.freshness()
    }

    /// The identity by which services know this program, once its agent has given it one.
    pub fn identity(&self) -> Option<SpiffeId> {
        self.state.transport.transport.id()
    }

    /// Counters since the mesh was connected.
    pub fn stats(&self) -> Stats {
        self.state.counters.read(self.state.source.health_panics(), self.state.source.data_age())
    }
}
