//! A store over several etcd clusters, each of which holds the records of some services.
//!
//! One process writes, as with one cluster: the fence that it takes the home with is what every write in every part
//! rests on. So it alone gives out numbers, publishes what it committed without a watch, and knows where everything is; the
//! home keeps the map of parts for the next. What parts cannot do is fail alone and stop the others.

mod change;
mod cluster;
mod convert;
mod core;
mod intent;
mod keys;
mod load;
mod map;
mod open;
mod sequence;
mod split;
mod sweep;
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

use super::{EtcdConfig, FAREWELL, failure::Failure};
use crate::{BoxFuture, Commits, Loaded, Store, StoreError, WriteError};
pub use convert::is_partitioned;
use core::Core;
pub use split::{SplitEvent, SplitWish};
use write::Caller;

/// What stands for the partition in revisions: numbers are one sequence over all of them.
const NUMBERED_TOGETHER: u32 = 0;

/// A store over several etcd clusters, which this process holds. Lives within the tokio runtime that opened it.
#[derive(Debug)]
pub struct PartitionedStore {
    core: Arc<Core>,
    lease: Arc<AtomicI64>,
    keeper: AbortHandle,
    tasks: Vec<AbortHandle>,
}

impl PartitionedStore {
    /// Opens the store whose home `config` names, and creates it where there is none: waits until no other process holds
    /// it, keeps every process that held it from writing, and carries out what they committed and left undone. `who` is for
    /// people; so long as `term` after a death another can take over.
    ///
    /// # Errors
    /// [`StoreError`] when a cluster does not answer, denies access, or holds something else; and when the home holds a
    /// store in one cluster, see [`PartitionedStore::convert`].
    pub async fn open(config: &EtcdConfig, who: &str, term: Duration) -> Result<Self, StoreError> {
        let home = open::home(config).await?;
        let (lease, keeper) = open::hold(&home, who, term).await?;
        let opened = open::open(home.clone(), config.clone()).await;
        let core = match opened {
            Ok(core) => Arc::new(core),
            Err(error) => {
                keeper.abort();
                let _ = timeout(FAREWELL, home.client.revoke(lease.load(Relaxed))).await;
                return Err(error);
            }
        };
        let (passing, sweeping) = (core.clone(), core.clone());
        let tasks = vec![
            tokio::spawn(async move { passing.pass_overdue().await }).abort_handle(),
            tokio::spawn(async move { sweeping.sweep().await }).abort_handle(),
        ];
        Ok(Self { core, lease, keeper, tasks })
    }

    /// Makes a store in one cluster the home of one over several, and creates one where there is none; nothing where it is
    /// one already.
    /// Records keep their revisions, so that readers go on where they were. No other process may have it open. Cut short,
    /// it leaves the store as it was.
    ///
    /// # Errors
    /// As [`PartitionedStore::open`].
    pub async fn convert(config: &EtcdConfig, who: &str, term: Duration) -> Result<(), StoreError> {
        convert::convert(config, who, term).await
    }

    /// Gives the store another id, and answers it: once, after an older copy of etcd's data was put back.
    ///
    /// # Errors
    /// As [`PartitionedStore::open`]; a store that is not there is an error too.
    pub async fn renew_id(config: &EtcdConfig) -> Result<StoreId, StoreError> {
        open::renew_id(config).await
    }

    /// Moves services to another part while everything goes on, and tells how far it is. It goes on though the future is
    /// dropped. What fails leaves every service where it was.
    ///
    /// # Errors
    /// [`StoreError`] saying which part, and why.
    pub async fn split(&self, wish: SplitWish, progress: mpsc::Sender<SplitEvent>) -> Result<(), StoreError> {
        let core = self.core.clone();
        let place = core.place();
        let splitting = tokio::spawn(async move { core.split(&wish, &progress).await });
        splitting.await.unwrap_or_else(|ended| Err(StoreError::Refused { place, problem: ended.to_string() }))
    }

    async fn submit(&self, batch: Batch) -> Result<Revision, WriteError> {
        let number = if batch.ops.is_empty() { self.newest().await? } else { self.send(batch).await? };
        Ok(Revision { store: self.core.home.id, partition: NUMBERED_TOGETHER, number })
    }

    /// The newest number, if this process still is the one to say so.
    async fn newest(&self) -> Result<u64, WriteError> {
        let home = &self.core.home;
        let failed = |failure: Failure| failure.writing(&home.client.place, 0, 0);
        let holder = home.state().await.map_err(failed)?.holder;
        match holder.is_some_and(|(fence, _)| fence == home.held()) {
            true => Ok(self.core.sequence.committed()),
            false => Err(WriteError::Refused {
                place: self.core.place(),
                problem: "this process does not hold the store any more; ask who does".into(),
            }),
        }
    }

    async fn send(&self, batch: Batch) -> Result<u64, WriteError> {
        batch.validate()?;
        let room = self.core.room(&batch)?;
        let (answer, answered) = oneshot::channel();
        let core = self.core.clone();
        // A task of its own, so that a caller who leaves does not take the batch back half way.
        tokio::spawn(async move {
            let _room = room;
            core.write(batch, Caller::new(&core, answer)).await;
        });
        let lost = || WriteError::Unknown { place: self.core.place(), problem: "this process ends".into() };
        answered.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Store for PartitionedStore {
    fn id(&self) -> StoreId {
        self.core.home.id
    }

    fn partition(&self, key: &str) -> u32 {
        u32::try_from(self.core.routes().map.part(key)).unwrap_or(u32::MAX)
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(self.submit(batch))
    }

    fn load(&self) -> BoxFuture<'_, Result<Loaded, StoreError>> {
        Box::pin(self.core.load())
    }

    fn commits(&self, after: u64) -> Commits {
        self.core.home.history.subscribe(after)
    }

    fn broken(&self) -> Option<&str> {
        self.core.home.broken()
    }

    fn held_until(&self) -> Option<watch::Receiver<Instant>> {
        Some(self.core.home.until.subscribe())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if timeout(FAREWELL, self.core.cross_note_out()).await.is_err() {
                tracing::debug!(place = %self.core.place(), "a part does not answer; readers take a snapshot");
            }
            self.keeper.abort();
            let revoked = timeout(FAREWELL, self.core.home.client.revoke(self.lease.load(Relaxed))).await;
            if !matches!(revoked, Ok(Ok(()))) {
                tracing::warn!(place = %self.core.place(), "the store stays held until the hold runs out");
            }
        })
    }
}

impl Drop for PartitionedStore {
    fn drop(&mut self) {
        for task in self.tasks.iter().chain([&self.keeper]) {
            task.abort();
        }
        self.core.home.history.close();
    }
}
