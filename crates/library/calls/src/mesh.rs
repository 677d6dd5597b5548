mod builder;
#[cfg(feature = "fixed")]
mod fixed_mesh;
mod service_name;
pub(crate) mod state;
mod state_source;

use std::{sync::Arc, time::Duration};

use fairmesh_model::{Invalid, SpiffeId};

#[cfg(feature = "fixed")]
pub use self::fixed_mesh::{FixedMesh, Injection};
use self::state::MeshState;
pub use self::{builder::MeshBuilder, service_name::IntoServiceName};
use crate::{
    fault::Fault,
    observe::{Freshness, Stats},
    service::ServiceHandle,
};

/// The entry point of the library: one per program, cheap to clone. It ends when the last clone and the last handle
/// are dropped.
#[derive(Clone, Debug)]
pub struct Mesh {
    pub(crate) state: Arc<MeshState>,
}

impl Mesh {
    /// Connects as the environment configures: to the agent at `FAIRMESH_AGENT`, otherwise the control plane at
    /// `FAIRMESH_CONTROL`, otherwise the agent at its default socket.
    ///
    /// # Errors
    /// A variable is malformed. A missing agent is no error: see [`MeshBuilder::connect`].
    pub async fn connect() -> Result<Self, Invalid> {
        Self::builder().connect().await
    }

    /// Like [`connect`](Self::connect), but also waits until there are records to decide calls from.
    ///
    /// # Errors
    /// As for [`MeshBuilder::connect_ready`]: there are no records within `timeout`.
    pub async fn connect_ready(timeout: Duration) -> Result<Self, Fault> {
        Self::builder().connect_ready(timeout).await
    }

    /// Returns a builder for settings that the environment does not configure.
    pub fn builder() -> MeshBuilder {
        MeshBuilder::default()
    }

    /// Returns a service by its name, such as `shop/cart`. Returns immediately: the records that calls need are fetched
    /// in the background and kept current from then on.
    ///
    /// # Errors
    /// The name is malformed. Whether the service is declared is only reported by the first call.
    pub fn service(&self, name: impl IntoServiceName) -> Result<ServiceHandle, Invalid> {
        let subscription = self.state.source.subscription(&name.into_service_name()?);
        Ok(ServiceHandle::new(Arc::clone(&self.state), subscription))
    }

    /// Waits without a limit until the first snapshot has arrived, from the agent or from its copy on disk. For
    /// programs that must not serve earlier. Calls also wait by themselves, but only briefly: without an agent and a
    /// copy on disk they fail until the agent responds.
    pub async fn first_snapshot(&self) {
        self.state.source.first_snapshot().await;
    }

    /// Reports the last calls, for views of the mesh, and tells the agent that this program makes no more calls, so
    /// that drains do not wait for it to reconnect. Returns within two seconds. For programs that are ending; services
    /// of this mesh are no longer followed.
    ///
    /// From then on, calls in flight no longer refuse revoked certificates, unless the mesh was connected with
    /// [`MeshBuilder::transport`]: such a transport keeps its identity.
    pub async fn close(self) {
        let identity = async {
            if !self.state.shares_identity {
                self.state.transport.transport.close().await;
            }
        };
        tokio::join!(self.state.source.close(), self.state.service_lookasides.close(), identity);
    }

    /// Age and source of the records.
    pub fn freshness(&self) -> Freshness {
        self.state.freshness()
    }

    /// The identity by which services know this program, once the agent has issued it.
    pub fn identity(&self) -> Option<SpiffeId> {
        self.state.transport.transport.id()
    }

    /// Counters since the mesh was connected.
    pub fn stats(&self) -> Stats {
        self.state.counters.read(self.state.source.health_panics(), self.state.source.data_age())
    }
}
