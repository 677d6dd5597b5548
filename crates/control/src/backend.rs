use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    server::{Backend, WriteError},
};
use fairmesh_store::{Store, WriteError as StoreWriteError};
use tokio::sync::watch;

use crate::hold::Hold;

/// What the control plane is, for people who look at its handshake.
pub(crate) const SOFTWARE: &str = concat!("control plane ", env!("CARGO_PKG_VERSION"));

/// Serves the whole routing information base, and writes it.
#[derive(Clone, Debug)]
pub(crate) struct ControlBackend {
    pub(crate) node: Node,
    pub(crate) store: Arc<dyn Store>,
    /// `None` where no other process can write the store.
    pub(crate) hold: Option<Hold>,
}

impl Backend for ControlBackend {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        SOFTWARE.into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, batch: Batch, identity: Identity) -> Result<Revision, WriteError> {
        tracing::debug!(%identity, ops = batch.ops.len(), "a batch is written");
        self.store.write(batch).await.map_err(write_error)
    }

    /// What was written by way of this process is in the node before it is acknowledged, so all is there while nobody else
    /// can write.
    async fn ensure_linearizable(&self) -> Result<(), String> {
        match &self.hold {
            Some(hold) => hold.certain().await,
            None => Ok(()),
        }
    }

    fn age(&self, _: &Prefix) -> Duration {
        self.max_age()
    }

    fn max_age(&self) -> Duration {
        self.hold.as_ref().map_or(Duration::ZERO, Hold::age)
    }

    fn age_changes(&self) -> Option<watch::Receiver<u64>> {
        self.hold.as_ref().map(Hold::ages)
    }
}

/// What the store said, for callers.
pub(crate) fn write_error(error: StoreWriteError) -> WriteError {
    match error {
        StoreWriteError::Conflict(conflict) => WriteError::Conflict(conflict),
        StoreWriteError::TooLarge(problem) => WriteError::Invalid(problem),
        other => WriteError::Failed(other.to_string()),
    }
}
