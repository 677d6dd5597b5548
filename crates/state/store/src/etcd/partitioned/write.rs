//! Writes a batch to the partitions that it touches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fairmesh_rib::{Batch, Conflict, Expect, Op};
use tokio::{
    sync::{OwnedRwLockReadGuard, SemaphorePermit, oneshot},
    time::{Instant, sleep, timeout},
};

use super::{
    super::{call_error::CallError, client},
    cluster::{Cluster, CommitOutcome, LaneGuard, RetryControl},
    conditional_write::ConditionalWrite,
    intent,
    key_locks::KeyLockGuard,
    partition_map::HOME,
    state::{PartitionedState, Partitions},
};
use crate::WriteError;

/// Time after which the caller of a write gets an error.
const CALLER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which batches in other partitions wait for an earlier batch to be settled. It doubles after each timeout,
/// so that it eventually suffices for a slow partition.
const PUBLISH_WAIT: Duration = Duration::from_millis(100);
/// Maximum wait after doubling.
const MAX_PUBLISH_WAIT: Duration = Duration::from_secs(10);

/// Sends the result of a batch to its caller, at most once.
#[derive(Debug)]
pub(super) struct WriteResponder<'a> {
    core: &'a PartitionedState,
    response: Option<oneshot::Sender<Result<u64, WriteError>>>,
    since: Instant,
}

/// Locks, lanes and gates that a batch must hold to be sent.
struct WriteLocks<'a> {
    partitions: Arc<Partitions>,
    parts: BTreeMap<usize, Vec<Op>>,
    lanes: BTreeMap<usize, LaneGuard>,
    _multi_partition: Option<SemaphorePermit<'a>>,
    _gates: Vec<OwnedRwLockReadGuard<()>>,
    _keys: KeyLockGuard<'a>,
}

impl<'a> WriteResponder<'a> {
    pub(super) fn new(
        core: &'a PartitionedState,
        response: oneshot::Sender<Result<u64, WriteError>>,
    ) -> Self {
        Self { core, response: Some(response), since: Instant::now() }
    }

    /// Sends the result if none was sent before.
    pub(super) fn respond(&mut self, result: Result<u64, WriteError>) {
        if let Some(response) = self.response.take() {
            // A cancelled caller does not cancel the batch.
            let _ = response.send(result);
        }
    }
}

impl RetryControl for WriteResponder<'_> {
    fn should_give_up(&mut self, problem: &str) -> bool {
        let location = self.core.location();
        let stopped = self.core.home.fatal_error().is_some();
        if stopped || self.since.elapsed() > CALLER_TIMEOUT {
            self.respond(Err(WriteError::Unknown { location, problem: problem.into() }));
        }
        stopped
    }
}

impl PartitionedState {
    /// Writes a batch and responds to the caller. Continues after the response until the outcome is certain.
    pub(super) async fn write(&self, batch: Batch, mut responder: WriteResponder<'_>) {
        let result = self.write_batch(&batch, &mut responder).await;
        responder.respond(result);
    }

    async fn write_batch(
        &self,
        batch: &Batch,
        responder: &mut WriteResponder<'_>,
    ) -> Result<u64, WriteError> {
        let late = |_| WriteError::Unavailable {
            location: self.location(),
            problem: "too many writes wait for a partition that does not respond".into(),
        };
        let locks = timeout(CALLER_TIMEOUT, self.acquire(batch)).await.map_err(late)?;
        if let Some(reason) = self.home.fatal_error() {
            return Err(WriteError::Refused { location: self.location(), problem: reason.into() });
        }
        let mut wait = PUBLISH_WAIT;
        let mut locks = locks;
        // Whether the batch will certainly be written, although its final revision may be unknown.
        let mut decided = false;
        loop {
            let first = locks.lanes.keys().next().copied().unwrap_or(HOME);
            let number = self.sequence.allocate(first, Instant::now() + wait).await;
            let attempt = self.attempt(&mut locks, batch, (number, decided), responder).await;
            match attempt {
                Ok(()) => {
                    self.track_writes(batch);
                    let published = self.sequence.settle(number, Some(batch.clone().into_commit(number)));
                    if published {
                        responder.respond(Ok(number));
                    }
                    if locks.parts.len() > 1 {
                        self.delete_intent(&locks.partitions.clusters[HOME], number).await;
                    }
                    if published {
                        return Ok(number);
                    }
                    decided = true;
                    wait = (wait * 2).min(MAX_PUBLISH_WAIT);
                }
                Err(error) => {
                    self.settle_failed(number, &error);
                    // The batch is written under an earlier revision, so the caller must not get an error that denies
                    // the write.
                    if !decided {
                        return Err(error);
                    }
                    if responder
                        .should_give_up("it was written too late to be published, and is not rewritten yet")
                    {
                        return Err(error);
                    }
                    sleep(client::backoff(1)).await;
                }
            }
        }
    }

