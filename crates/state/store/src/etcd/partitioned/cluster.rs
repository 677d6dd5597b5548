//! One partition of a store: the client of its cluster, this process's fence, and the lanes.
//!
//! A **lane** makes every write exactly-once, like the client sessions of Raft (Ongaro 2014, 6.3). A lane is a key
//! whose value is the number of the last batch written through it. A batch is written only if the lane still has the
//! number that this process left there. A transaction whose response was lost is therefore retried unchanged: if etcd
//! receives both, the first advances the lane, and the second fails its comparison. The lane's value then shows
//! whether the batch is committed. Without lanes, a delayed transaction could overwrite a later one.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, RwLock, Semaphore},
    time::sleep,
};

use super::{
    super::{
        call_error::CallError,
        client::{self, Client, RetryPolicy},
        key_layout::Layout,
        proto::{Compare, KeyValue, RangeRequest, RequestOp, TxnRequest, TxnResponse, compare},
        state::EtcdState,
        write_admission::WriteAdmission,
    },
    conditional_write::{self, ConditionalWrite, UnmetCondition},
};

/// Maximum number of batches in flight to one partition.
const MAX_LANES: usize = 32;

/// One partition of a store.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) layout: Layout,
    /// Value of the metadata key `store`.
    pub(super) identity: Bytes,
    fence: Fence,
    /// Each batch in flight holds the read lock; the write lock excludes all batches.
    pub(super) gate: Arc<RwLock<()>>,
    /// Write queue of this partition. An unresponsive partition does not use up the capacity of the others.
    pub(super) admission: WriteAdmission,
    lane_permits: Arc<Semaphore>,
    free_lanes: Mutex<Vec<Lane>>,
    /// Lane for records copied by a move, with one write at a time.
    copier: tokio::sync::Mutex<Lane>,
    /// Whether the last attempt failed, so that only changes are logged.
    unreachable: AtomicBool,
}

/// Proof that this process may write.
#[derive(Debug)]
pub(super) enum Fence {
    /// In the home partition: the metadata key `holder`, attached to the writer lease.
    Holder(Arc<EtcdState>),
    /// In other partitions: the fence of this process's lease in the home partition, which is greater than the fence
    /// of every former holder. A separate lease was rejected: a new holder of the home lease would have to wait for a
    /// lease that a former holder still renews.
    Stamped(u64),
}

/// A key, and the number of the last batch written through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    name: String,
    at: u64,
    /// Greatest number attempted. A number between `at` and this one may still be written, so none of them is reused.
    highest_attempted: u64,
}

/// A lane that one batch uses until the guard is dropped.
#[derive(Debug)]
pub(super) struct LaneGuard {
    pub(super) cluster: Arc<Cluster>,
    lane: Lane,
    _permit: OwnedSemaphorePermit,
}

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitOutcome {
    /// The transaction was written.
    Written,
    /// A condition does not hold, and nothing is written.
    Conflict(UnmetCondition),
    /// This process does not hold the writer lease, and nothing is written.
    Fenced,
    /// The partition is missing or was changed by another writer, and nothing is written.
    Replaced,
    /// This process reacquired its lease meanwhile, and nothing is written. A retry would succeed.
    FenceChanged,
}

/// Decides whether to give up a transaction with an unknown outcome.
pub(super) trait RetryControl: Send {
    /// Called after the transaction was sent and no response came. `problem` describes the failure.
    fn should_give_up(&mut self, problem: &str) -> bool;
}

impl Cluster {
    /// Creates a partition with the given metadata.
    pub(super) fn new(
        (client, layout): (Client, Layout),
        identity: Bytes,
        fence: Fence,
        meta: &HashMap<String, KeyValue>,
    ) -> Self {
        let lane = |name: String| {
            let at = meta.get(&name).map_or(0, |kv| decode_position(&kv.value));
            Lane { name, at, highest_attempted: at }
        };
        let free_lanes = (0..MAX_LANES).map(|i| lane(format!("lane/{i:02}"))).collect();
        Self {
            client,
            layout,
            identity,
            fence,
            gate: Arc::default(),
            admission: WriteAdmission::default(),
            lane_permits: Arc::new(Semaphore::new(MAX_LANES)),
            free_lanes: Mutex::new(free_lanes),
            copier: tokio::sync::Mutex::new(lane("copier".into())),
            unreachable: AtomicBool::new(false),
        }
    }

    /// Greatest number written through any lane.
    pub(super) fn newest(&self) -> u64 {
        self.free_lanes().iter().map(|lane| lane.at).max().unwrap_or(0)
    }

