use std::{path::PathBuf, sync::Arc};

use fairmesh_model::{Invalid, Location, ServiceName};
use fairmesh_wire::transport::Address;

use crate::{ServiceHandle, Stats};

/// The entrance: one for a program, cheap to clone.
#[derive(Clone, Debug)]
pub struct Mesh {
    inner: Arc<MeshBuilder>,
}

/// How to connect; see [`Mesh::builder`].
#[derive(Clone, Debug, Default)]
pub struct MeshBuilder {
    agent: Option<Address>,
    control: Vec<Address>,
    client_id: Option<String>,
    location: Option<Location>,
    cache_dir: Option<PathBuf>,
}

impl Mesh {
    /// Connects as the environment says: to the agent at `FAIRMESH_AGENT` or its usual socket.
    pub async fn connect() -> Result<Self, Invalid> {
        Self::builder().connect().await
    }

    /// Sets things other than the environment does.
    pub fn builder() -> MeshBuilder {
        MeshBuilder::default()
    }

    /// A service by its name, such as `shop/cart`. Nothing is fetched before the first call; the error is about the
    /// form of the name only.
    pub fn service(&self, name: impl AsRef<str>) -> Result<ServiceHandle, Invalid> {
        Ok(ServiceHandle::new(self.clone(), ServiceName::new(name)?))
    }

    /// What this mesh has done so far.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl MeshBuilder {
    /// The agent's address.
    #[must_use]
    pub fn agent(mut self, address: Address) -> Self {
        self.agent = Some(address);
        self
    }

    /// A control plane to ask where there is no agent; may be given several times.
    #[must_use]
    pub fn control(mut self, address: Address) -> Self {
        self.control.push(address);
        self
    }

    /// Who this caller is: what its stable subset of servers hangs on, so the same after a restart.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Where this program runs, when the agent is not to tell.
    #[must_use]
    pub fn location(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Where the agent keeps its copy on disk, to read when it cannot be reached at start.
    #[must_use]
    pub fn cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// Connects. A missing agent is no error: calls say so, and go on when it comes.
    pub async fn connect(self) -> Result<Mesh, Invalid> {
        Ok(Mesh { inner: Arc::new(self) })
    }
}
