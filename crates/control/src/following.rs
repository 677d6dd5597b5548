//! How the node that readers are served from keeps up with the store.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision, StoreId};
use fairmesh_rib::{Batch, Node};
use fairmesh_store::{BoxFuture, Commits, Store, StoreError, StoreSnapshot, WriteError};

use crate::{census::Census, checks::CheckIndex, metrics::Metrics};

/// How long to wait before a failed load is tried again.
const LOAD_PAUSE: Duration = Duration::from_secs(1);

/// The store as everybody in this process writes it: a write is answered once the node has applied it.
#[derive(Debug)]
pub(crate) struct Followed {
    store: Arc<dyn Store>,
    node: Node,
    metrics: Arc<Metrics>,
}

impl Followed {
    /// The node must follow the store ([`follow`]) for as long as anybody writes.
    pub(crate) fn new(store: Arc<dyn Store>, node: Node, metrics: Arc<Metrics>) -> Self {
        Self { store, node, metrics }
    }

    async fn write_and_apply(&self, batch: Batch) -> Result<Revision, WriteError> {
        let written = self.store.write(batch).await;
        self.metrics.wrote(&written);
        let revision = written?;
        self.node.wait_applied(revision.number).await;
        Ok(revision)
    }
}

impl Store for Followed {
    fn id(&self) -> StoreId {
        self.store.id()
    }

    fn partition(&self, key: &str) -> u32 {
        self.store.partition(key)
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(self.write_and_apply(batch))
    }

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        self.store.load()
    }

    fn commits(&self, after: u64) -> Commits {
        self.store.commits(after)
    }
}

/// Applies every commit of the store to the node, in order, until it is dropped.
pub(crate) async fn follow(
    store: Arc<dyn Store>,
    node: Node,
    census: Arc<Census>,
    check_index: Arc<CheckIndex>,
) {
    loop {
        let mut commits = store.commits(node.revision().number);
        let behind = loop {
            match commits.next().await {
                Ok(Some(commit)) => {
                    census.apply(&commit);
                    let stale_verdicts = check_index.apply(&commit, &node);
                    node.apply(commit);
                    if stale_verdicts {
                        // Only now, since whoever is woken looks at the node.
                        check_index.stale_verdicts.notify_one();
                    }
                }
                Ok(None) => return,
                Err(behind) => break behind,
            }
        };
        tracing::warn!(%behind, "the node fell behind the store and loads it again");
        if let Err(error) = reload(&*store, &node, &census, &check_index).await {
            tracing::error!(%error, "the store cannot be loaded; readers see older records");
            tokio::time::sleep(LOAD_PAUSE).await;
        }
    }
}

async fn reload(
    store: &dyn Store,
    node: &Node,
    census: &Census,
    check_index: &CheckIndex,
) -> Result<(), StoreError> {
    let (number, entries) = store.load().await?;
    census.load(&entries);
    check_index.load(&entries);
    let revision = Revision { store: store.id(), partition: 0, number };
    if let Err(behind) = node.replace(Prefix::everything(), entries, revision) {
        // Only this task applies commits, and it stands below every commit that the store keeps.
        tracing::error!(%behind, "the store answered an older state than the node has");
    }
    check_index.stale_verdicts.notify_one();
    Ok(())
}