    /// Waits for a free lane.
    pub(super) async fn acquire_lane(self: &Arc<Self>) -> LaneGuard {
        loop {
            // The semaphore is never closed, and each permit stands for one lane.
            if let Ok(permit) = self.lane_permits.clone().acquire_owned().await
                && let Some(lane) = self.free_lanes().pop()
            {
                return LaneGuard { cluster: self.clone(), lane, _permit: permit };
            }
        }
    }

    /// Checks whether the conditions hold now, without writing.
    pub(super) async fn check(&self, change: &ConditionalWrite) -> Result<CommitOutcome, CallError> {
        let response = self.client.txn(RetryPolicy::Repeatable, self.transaction(None, change)).await?;
        Ok(match response.succeeded {
            true => CommitOutcome::Written,
            false => self.outcome_without_lane(change, response),
        })
    }

    /// Writes or deletes a metadata key, with retries. A late duplicate must be harmless: for example, each name and
    /// value is used only once.
    pub(super) async fn write_meta(
        &self,
        key: Bytes,
        value: Option<Bytes>,
    ) -> Result<CommitOutcome, CallError> {
        let change = ConditionalWrite::default().with_write(key, value);
        let response = self.client.txn(RetryPolicy::Repeatable, self.transaction(None, &change)).await?;
        Ok(if response.succeeded {
            CommitOutcome::Written
        } else {
            self.outcome_without_lane(&change, response)
        })
    }

    /// Writes a change without a revision exactly once, like [`Cluster::commit`].
    pub(super) async fn commit_copy(
        &self,
        change: &ConditionalWrite,
        retry: &mut dyn RetryControl,
    ) -> Result<CommitOutcome, CallError> {
        let mut lane = self.copier.lock().await;
        if lane.highest_attempted > lane.at {
            // The outcome of the last write is unknown: the write was given up, or its future was dropped.
            lane.at = self.stored_position(&lane).await.map_err(CallError::into_unavailable)?;
        }
        let number = lane.next();
        self.commit(&mut lane, number, change, retry).await
    }

    /// Reads the position of a lane from etcd.
    async fn stored_position(&self, lane: &Lane) -> Result<u64, CallError> {
        Ok(self.read_meta_value(&lane.name).await?.map_or(0, |value| decode_position(&value)))
    }

    /// Reads the value of a metadata key.
    pub(super) async fn read_meta_value(&self, name: &str) -> Result<Option<Bytes>, CallError> {
        let request = RangeRequest { key: self.layout.meta_key(name), ..RangeRequest::default() };
        Ok(self.client.range(request).await?.kvs.into_iter().next().map(|kv| kv.value))
    }

    /// Writes a change exactly once or not at all, under an unused number of the lane. Retries until the outcome is
    /// certain, unless `retry` gives up.
    pub(super) async fn commit(
        &self,
        lane: &mut Lane,
        number: u64,
        change: &ConditionalWrite,
        retry: &mut dyn RetryControl,
    ) -> Result<CommitOutcome, CallError> {
        let (mut uncertain, mut failures) = (false, 0);
        loop {
            let txn = self.transaction(Some((lane, number)), change);
            let problem = match self.client.txn(RetryPolicy::NonRepeatable, txn).await {
                Ok(response) => {
                    self.mark_reachable();
                    let (at, outcome) = match response.succeeded {
                        true => (number, CommitOutcome::Written),
                        false => self.outcome_with_lane(lane, number, change, response),
                    };
                    match outcome {
                        CommitOutcome::Written => lane.at = number,
                        CommitOutcome::FenceChanged => continue,
                        // Another process has advanced the lane, so it cannot be determined whether the change was
                        // written before.
                        _ if uncertain && at != lane.at => {
                            return Err(CallError::Unknown("another process has written since".into()));
                        }
                        _ => {}
                    }
                    return Ok(outcome);
                }
                Err(CallError::Unknown(problem)) => {
                    uncertain = true;
                    problem
                }
                Err(failure) if !uncertain => return Err(failure),
                Err(failure) => failure.message(),
            };
            self.mark_unreachable(&problem);
            if retry.should_give_up(&problem) {
                return Err(CallError::Unknown(problem));
            }
            failures += 1;
            sleep(client::backoff(failures)).await;
        }
    }

    fn transaction(&self, lane: Option<(&Lane, u64)>, change: &ConditionalWrite) -> TxnRequest {
        let lane_compare = lane.map(|(lane, _)| match lane.at {
            0 => conditional_write::absent_compare(self.layout.meta_key(&lane.name)),
            at => {
                let value = at.to_be_bytes().to_vec();
                conditional_write::value_compare(
                    self.layout.meta_key(&lane.name),
                    compare::Result::Equal,
                    value,
                )
            }
        });
        let lane_write = lane.map(|(lane, number)| {
            conditional_write::put(self.layout.meta_key(&lane.name), number.to_be_bytes().to_vec().into())
        });
        let lane_read = lane.map(|(lane, _)| conditional_write::read(self.layout.meta_key(&lane.name)));
        let guard =
            [conditional_write::read(self.layout.identity_key()), conditional_write::read(self.fence_key())];
        TxnRequest {
            compare: self.guard().into_iter().chain(lane_compare).chain(change.compares()).collect(),
            success: change.requests().chain(lane_write).collect(),
            failure: guard.into_iter().chain(lane_read).chain(change.reads()).collect::<Vec<RequestOp>>(),
        }
    }

