//! Moves services to another partition while the store serves reads and writes.
//!
//! Records are copied while writes continue. Records written meanwhile are copied in further rounds until few are
//! left. Then writes to the source partition are paused for moments, the rest is copied, and one transaction changes
//! the partition map. Records keep their revisions, so that readers do not notice the move. Until then the former map
//! stays in force and the copies are ignored.

mod copy;
mod plan;
mod target;

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    super::{call_error::CallError, client},
    cluster::{Cluster, CommitOutcome, RetryControl},
    conditional_write::ConditionalWrite,
    open::{MAP_KEY, refused},
    partition_map::{HOME, PartitionMap},
    state::{MoveTracker, PartitionedState, Partitions},
};
use crate::{EtcdAddress, StoreError};
use copy::Copier;

/// Time limit for one step while a partition does not respond.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for pausing writes until none is in flight in the source partition.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of records left to copy when writes are paused.
const FINAL_COPY_RECORDS: usize = 200;
/// Maximum number of rounds that copy concurrently written records before writes are paused.
const MAX_CATCH_UP_ROUNDS: usize = 16;

/// A request to move services.
#[derive(Clone, Debug)]
pub struct SplitRequest {
    /// Cluster and root of the target: either an existing partition, or an empty root, which becomes a partition.
    pub into: EtcdAddress,
    /// The services to move, as `tenant/service`, all in the same partition. If empty, half of the range with the
    /// most bytes is moved.
    pub services: Vec<String>,
    /// Whether to only report what would be moved.
    pub dry_run: bool,
}

/// Progress of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitEvent {
    /// The planned move.
    Planned {
        /// Source partition.
        from: u32,
        /// Target partition.
        to: u32,
        /// Number of services with records.
        services: u64,
        /// Number of records to move.
        records: u64,
        /// Size of keys and values to move, in bytes.
        bytes: u64,
    },
    /// Number of records copied so far. Sent only while the receiver keeps up.
    Copied(u64),
    /// Number of records that are equal in both partitions, excluding records written in the meantime.
    Verified(u64),
    /// The partition map is changed.
    Moved {
        /// Version of the map.
        version: u64,
        /// How long writes to the source partition were paused.
        paused: Duration,
    },
    /// The moved records are deleted from the source.
    Done,
}

/// A move of services from one partition to another.
#[derive(Debug)]
pub(super) struct PartitionMove {
    before: Arc<Partitions>,
    after: PartitionMap,
    from: usize,
    to: usize,
    /// Target partition.
    target: Arc<Cluster>,
}

impl PartitionMove {
    /// Whether the move includes a record.
    pub(super) fn moves(&self, key: &str) -> bool {
        self.after.partition_of(key) == self.to && self.before.map.partition_of(key) == self.from
    }

    fn source(&self) -> &Arc<Cluster> {
        &self.before.clusters[self.from]
    }
}

/// Retries while this process holds the writer lease.
struct RetryWhileWriter<'a>(&'a PartitionedState);

impl RetryControl for RetryWhileWriter<'_> {
    fn should_give_up(&mut self, _problem: &str) -> bool {
        self.0.home.fatal_error().is_some()
    }
}

impl PartitionedState {
    pub(super) async fn split(
        &self,
        request: &SplitRequest,
        progress: &mpsc::Sender<SplitEvent>,
    ) -> Result<(), StoreError> {
        let busy = "another move is in progress; wait for it";
        let locked = timeout(STEP_TIMEOUT, self.move_lock.lock()).await;
        let _lock = locked.map_err(|_| refused(&self.location(), busy))?;
        let found = self.find_target(&request.into).await?;
        let plan = self.plan(request, found.part()).await?;
        report(progress, plan.event()).await;
        if request.dry_run {
            return Ok(());
        }
        let plan = self.prepare_target(plan, found).await?;
        let moved = self.execute_move(&plan, progress).await;
        self.set_move_tracker(None);
        moved?;
        let left = self.delete(plan.source(), |key| plan.after.partition_of(key) == plan.from).await;
        if let Err(failure) = left {
            let problem = failure.message();
            tracing::warn!(
                problem,
                "moved records could not be deleted from the source; the next start deletes them"
            );
        }
        report(progress, SplitEvent::Done).await;
        Ok(())
    }

