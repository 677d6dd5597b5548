//! A store over several etcd clusters. Each cluster is a partition, which holds the records of some services.
//!
//! One process writes, as with a single cluster: the fence of its writer lease in the home partition guards every
//! write in every partition. Only this process therefore allocates revisions, publishes its commits without a watch,
//! and knows the location of every record. The home partition stores the partition map for the next writer. A failing
//! partition does not block the others.

mod cluster;
mod conditional_write;
mod convert;
mod garbage_collection;
mod intent;
mod key_locks;
mod load;
mod open;
mod partition_map;
mod revision_sequence;
mod split;
mod state;
mod write;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::Batch;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
    time::{Instant, timeout},
};

use super::{CLOSE_TIMEOUT, EtcdConfig, call_error::CallError};
use crate::{BoxFuture, Commits, Store, StoreError, StoreSnapshot, WriteError};
pub use convert::{is_partitioned, read_home_record};
pub use split::{SplitEvent, SplitRequest};
use state::PartitionedState;
use write::WriteResponder;

/// Partition number in revisions. It is constant, because revisions are one sequence over all partitions.
const REVISION_PARTITION: u32 = 0;

/// A store over several etcd clusters, whose writer lease this process holds. It must not outlive the tokio runtime
/// that opened it.
#[derive(Debug)]
pub struct PartitionedStore {
    state: Arc<PartitionedState>,
    lease_id: Arc<AtomicI64>,
    lease_keeper: AbortHandle,
    tasks: Vec<AbortHandle>,
}

impl PartitionedStore {
    /// Opens the store whose home partition is in `config`, and creates it if absent. Acquires the writer lease,
    /// fences every former holder, and completes the batches that former holders committed. `holder` names this
    /// process in messages. Another process can take over `ttl` after the last renewal.
    ///
    /// # Errors
    /// [`StoreError`] when a cluster does not respond, denies access or contains foreign keys, and when the home
    /// contains an unpartitioned store, see [`PartitionedStore::convert`].
    pub async fn open(config: &EtcdConfig, holder: &str, ttl: Duration) -> Result<Self, StoreError> {
        let home = open::open_home(config).await?;
        let (lease_id, lease_keeper) = open::acquire_lease(&home, holder, ttl).await?;
        let opened = open::open(home.clone(), config.clone()).await;
        let state = match opened {
            Ok(state) => Arc::new(state),
            Err(error) => {
                lease_keeper.abort();
                let _ = timeout(CLOSE_TIMEOUT, home.client.revoke(lease_id.load(Relaxed))).await;
                return Err(error);
            }
        };
        let (skipping, collecting) = (state.clone(), state.clone());
        let tasks = vec![
            tokio::spawn(async move { skipping.skip_overdue().await }).abort_handle(),
            tokio::spawn(async move { collecting.collect_garbage().await }).abort_handle(),
        ];
        Ok(Self { state, lease_id, lease_keeper, tasks })
    }

    /// Converts a store in one cluster to the home partition of a partitioned store, or creates a partitioned store
    /// if there is none. Does nothing if the store is already partitioned. Records keep their revisions, so that
    /// readers continue. No other process may have the store open. An interrupted conversion leaves the store
    /// unchanged.
    ///
    /// # Errors
    /// As for [`PartitionedStore::open`].
    pub async fn convert(config: &EtcdConfig, holder: &str, ttl: Duration) -> Result<(), StoreError> {
        convert::convert(config, holder, ttl).await
    }

    /// Gives the store a new id and returns it. Do this once after restoring an older snapshot of etcd.
    ///
    /// # Errors
    /// As for [`PartitionedStore::open`]; a missing store is an error too.
    pub async fn regenerate_id(config: &EtcdConfig) -> Result<StoreId, StoreError> {
        open::regenerate_id(config).await
    }

