use std::{
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{Decision, Refusal, RoundError};

/// Maximum number of decisions, and of refusals, that a status names per round. Further ones are only counted.
pub const MAX_SHOWN: usize = 20;

/// Present activity of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerState {
    /// Waits for a change or for its interval.
    #[default]
    Waiting,
    /// A round is in progress.
    Running,
    /// The last round failed, and the next one is delayed.
    BackingOff,
    /// The controller has records to write, but this control plane does not hold the writer lease.
    WithoutLease,
}

/// A round of a controller.
#[derive(Clone, Debug)]
pub struct Round {
    /// When the round began.
    pub began: Instant,
    /// Duration of the round.
    pub took: Duration,
    /// Records written or deleted.
    pub writes: usize,
    /// Effects applied in this process.
    pub effects: usize,
    /// The first [`MAX_SHOWN`] decisions. In shadow mode, the changes that would have been made.
    pub decided: Vec<String>,
    /// Number of decided changes.
    pub decided_total: usize,
    /// The first [`MAX_SHOWN`] refusals.
    pub refused: Vec<Refusal>,
    /// Number of refused changes.
    pub refused_total: usize,
    /// Why the round failed.
    pub problem: Option<String>,
}

impl Round {
    /// A round that begins now.
    pub(crate) fn begin() -> Self {
        Self {
            began: Instant::now(),
            took: Duration::ZERO,
            writes: 0,
            effects: 0,
            decided: Vec::new(),
            decided_total: 0,
            refused: Vec::new(),
            refused_total: 0,
            problem: None,
        }
    }

    pub(crate) fn note<E: Display>(&mut self, decision: &Decision<E>) {
        let ops = decision.writes.iter().flat_map(|write| &write.ops);
        let ops = ops.map(|op| match op.value {
            Some(_) => format!("write {}", op.key),
            None => format!("delete {}", op.key),
        });
        let mut decided = decision.effects.iter().map(ToString::to_string).chain(ops);
        self.decided = decided.by_ref().take(MAX_SHOWN).collect();
        self.decided_total = self.decided.len() + decided.count();
        self.refused = decision.refused.iter().take(MAX_SHOWN).cloned().collect();
        self.refused_total = decision.refused.len();
    }
}

/// Counters since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rounds that completed their decision.
    pub done: u64,
    /// Rounds that conflicted with another writer.
    pub conflicts: u64,
    /// Rounds that failed for other reasons.
    pub failed: u64,
    /// Rounds that missed their deadline.
    pub overdue: u64,
    /// Rounds that panicked.
    pub panicked: u64,
    /// Rounds that lacked the writer lease.
    pub without_lease: u64,
    /// Records written or deleted.
    pub writes: u64,
    /// Effects applied.
    pub effects: u64,
}

/// Status of a controller for operators.
#[derive(Clone, Debug)]
pub struct ControllerStatus {
    /// The name of the controller.
    pub name: &'static str,
    /// Whether the controller decides but changes nothing.
    pub is_shadow: bool,
    /// Current activity.
    pub state: ControllerState,
    /// The last round that ended.
    pub last: Option<Round>,
    /// When a round last changed something.
    pub changed: Option<Instant>,
    /// When the next round begins; `None` if only a change starts one.
    pub next: Option<Instant>,
    /// Consecutive failed rounds; conflicts and missing leases do not count.
    pub failures: u32,
    /// Counters since the start of the process.
    pub totals: Totals,
}

/// The statuses of all controllers of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Statuses(Arc<Mutex<Vec<ControllerStatus>>>);

impl Statuses {
    /// The current statuses, sorted by name.
    pub fn read(&self) -> Vec<ControllerStatus> {
        let mut statuses = self.lock().clone();
        statuses.sort_by_key(|status| status.name);
        statuses
    }

    pub(crate) fn add(&self, name: &'static str, is_shadow: bool) -> StatusHandle {
        let mut statuses = self.lock();
        statuses.push(ControllerStatus {
            name,
            is_shadow,
            state: ControllerState::default(),
            last: None,
            changed: None,
            next: None,
            failures: 0,
            totals: Totals::default(),
        });
        StatusHandle { index: statuses.len() - 1, all: self.clone() }
    }

    /// Locks the statuses and ignores poisoning, since each status is valid at any time.
    fn lock(&self) -> MutexGuard<'_, Vec<ControllerStatus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The status of one controller. Statuses are only added, so the index stays valid.
#[derive(Debug)]
pub(crate) struct StatusHandle {
    all: Statuses,
    index: usize,
}

impl StatusHandle {
    pub(crate) fn update(&self, change: impl FnOnce(&mut ControllerStatus)) {
        change(&mut self.all.lock()[self.index]);
    }

    pub(crate) fn begin(&self) {
        self.update(|status| (status.state, status.next) = (ControllerState::Running, None));
    }

    /// Stores a finished round and returns the previous one.
    pub(crate) fn end(&self, round: Round, result: &Result<(), RoundError>) -> Option<Round> {
        let mut statuses = self.all.lock();
        let status = &mut statuses[self.index];
        status.totals.count(&round, result);
        status.failures = match result {
            Ok(()) => 0,
            Err(error) if error.is_failure() => status.failures.saturating_add(1),
            Err(_) => status.failures,
        };
        if round.writes + round.effects > 0 {
            status.changed = Some(Instant::now());
        }
        status.last.replace(round)
    }

    pub(crate) fn failures(&self) -> u32 {
        self.all.lock()[self.index].failures
    }
}

impl Totals {
    fn count(&mut self, round: &Round, result: &Result<(), RoundError>) {
        *match result {
            Ok(()) => &mut self.done,
            Err(RoundError::Conflict(_)) => &mut self.conflicts,
            Err(RoundError::WithoutLease) => &mut self.without_lease,
            Err(RoundError::Overdue(_)) => &mut self.overdue,
            Err(RoundError::Panicked(_)) => &mut self.panicked,
            Err(RoundError::Facts(_) | RoundError::Effect { .. } | RoundError::Write { .. }) => {
                &mut self.failed
            }
        } += 1;
        self.writes += round.writes as u64;
        self.effects += round.effects as u64;
    }
}