    /// Settles a revision without a commit. If the outcome is unknown, the revision stays pending and the store
    /// fails. Otherwise readers of a later revision would never receive the batch, and the next process would not
    /// know that they lack it.
    fn settle_failed(&self, number: u64, error: &WriteError) {
        if let (WriteError::Unknown { problem, .. }, None) = (error, self.home.fatal_error()) {
            self.home.fail(format!("the outcome of a batch is unknown ({problem}); start the process again"));
        }
        if self.home.fatal_error().is_none() {
            self.sequence.settle(number, None);
        }
    }

    /// Waits until the batch can be sent: its keys are locked, lanes are free, and no move affects its partitions.
    async fn acquire(&self, batch: &Batch) -> WriteLocks<'_> {
        // Keys are locked before lanes. A batch that waits for a key of a multi-partition batch may wait for an
        // unresponsive partition, and must not use up the lanes of a responsive one meanwhile.
        let keys = self.key_locks.lock(batch.ops.iter().map(|op| op.key.clone()).collect()).await;
        loop {
            let partitions = self.partitions();
            let parts = partitions.divide(batch);
            let multi_partition = match parts.len() {
                0 | 1 => None,
                _ => self.multi_partition.acquire().await.ok(),
            };
            let home = multi_partition.as_ref().map(|_| HOME);
            let touched: BTreeSet<_> = home.into_iter().chain(parts.keys().copied()).collect();
            // Partitions are taken in order, to prevent deadlocks. Lanes are taken before gates: few batches then
            // hold a gate, and the writer of a gate waits only for these.
            let mut lanes = BTreeMap::new();
            for part in touched {
                lanes.insert(part, partitions.clusters[part].acquire_lane().await);
            }
            let mut gates = Vec::with_capacity(parts.len());
            for part in parts.keys() {
                gates.push(partitions.clusters[*part].gate.clone().read_owned().await);
            }
            // A move may have ended during the wait.
            if Arc::ptr_eq(&partitions, &self.partitions()) {
                return WriteLocks {
                    partitions,
                    parts,
                    lanes,
                    _multi_partition: multi_partition,
                    _gates: gates,
                    _keys: keys,
                };
            }
        }
    }

    /// Writes the batch under a new revision, or writes nothing.
    async fn attempt(
        &self,
        locks: &mut WriteLocks<'_>,
        batch: &Batch,
        (number, decided): (u64, bool),
        responder: &mut WriteResponder<'_>,
    ) -> Result<(), WriteError> {
        let WriteLocks { partitions, parts, lanes, .. } = locks;
        if parts.len() == 1 {
            let Some((part, ops)) = parts.first_key_value() else { return Ok(()) };
            let Some(lane) = lanes.get_mut(part) else { return Ok(()) };
            let cluster = &partitions.clusters[*part];
            let change = ConditionalWrite::puts(&cluster.layout, ops, number);
            let change = if decided { change } else { change.with_conditions(&cluster.layout, ops) };
            let outcome = lane.commit(number, &change, responder).await;
            return self.write_result(cluster, ops, outcome);
        }
        if !decided {
            self.check(partitions, parts, batch).await?;
        }
        let home = &partitions.clusters[HOME];
        let elsewhere: Vec<_> = parts.iter().filter(|(part, _)| **part != HOME).collect();
        let own = parts.get(&HOME).map_or(&[][..], Vec::as_slice);
        let change = ConditionalWrite::puts(&home.layout, own, number)
            .with_write(intent::key(&home.layout, number), Some(intent::encode(&elsewhere)));
        let Some(lane) = lanes.get_mut(&HOME) else { return Ok(()) };
        let outcome = lane.commit(number, &change, responder).await;
        self.write_result(home, own, outcome)?;
        // The batch is committed now and must be applied in every partition.
        for (part, ops) in elsewhere {
            let Some(lane) = lanes.get_mut(part) else { continue };
            let cluster = &partitions.clusters[*part];
            let change = ConditionalWrite::puts(&cluster.layout, ops, number);
            self.commit_until_done(lane, number, &change, responder).await?;
        }
        Ok(())
    }

    /// Checks the expectations of a multi-partition batch. Its keys are locked. If another process takes over
    /// meanwhile, it holds the home, so that this batch cannot be committed.
    async fn check(
        &self,
        partitions: &Partitions,
        parts: &BTreeMap<usize, Vec<Op>>,
        batch: &Batch,
    ) -> Result<(), WriteError> {
        let mut conflicts = Vec::new();
        let expecting = parts.iter().filter(|(_, ops)| ops.iter().any(|op| op.expect != Expect::Any));
        for (part, ops) in expecting {
            let cluster = &partitions.clusters[*part];
            let conditions =
                ConditionalWrite::default().with_conditions(&cluster.layout, ops).only_conditions();
            let outcome = cluster.check(&conditions).await.map_err(CallError::into_unavailable);
            match self.write_result(cluster, ops, outcome) {
                Ok(()) => {}
                Err(WriteError::Conflict(conflict)) => conflicts.push(conflict),
                Err(error) => return Err(error),
            }
        }
        let first = conflicts
            .into_iter()
            .min_by_key(|conflict| batch.ops.iter().position(|op| op.key == conflict.key));
        first.map_or(Ok(()), |conflict| Err(conflict.into()))
    }

    /// Writes a committed change with unlimited retries.
    pub(super) async fn commit_until_done(
        &self,
        lane: &mut LaneGuard,
        number: u64,
        change: &ConditionalWrite,
        retry: &mut dyn RetryControl,
    ) -> Result<(), WriteError> {
        loop {
            let outcome = lane.commit(number, change, retry).await;
            let cluster = lane.cluster.clone();
            let error = match self.write_result(&cluster, &[], outcome) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if retry.should_give_up("the batch is committed, and not applied in every partition yet") {
                return Err(error);
            }
            sleep(client::backoff(1)).await;
        }
    }

    /// Deletes the intent of a batch that is applied everywhere. The keys stay locked until then, because a later
    /// process would apply the intent again.
    pub(super) async fn delete_intent(&self, home: &Cluster, number: u64) {
        while self.home.fatal_error().is_none() {
            match home.write_meta(intent::key(&home.layout, number), None).await {
                Ok(CommitOutcome::Written) => return,
                Ok(_) => {}
                Err(failure) => {
                    let problem = failure.message();
                    tracing::warn!(
                        number,
                        problem,
                        "the intent of an applied batch cannot be deleted; retrying"
                    );
                }
            }
            sleep(client::backoff(1)).await;
        }
    }

    /// Returns the result of the operations in one partition.
    fn write_result(
        &self,
        cluster: &Cluster,
        ops: &[Op],
        outcome: Result<CommitOutcome, CallError>,
    ) -> Result<(), WriteError> {
        match outcome {
            Ok(CommitOutcome::Written) => Ok(()),
            Ok(CommitOutcome::Conflict(unmet)) => {
                let mut expected = ops.iter().filter(|op| op.expect != Expect::Any);
                match expected.nth(unmet.condition) {
                    Some(op) => Err(WriteError::Conflict(Conflict {
                        key: op.key.clone(),
                        expected: op.expect,
                        found: unmet.found,
                        current: self.sequence.committed(),
                    })),
                    None => Err(self.rejection(cluster, CommitOutcome::Replaced)),
                }
            }
            Ok(outcome) => Err(self.rejection(cluster, outcome)),
            Err(failure) => {
                let bytes =
                    ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, |value| value.len()));
                // An expectation needs two comparisons, and the lane one more operation.
                Err(failure.into_write_error(&cluster.client.location, 2 * ops.len() + 3, bytes.sum()))
            }
        }
    }
}
