use std::{collections::BTreeSet, future::Future, mem, sync::Arc, time::Duration};

use fairmesh_model::arith::mix64;
use fairmesh_rib::{Node, follower::Backoff};
use fairmesh_store::Store;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::watch,
    task::block_in_place,
    time::{Instant, timeout},
};

use crate::{
    Controller, ControllerState, Now, Round, RoundError, Statuses, Wake, catch_panic::catch_panic,
    fence::Fence, round::write_all, schedule::Schedule, status::StatusHandle,
};

/// Maximum pause after the first failed round. It doubles with each consecutive failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of consecutive rounds that are repeated at once because another writer was faster. Further rounds
/// are delayed, as after failures.
const MAX_CONFLICTS: u32 = 8;

/// Environment of the controllers.
#[derive(Debug)]
pub struct RuntimeConfig {
    /// The records that controllers read.
    pub node: Node,
    /// The store that controllers write to. A write must return only once `node` has applied it.
    pub store: Arc<dyn Store>,
    /// Time until which no other process can write to the store; see [`Store::lease_expiry`].
    pub lease_expiry: Option<watch::Receiver<Instant>>,
    /// Returns the time in milliseconds since 1970.
    pub wall_clock: fn() -> u64,
    /// Any number. It spreads the retries of several control planes.
    pub seed: u64,
    /// Names of controllers that decide but do not execute their decisions.
    pub shadow: BTreeSet<&'static str>,
}

/// Runs controllers. Clones share their statuses.
#[derive(Clone, Debug)]
pub struct Runtime {
    config: Arc<RuntimeConfig>,
    statuses: Statuses,
}

impl Runtime {
    /// Creates a runtime without controllers.
    pub fn new(config: RuntimeConfig) -> Self {
        Self { config: Arc::new(config), statuses: Statuses::default() }
    }

    /// The statuses of the controllers.
    pub fn statuses(&self) -> Statuses {
        self.statuses.clone()
    }

    /// Adds a controller. It runs while the returned future is polled; the future never completes.
    pub fn run<C: Controller>(&self, controller: C) -> impl Future<Output = ()> + Send + 'static {
        let is_shadow = self.config.shadow.contains(C::NAME);
        let status = self.statuses.add(C::NAME, is_shadow);
        let task = ControllerTask {
            pristine: controller.clone(),
            schedule: Schedule::new(controller.triggers(), &self.config.node),
            fence: Fence::new(self.config.lease_expiry.clone()),
            seed: C::NAME.bytes().fold(self.config.seed, |seed, byte| mix64(seed ^ u64::from(byte))),
            controller,
            config: Arc::clone(&self.config),
            is_shadow,
            status,
            conflicts: 0,
            has_failed: false,
        };
        task.run()
    }
}

/// A running controller.
struct ControllerTask<C> {
    controller: C,
    /// A clone of the controller, made before the first round.
    pristine: C,
    config: Arc<RuntimeConfig>,
    schedule: Schedule,
    fence: Fence,
    status: StatusHandle,
    is_shadow: bool,
    seed: u64,
    /// Number of consecutive conflicts.
    conflicts: u32,
    /// Whether the last round failed.
    has_failed: bool,
}

impl<C: Controller> ControllerTask<C> {
    async fn run(mut self) {
        loop {
            let next = self.schedule.next();
            self.status.update(|status| status.next = next);
            let wake = self.schedule.wait().await;
            self.status.begin();
            let mut round = Round::begin();
            let began = round.began;
            let result = self.bounded_round(wake, &mut round).await;
            round.took = began.elapsed();
            round.problem = result.as_ref().err().map(ToString::to_string);
            let before = self.status.end(round.clone(), &result);
            self.log(&round, before.as_ref(), &result);
            self.schedule_next(began, result).await;
        }
    }

    /// Runs a round within its deadline, and catches panics.
    async fn bounded_round(&mut self, wake: Wake, round: &mut Round) -> Result<(), RoundError> {
        match timeout(C::DEADLINE, catch_panic(self.round(wake, round))).await {
            Ok(Ok(result)) => result,
            Ok(Err(message)) => {
                self.controller = self.pristine.clone();
                Err(RoundError::Panicked(message))
            }
            Err(_) => Err(RoundError::Overdue(C::DEADLINE)),
        }
    }