    /// Moves services to another partition while the store is in use, and reports progress. Dropping the future does
    /// not cancel the move. If the move fails, every service stays in its partition.
    ///
    /// # Errors
    /// [`StoreError`] with the partition and the reason.
    pub async fn split(
        &self,
        request: SplitRequest,
        progress: mpsc::Sender<SplitEvent>,
    ) -> Result<(), StoreError> {
        let state = self.state.clone();
        let location = state.location();
        let splitting = tokio::spawn(async move { state.split(&request, &progress).await });
        splitting
            .await
            .unwrap_or_else(|ended| Err(StoreError::Refused { location, problem: ended.to_string() }))
    }

    async fn submit(&self, batch: Batch) -> Result<Revision, WriteError> {
        let number = if batch.ops.is_empty() { self.newest().await? } else { self.send(batch).await? };
        Ok(Revision { store: self.state.home.id, partition: REVISION_PARTITION, number })
    }

    /// Returns the newest revision if this process still holds the writer lease.
    async fn newest(&self) -> Result<u64, WriteError> {
        let home = &self.state.home;
        let failed = |failure: CallError| failure.into_write_error(&home.client.location, 0, 0);
        let holder = home.meta().await.map_err(failed)?.holder;
        match holder.is_some_and(|(fence, _)| fence == home.fence()) {
            true => Ok(self.state.sequence.committed()),
            false => Err(WriteError::Refused {
                location: self.state.location(),
                problem:
                    "this process does not hold the writer lease any more; read from the active control plane"
                        .into(),
            }),
        }
    }

    async fn send(&self, batch: Batch) -> Result<u64, WriteError> {
        batch.validate()?;
        let permit = self.state.admit(&batch)?;
        let (response, result) = oneshot::channel();
        let state = self.state.clone();
        // Spawned as a task, so that cancelling the caller does not cancel a write in flight.
        tokio::spawn(async move {
            let _permit = permit;
            state.write(batch, WriteResponder::new(&state, response)).await;
        });
        let lost = || WriteError::Unknown {
            location: self.state.location(),
            problem: "this process is shutting down".into(),
        };
        result.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Store for PartitionedStore {
    fn id(&self) -> StoreId {
        self.state.home.id
    }

    fn partition(&self, key: &str) -> u32 {
        u32::try_from(self.state.partitions().map.partition_of(key)).unwrap_or(u32::MAX)
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(self.submit(batch))
    }

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        Box::pin(self.state.load())
    }

    fn commits(&self, after: u64) -> Commits {
        self.state.home.commit_log.subscribe(after)
    }

    fn fatal_error(&self) -> Option<&str> {
        self.state.home.fatal_error()
    }

    fn probe_write(&self) -> Option<BoxFuture<'_, Result<(), String>>> {
        Some(Box::pin(async {
            let (home, deadline) = (&self.state.home, super::txn::probe_deadline());
            super::txn::probe_write(&home.client, &home.layout, deadline).await?;
            for cluster in &self.state.partitions().clusters {
                let probed = super::txn::probe_write(&cluster.client, &cluster.layout, deadline).await;
                probed.map_err(|problem| format!("{}: {problem}", cluster.client.location))?;
            }
            Ok(())
        }))
    }

    fn lease_expiry(&self) -> Option<watch::Receiver<Instant>> {
        Some(self.state.home.lease_expiry.subscribe())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if timeout(CLOSE_TIMEOUT, self.state.clear_gap()).await.is_err() {
                tracing::debug!(location = %self.state.location(), "a partition does not respond; readers take a snapshot");
            }
            self.lease_keeper.abort();
            let revoked =
                timeout(CLOSE_TIMEOUT, self.state.home.client.revoke(self.lease_id.load(Relaxed))).await;
            if !matches!(revoked, Ok(Ok(()))) {
                tracing::warn!(location = %self.state.location(), "the writer lease could not be revoked and remains until it expires");
            }
        })
    }
}

impl Drop for PartitionedStore {
    fn drop(&mut self) {
        for task in self.tasks.iter().chain([&self.lease_keeper]) {
            task.abort();
        }
        self.state.home.commit_log.close();
    }
}