    /// Returns the preconditions of every write in this partition.
    fn guard(&self) -> [Compare; 2] {
        let fence = match &self.fence {
            Fence::Holder(home) => conditional_write::created_compare(self.fence_key(), home.fence()),
            Fence::Stamped(stamp) => conditional_write::value_compare(
                self.fence_key(),
                compare::Result::Equal,
                stamp.to_be_bytes().to_vec(),
            ),
        };
        [
            conditional_write::value_compare(
                self.layout.identity_key(),
                compare::Result::Equal,
                self.identity.to_vec(),
            ),
            fence,
        ]
    }

    fn fence_key(&self) -> Bytes {
        match &self.fence {
            Fence::Holder(_) => self.layout.holder_key(),
            Fence::Stamped(_) => self.layout.meta_key(super::open::FENCE_KEY),
        }
    }

    /// Returns the lane's position and the transaction's outcome, after its comparisons failed.
    fn outcome_with_lane(
        &self,
        lane: &Lane,
        number: u64,
        change: &ConditionalWrite,
        response: TxnResponse,
    ) -> (u64, CommitOutcome) {
        let mut found = conditional_write::read_results(response);
        let guarded = self.failed_guard(&mut found);
        let at = found.next().flatten().map_or(0, |kv| decode_position(&kv.value));
        let outcome = match guarded {
            Some(outcome) => outcome,
            // No other process writes here, so the change was written and its response lost. Without the fence this
            // would prove nothing, since two processes may use the same number.
            None if at == number => CommitOutcome::Written,
            None if at != lane.at => CommitOutcome::Replaced,
            None => change.unmet(found).map_or(CommitOutcome::FenceChanged, CommitOutcome::Conflict),
        };
        (at, outcome)
    }

    /// Returns the outcome for the failed precondition, from the values read.
    fn failed_guard(&self, found: &mut impl Iterator<Item = Option<KeyValue>>) -> Option<CommitOutcome> {
        let (identity, fence) = (found.next().flatten(), found.next().flatten());
        let fenced = match &self.fence {
            Fence::Holder(home) => fence.is_some_and(|kv| kv.create_revision as u64 == home.fence()),
            Fence::Stamped(stamp) => fence.is_some_and(|kv| kv.value[..] == stamp.to_be_bytes()),
        };
        match identity.is_some_and(|kv| kv.value == self.identity) {
            false => Some(CommitOutcome::Replaced),
            true => (!fenced).then_some(CommitOutcome::Fenced),
        }
    }

    /// Returns the outcome of a transaction without a lane, after its comparisons failed.
    fn outcome_without_lane(&self, change: &ConditionalWrite, response: TxnResponse) -> CommitOutcome {
        let mut found = conditional_write::read_results(response);
        let guarded = self.failed_guard(&mut found);
        guarded.unwrap_or_else(|| {
            change.unmet(found).map_or(CommitOutcome::FenceChanged, CommitOutcome::Conflict)
        })
    }

    fn free_lanes(&self) -> std::sync::MutexGuard<'_, Vec<Lane>> {
        self.free_lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark_reachable(&self) {
        if self.unreachable.swap(false, Relaxed) {
            tracing::info!(location = %self.client.location, "a partition of the store responds again");
        }
    }

    fn mark_unreachable(&self, problem: &str) {
        if !self.unreachable.swap(true, Relaxed) {
            tracing::warn!(location = %self.client.location, problem, "a partition of the store does not respond; its writes wait");
        }
    }
}

impl LaneGuard {
    /// Like [`Cluster::commit`], through this lane.
    pub(super) async fn commit(
        &mut self,
        number: u64,
        change: &ConditionalWrite,
        retry: &mut dyn RetryControl,
    ) -> Result<CommitOutcome, CallError> {
        self.cluster.commit(&mut self.lane, number, change, retry).await
    }
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        self.cluster.free_lanes().push(self.lane.clone());
    }
}

impl Lane {
    /// Returns an unused number, for changes without a revision.
    fn next(&mut self) -> u64 {
        self.highest_attempted = self.highest_attempted.max(self.at) + 1;
        self.highest_attempted
    }
}

fn decode_position(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_be_bytes)
}
