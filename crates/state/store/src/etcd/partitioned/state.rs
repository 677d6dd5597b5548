//! State shared by all calls to a partitioned store.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_rib::{Batch, Op};
use tokio::{sync::Semaphore, time::sleep};

use super::{
    super::{EtcdConfig, state::EtcdState, write_admission::WritePermit},
    cluster::{Cluster, CommitOutcome},
    garbage_collection::write_keys,
    key_locks::KeyLocks,
    partition_map::{HOME, PartitionMap},
    revision_sequence::RevisionSequence,
    split::PartitionMove,
};
use crate::{StoreLocation, WriteError};

/// Maximum number of multi-partition batches in flight. Each batch holds a lane in every partition that it touches,
/// and an unresponsive partition must not use up the lanes of the others.
const MAX_MULTI_PARTITION: usize = 8;
/// Pause before retrying to record a gap.
const GAP_RETRY: Duration = Duration::from_millis(50);

/// Metadata key that records skipped revisions.
pub(super) const GAP_KEY: &str = "gap";

#[derive(Debug)]
pub(super) struct PartitionedState {
    /// The home partition, with writer lease, commit log and write queue.
    pub(super) home: Arc<EtcdState>,
    /// Credentials for all clusters.
    pub(super) config: EtcdConfig,
    partitions: RwLock<Arc<Partitions>>,
    pub(super) sequence: RevisionSequence,
    pub(super) key_locks: KeyLocks,
    pub(super) multi_partition: Semaphore,
    /// Lock of the only task that may move records or delete leftover copies.
    pub(super) move_lock: tokio::sync::Mutex<()>,
    /// During a move, the moved keys that were written after they were copied; `None` otherwise.
    pub(super) move_tracker: Mutex<Option<MoveTracker>>,
    /// The partition in which a gap is recorded, if any.
    gap_partition: tokio::sync::Mutex<Option<Arc<Cluster>>>,
}

/// The partition map and the clusters.
#[derive(Debug)]
pub(super) struct Partitions {
    pub(super) map: PartitionMap,
    pub(super) clusters: Vec<Arc<Cluster>>,
}

/// Keys of a move that were written since they were copied.
#[derive(Debug)]
pub(super) struct MoveTracker {
    pub(super) partition_move: Arc<PartitionMove>,
    pub(super) written: BTreeSet<Arc<str>>,
}

impl Partitions {
    /// Groups the operations of a batch by partition.
    pub(super) fn divide(&self, batch: &Batch) -> BTreeMap<usize, Vec<Op>> {
        let mut parts = BTreeMap::<usize, Vec<Op>>::new();
        for op in &batch.ops {
            parts.entry(self.map.partition_of(&op.key)).or_default().push(op.clone());
        }
        parts
    }
}

impl PartitionedState {
    pub(super) fn new(home: Arc<EtcdState>, config: EtcdConfig, partitions: Partitions, newest: u64) -> Self {
        Self {
            sequence: RevisionSequence::after(newest, home.clone()),
            home,
            config,
            partitions: RwLock::new(Arc::new(partitions)),
            key_locks: KeyLocks::default(),
            multi_partition: Semaphore::new(MAX_MULTI_PARTITION),
            move_lock: tokio::sync::Mutex::default(),
            move_tracker: Mutex::new(None),
            gap_partition: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) fn location(&self) -> StoreLocation {
        self.home.client.location.clone()
    }

    /// Returns the current partitions. They cannot change for a partition whose gate is held.
    pub(super) fn partitions(&self) -> Arc<Partitions> {
        self.partitions.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_partitions(&self, partitions: Partitions) {
        *self.partitions.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(partitions);
    }

    /// Admits a batch to the queue of its partition, or to the queue of multi-partition batches.
    pub(super) fn admit(&self, batch: &Batch) -> Result<WritePermit, WriteError> {
        let partitions = self.partitions();
        let mut parts = batch.ops.iter().map(|op| partitions.map.partition_of(&op.key));
        let first = parts.next().unwrap_or(HOME);
        let cluster = &partitions.clusters[first];
        match parts.all(|part| part == first) {
            true => cluster.admission.admit(batch, &cluster.client.location),
            false => self.home.admission.admit(batch, &self.home.client.location),
        }
    }

    /// Records which keys of a committed batch a move must copy again.
    pub(super) fn track_writes(&self, batch: &Batch) {
        let mut move_tracker = self.move_tracker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(MoveTracker { partition_move, written }) = &mut *move_tracker {
            let moving = batch.ops.iter().filter(|op| partition_move.moves(&op.key));
            written.extend(moving.map(|op| op.key.clone()));
        }
    }

    /// Skips revisions that block later ones for too long; never returns.
    ///
    /// Their batches are written again under later revisions. Until then readers lack them, and a successor of this
    /// process would not know. The gap is therefore recorded first, in a responsive partition.
    pub(super) async fn skip_overdue(&self) {
        loop {
            let overdue = self.sequence.overdue().await;
            let cluster = self.partitions().clusters[overdue.responsive].clone();
            let mut gap_partition = self.gap_partition.lock().await;
            if gap_partition.is_none() {
                let value = overdue.number.to_be_bytes().to_vec();
                match cluster.write_meta(cluster.layout.meta_key(GAP_KEY), Some(value.into())).await {
                    Ok(CommitOutcome::Written) => *gap_partition = Some(cluster),
                    _ => {
                        drop(gap_partition);
                        sleep(GAP_RETRY).await;
                        continue;
                    }
                }
            }
            tracing::debug!(?overdue, "the other partitions of the store continue without a batch");
            self.sequence.skip(overdue.number);
        }
    }

    /// Deletes the record of a gap if all skipped batches have been published since. Called before the store is
    /// closed.
    pub(super) async fn clear_gap(&self) {
        let mut gap_partition = self.gap_partition.lock().await;
        let Some(cluster) = gap_partition.take() else { return };
        let partitions = self.partitions();
        let gates: Result<Vec<_>, _> =
            partitions.clusters.iter().map(|cluster| cluster.gate.clone().try_write_owned()).collect();
        if gates.is_ok()
            && let Err(failure) = write_keys(&cluster, vec![(cluster.layout.meta_key(GAP_KEY), None)]).await
        {
            tracing::debug!(
                problem = failure.message(),
                "the gap could not be cleared; readers of the next process take a snapshot"
            );
        }
    }

    /// Returns the error for a failed precondition.
    pub(super) fn rejection(&self, cluster: &Cluster, outcome: CommitOutcome) -> WriteError {
        let problem = match outcome {
            CommitOutcome::Replaced => {
                let reason =
                    "a partition was replaced, or written by another client; start the process again";
                self.home.fail(format!("{}: {reason}", cluster.client.location));
                reason
            }
            _ => "the writer lease is lost and nothing was written; write to the active control plane",
        };
        WriteError::Refused { location: cluster.client.location.clone(), problem: problem.into() }
    }
}