    async fn round(&mut self, wake: Wake, round: &mut Round) -> Result<(), RoundError> {
        let Self { controller, config, .. } = self;
        // In shadow mode decisions are not executed, so the cause of the round remains.
        let wake = if self.is_shadow { Wake::Changed } else { wake };
        let facts = controller.read_facts(&config.node, wake).await.map_err(RoundError::Facts)?;
        let now = Now { at: Instant::now(), wall_ms: (config.wall_clock)() };
        let decision = beside_tasks(|| controller.reconcile(facts, now));
        round.note(&decision);
        if self.is_shadow {
            return Ok(());
        }
        let mut result = Ok(());
        for effect in decision.effects {
            let text = effect.to_string();
            match controller.apply(effect).await {
                Ok(()) => round.effects += 1,
                Err(problem) => result = Err(RoundError::Effect { effect: text, problem }),
            }
        }
        if decision.writes.is_empty() {
            return result;
        }
        if !self.fence.is_held() {
            return result.and(Err(RoundError::WithoutLease));
        }
        let written = write_all(&config.store, C::NAME, decision.writes, |subject, ops| match ops {
            Some(ops) => {
                round.writes += ops;
                controller.written(subject);
            }
            None => controller.not_written(subject),
        });
        let written = written.await;
        result.and(written)
    }

    /// Schedules the next round.
    async fn schedule_next(&mut self, began: Instant, result: Result<(), RoundError>) {
        let is_conflict = matches!(result, Err(RoundError::Conflict(_)));
        self.conflicts = if is_conflict { self.conflicts + 1 } else { 0 };
        let state = match result {
            Ok(()) => {
                self.schedule.succeeded(began);
                ControllerState::Waiting
            }
            Err(RoundError::Conflict(conflict)) if self.conflicts <= MAX_CONFLICTS => {
                // The next round must see the other writer's change.
                let applied = self.config.node.wait_applied(conflict.current);
                // If the node lags longer, it provides old facts and the round conflicts again.
                let _ = timeout(C::DEADLINE, applied).await;
                self.schedule.retry_after(Duration::ZERO);
                ControllerState::Waiting
            }
            Err(RoundError::WithoutLease) => {
                self.status.update(|status| status.state = ControllerState::WithoutLease);
                // Effects need no lease, so a change still starts a round.
                self.schedule.postpone();
                tokio::select! {
                    () = self.fence.wait_held() => {}
                    () = self.schedule.wait_for_trigger() => {}
                }
                self.schedule.retry_after(Duration::ZERO);
                self.schedule.keep_gap(began);
                ControllerState::WithoutLease
            }
            Err(_) => {
                self.seed = mix64(self.seed);
                let failures = self.status.failures().max(self.conflicts.saturating_sub(MAX_CONFLICTS));
                let backoff = Backoff { first: FIRST_PAUSE, longest: C::LONGEST_PAUSE };
                self.schedule.retry_after(backoff.delay(failures, self.seed));
                ControllerState::BackingOff
            }
        };
        self.status.update(|status| status.state = state);
    }

    /// Logs what has changed since the previous round.
    fn log(&mut self, round: &Round, before: Option<&Round>, result: &Result<(), RoundError>) {
        let controller = C::NAME;
        let former = before.and_then(|before| before.problem.as_ref());
        let has_failed = result.as_ref().is_err_and(RoundError::is_failure);
        let had_failed = mem::replace(&mut self.has_failed, has_failed);
        match result {
            Err(error @ RoundError::Panicked(_)) => {
                tracing::error!(controller, %error, "a round of a controller failed")
            }
            Err(error) if error.is_failure() && former != round.problem.as_ref() => {
                tracing::warn!(controller, %error, "a round of a controller failed; it is repeated");
            }
            Ok(()) if had_failed => {
                tracing::info!(controller, "a round of a controller succeeded again")
            }
            _ => {}
        }
        let is_new = |text: &&String| !before.is_some_and(|before| before.decided.contains(text));
        for decided in round.decided.iter().filter(|_| self.is_shadow).filter(is_new) {
            tracing::info!(controller, decided, "shadow mode: the change is not made");
        }
        for refusal in &round.refused {
            if !before.is_some_and(|before| before.refused.contains(refusal)) {
                let (subject, reason) = (&refusal.subject, &refusal.reason);
                tracing::warn!(controller, subject, reason, "a controller leaves it as it is");
            }
        }
    }
}

/// Decides without blocking other tasks of this thread: they move to another thread, because decisions may take
/// seconds. In a single-threaded runtime, the tasks wait.
fn beside_tasks<T>(decide: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(decide),
        _ => decide(),
    }
}

#[cfg(test)]
mod tests;