    async fn execute_move(
        &self,
        plan: &Arc<PartitionMove>,
        progress: &mpsc::Sender<SplitEvent>,
    ) -> Result<(), StoreError> {
        let (source, target) = (plan.source().clone(), plan.target.clone());
        let store_error = |failure: CallError| failure.into_store_error(&source.client.location);
        let own = |key: &str| plan.before.map.partition_of(key) == plan.to;
        self.delete(&target, own)
            .await
            .map_err(|failure| failure.into_store_error(&target.client.location))?;
        let quiesced = self.quiesce(&source).await?;
        self.set_move_tracker(Some(MoveTracker { partition_move: plan.clone(), written: BTreeSet::new() }));
        drop(quiesced);

        let mut copier = Copier::new(plan, progress);
        copier.copy_all().await.map_err(store_error)?;
        for _ in 0..MAX_CATCH_UP_ROUNDS {
            let written = self.take_tracked_writes();
            copier.copy_keys(&written).await.map_err(store_error)?;
            if written.len() <= FINAL_COPY_RECORDS {
                break;
            }
        }
        let (same, differing) = copier.compare().await.map_err(store_error)?;
        report(progress, SplitEvent::Verified(same)).await;

        let quiesced = self.quiesce(&source).await?;
        let since = Instant::now();
        let written = self.take_tracked_writes();
        copier.copy_keys(&written).await.map_err(store_error)?;
        let wrong = differing.into_iter().find(|key| !written.contains(key));
        if let Some(key) = wrong.or(copier.first_difference(&written).await.map_err(store_error)?) {
            let problem =
                format!("{key} differs from its copy: another client writes there. Nothing was moved");
            return Err(refused(&target.client.location, &problem));
        }
        self.activate_map(plan).await?;
        drop(quiesced);
        let paused = since.elapsed();
        tracing::info!(from = plan.from, to = plan.to, ?paused, "services were moved to another partition");
        report(progress, SplitEvent::Moved { version: plan.after.version, paused }).await;
        Ok(())
    }

    /// Puts the new map in force. After the map is sent, nothing is written to the source until the map is certainly
    /// in force, because the next step deletes the records from the source.
    async fn activate_map(&self, plan: &PartitionMove) -> Result<(), StoreError> {
        let home = &plan.before.clusters[HOME];
        let store_error = |failure: CallError| failure.into_store_error(&home.client.location);
        let map: Bytes = plan.after.encode().into();
        let change = ConditionalWrite::raw(vec![(home.layout.meta_key(MAP_KEY), Some(map.clone()))]);
        match home.commit_copy(&change, &mut RetryWhileWriter(self)).await {
            Ok(CommitOutcome::Written) => {}
            Ok(_) => {
                return Err(refused(
                    &home.client.location,
                    "this process does not hold the writer lease any more",
                ));
            }
            Err(failure) => {
                if let CallError::Unknown(problem) = &failure {
                    self.home.fail(format!(
                        "it is unknown whether services were moved ({problem}); start the process again"
                    ));
                }
                return Err(store_error(failure));
            }
        }
        if self.read_active_map(home).await? != Some(map) {
            let problem = "the partition map was changed by another client; start the process again";
            self.home.fail(problem.into());
            return Err(refused(&home.client.location, problem));
        }
        let mut clusters = plan.before.clusters.clone();
        if plan.to == clusters.len() {
            clusters.push(plan.target.clone());
        }
        self.set_partitions(Partitions { map: plan.after.clone(), clusters });
        Ok(())
    }

    /// Reads the map in force, with unlimited retries.
    async fn read_active_map(&self, home: &Cluster) -> Result<Option<Bytes>, StoreError> {
        let mut failures = 0;
        loop {
            match home.read_meta_value(MAP_KEY).await {
                Err(failure) if self.home.fatal_error().is_some() => {
                    return Err(failure.into_store_error(&home.client.location));
                }
                Err(_) => failures += 1,
                Ok(map) => return Ok(map),
            }
            sleep(client::backoff(failures)).await;
        }
    }

    /// Waits until no write is in flight in a partition, and blocks further writes.
    async fn quiesce(&self, cluster: &Cluster) -> Result<tokio::sync::OwnedRwLockWriteGuard<()>, StoreError> {
        let quiesced = timeout(QUIESCE_TIMEOUT, cluster.gate.clone().write_owned()).await;
        quiesced.map_err(|_| StoreError::Unavailable {
            location: cluster.client.location.clone(),
            problem: "a write to this partition is still in flight; nothing was moved, retry".into(),
        })
    }

    fn set_move_tracker(&self, move_tracker: Option<MoveTracker>) {
        *self.move_tracker.lock().unwrap_or_else(PoisonError::into_inner) = move_tracker;
    }

    /// Returns the keys of the move that were written since the last call.
    fn take_tracked_writes(&self) -> BTreeSet<Arc<str>> {
        let mut move_tracker = self.move_tracker.lock().unwrap_or_else(PoisonError::into_inner);
        move_tracker
            .as_mut()
            .map(|move_tracker| std::mem::take(&mut move_tracker.written))
            .unwrap_or_default()
    }
}

/// Sends progress. The receiver may have been dropped.
async fn report(progress: &mpsc::Sender<SplitEvent>, event: SplitEvent) {
    let _ = progress.send(event).await;
}
