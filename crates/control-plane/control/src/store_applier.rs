//! Applies commits of the store to the node that serves readers.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision, StoreId};
use fairmesh_rib::{Batch, Node};
use fairmesh_store::{BoxFuture, Commits, Store, StoreError, StoreSnapshot, WriteError, write_author};

use tokio::{sync::watch, time::Instant};

use crate::{audit::AuditLog, commit_indices::Indices, health_checks::Woken, metrics::Metrics};

/// Pause after a failed load.
const LOAD_RETRY: Duration = Duration::from_secs(1);

/// Store for this process's writes. A write returns once the node has applied it.
#[derive(Debug)]
pub(crate) struct AppliedStore {
    store: Arc<dyn Store>,
    node: Node,
    metrics: Arc<Metrics>,
    audit: AuditLog,
}

impl AppliedStore {
    /// Wraps a store. [`apply_commits`] must run while there are writes.
    pub(crate) fn new(store: Arc<dyn Store>, node: Node, metrics: Arc<Metrics>, audit: AuditLog) -> Self {
        Self { store, node, metrics, audit }
    }

    async fn write_and_apply(&self, batch: Batch) -> Result<Revision, WriteError> {
        let written = self.store.write(batch).await;
        self.metrics.count_write(&written);
        let revision = written?;
        self.node.wait_applied(revision.number).await;
        self.audit.record((write_author::current(), write_author::message()), revision).await;
        Ok(revision)
    }
}

impl Store for AppliedStore {
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

    fn fatal_error(&self) -> Option<&str> {
        self.store.fatal_error()
    }

    fn write_failure(&self) -> Option<String> {
        self.store.write_failure()
    }

    fn probe_write(&self) -> Option<BoxFuture<'_, Result<(), String>>> {
        self.store.probe_write()
    }

    fn verify(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.verify()
    }

    fn lease_expiry(&self) -> Option<watch::Receiver<Instant>> {
        self.store.lease_expiry()
    }
}

/// Applies all commits of the store to the node, in order, until the store is dropped.
pub(crate) async fn apply_commits(store: Arc<dyn Store>, node: Node, indices: Indices) {
    loop {
        let mut commits = store.commits(node.revision().number);
        let behind = loop {
            match commits.next().await {
                Ok(Some(commit)) => {
                    let woken = indices.apply(&commit, &node);
                    let concerns_access = Indices::concerns_access(&commit);
                    node.apply(commit);
                    if concerns_access {
                        indices.access.changed();
                    }
                    indices.checks.wake(woken);
                }
                Ok(None) => return,
                Err(behind) => break behind,
            }
        };
        tracing::warn!(%behind, "node fell behind the store; reloading");
        if let Err(error) = reload(&*store, &node, &indices).await {
            tracing::error!(%error, "cannot load the store; readers see older records");
            tokio::time::sleep(LOAD_RETRY).await;
        }
    }
}

async fn reload(store: &dyn Store, node: &Node, indices: &Indices) -> Result<(), StoreError> {
    let (number, entries) = store.load().await?;
    indices.load(&entries);
    let revision = Revision { store: store.id(), partition: 0, number };
    if let Err(behind) = node.replace(Prefix::everything(), entries, revision) {
        // Cannot happen: only this task applies commits, and the node's revision is below every commit that
        // the store retains.
        tracing::error!(%behind, "store returned an older state than the node has");
    }
    indices.access.changed();
    indices.checks.wake(Woken::ALL);
    Ok(())
}
