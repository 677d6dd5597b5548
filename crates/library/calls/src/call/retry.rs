//! Ends an attempt, and decides whether another one follows.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use fairmesh_model::arith::mix64;
use fairmesh_router::{EndpointPick, Outcome};

use super::{
    clock::nanos,
    context::CallContext,
    outcome::{AttemptOutcome, RetryDecision},
    state::{Call, PendingAttempt, ReportedAttempt, end_child},
};
use crate::discovery::{EndpointTransport, ServiceState};

/// Maximum number of attempts that one call makes at servers that do not hold its shard (ServiceRouter §4.1).
const MAX_WRONG_SHARD: u32 = 2;
/// Upper bound of the first random backoff. The bound doubles with each attempt.
const RETRY_BACKOFF: Duration = Duration::from_millis(10);

impl<T: EndpointTransport> Call<'_, T> {
    /// Records how the attempt ended and decides whether to retry. A granted retry is charged to the budget. The
    /// attempt is no longer outstanding.
    #[inline]
    pub fn finish(&mut self, outcome: AttemptOutcome, seed: u64) -> RetryDecision {
        self.end(outcome);
        match outcome {
            AttemptOutcome::Responded
            | AttemptOutcome::ServerError
            | AttemptOutcome::DeadlineExceeded
            | AttemptOutcome::CallerFailed
            | AttemptOutcome::Rejected => RetryDecision::Done,
            _ => self.retry(outcome, seed),
        }
    }

    /// Like [`finish`](Self::finish), after a response. A call that may be repeated is also retried for the statuses
    /// listed in its route.
    pub fn finish_response(&mut self, outcome: AttemptOutcome, status: u16, seed: u64) -> RetryDecision {
        let is_named =
            self.idempotent && self.actions.as_ref().is_some_and(|actions| actions.retries_on(status));
        if !is_named {
            return self.finish(outcome, seed);
        }
        self.end(outcome);
        self.retry(outcome, seed)
    }

    /// Records how the attempt ended if no retry is possible.
    #[inline]
    pub fn end(&mut self, outcome: AttemptOutcome) {
        let is_at_fault = outcome != AttemptOutcome::Rejected || !self.serves_others();
        if let Some(attempt) = &mut self.attempt {
            attempt.outcome = if is_at_fault { outcome.for_endpoint() } else { Outcome::Unknown };
            attempt.ended_at = attempt.clock.now();
            if let Some(reported) = &attempt.reported {
                report_end(reported, outcome, attempt.ended_at);
            }
            end_child(&mut self.child, attempt.clock);
        }
        if outcome == AttemptOutcome::Overloaded {
            self.target().has_refused.store(true, Relaxed);
        }
    }

    /// Whether the attempt's endpoint recently answered other calls and has failed none since.
    #[cold]
    fn serves_others(&self) -> bool {
        let Some(PendingAttempt { picked, clock, .. }) = &self.attempt else { return false };
        self.target().endpoint_stats().evidence(picked.index, clock.now()) == Some(true)
    }

    #[cold]
    fn retry(&mut self, outcome: AttemptOutcome, seed: u64) -> RetryDecision {
        let Some(PendingAttempt { picked, clock, .. }) = &self.attempt else { return RetryDecision::Done };
        let (picked, now) = (*picked, clock.now());
        let decision = self.retry_decision(outcome, &picked, now, seed);
        if matches!(decision, RetryDecision::Retry { .. } | RetryDecision::AwaitMap { .. }) {
            self.release();
        }
        decision
    }

    fn retry_decision(
        &mut self,
        outcome: AttemptOutcome,
        picked: &EndpointPick,
        now: u64,
        seed: u64,
    ) -> RetryDecision {
        let is_safe = match outcome {
            // The server relays the response of another server, and may have processed the call before that.
            AttemptOutcome::WrongShard { .. } if picked.shard.is_none() => return RetryDecision::Done,
            AttemptOutcome::WrongShard { version } => {
                return self.await_map(version, picked.map_version, now);
            }
            AttemptOutcome::Unavailable | AttemptOutcome::Reset | AttemptOutcome::TimedOut => self.idempotent,
            _ => true,
        };
        let made = self.attempts.saturating_sub(self.wrong_shard_attempts as usize);
        if !is_safe || made >= self.service.retry_budget.attempts() as usize {
            return RetryDecision::Done;
        }
        let after = match outcome {
            // Another endpoint is as good as this one was, so there is no reason to back off.
            AttemptOutcome::Stale
            | AttemptOutcome::Unreachable
            | AttemptOutcome::ConnectTimedOut
            | AttemptOutcome::TimedOut
            | AttemptOutcome::Overloaded
                if made == 1 =>
            {
                Duration::ZERO
            }
            _ => backoff(made, seed),
        };
        if self.left(now) <= after {
            return RetryDecision::Done;
        }
        if outcome != AttemptOutcome::Stale && !self.service.retry_budget.withdraw(now) {
            return RetryDecision::BudgetExhausted;
        }
        RetryDecision::Retry { after }
    }

    fn await_map(&mut self, version: u64, used: u64, now: u64) -> RetryDecision {
        self.wrong_shard_attempts += 1;
        // A server whose map is older than this caller's will soon be updated itself.
        let wait = if version > used { Duration::from_millis(500) } else { Duration::from_millis(20) };
        let at_most = wait.min(self.left(now) / 2);
        match self.wrong_shard_attempts <= MAX_WRONG_SHARD && !at_most.is_zero() {
            true => RetryDecision::AwaitMap { version: version.max(used + 1), at_most },
            false => RetryDecision::Done,
        }
    }

    /// Returns the delay after which a hedged attempt is made while the first one is in flight.
    #[inline]
    pub fn hedge_after(&self) -> Option<Duration> {
        let after = self.actions.as_ref()?.hedge_after()?;
        (self.idempotent && self.attempts == 1 && self.service.retry_budget.attempts() > 1).then_some(after)
    }

    /// Charges a hedged attempt to the retry budget. Returns `false` if the budget is exhausted.
    pub fn charge_retry(&self, now: u64) -> bool {
        self.service.retry_budget.withdraw(now)
    }

    /// Whether a further attempt may follow one that was sent. If so, the transport must keep a copy of the request.
    /// Call this before the first attempt, with the state that decides that attempt.
    pub fn may_be_sent_twice(&self, state: &ServiceState<T>, context: &CallContext) -> bool {
        // In HTTP/2, a server may refuse a request without processing it after the request was sent. A service whose
        // protocol is not yet known may use HTTP/2.
        let refusable = match state {
            ServiceState::Ready(ready) => {
                ready.upstream.protocol().is_multiplexed() || self.target().has_refused.load(Relaxed)
            }
            _ => true,
        };
        context.key.or(self.policy_key).is_some()
            || (self.service.retry_budget.attempts() > 1 && (self.idempotent || refusable))
    }
}

/// Counts the end of an attempt for traffic reports.
#[inline]
fn report_end(ReportedAttempt { counters, began }: &ReportedAttempt, outcome: AttemptOutcome, now: u64) {
    match outcome {
        AttemptOutcome::Responded
        | AttemptOutcome::ServerError
        | AttemptOutcome::Unavailable
        | AttemptOutcome::WrongShard { .. } => counters.record_answer(now.saturating_sub(*began) / 1_000),
        AttemptOutcome::Overloaded => counters.record_shed(),
        _ => {}
    }
}

fn backoff(made: usize, seed: u64) -> Duration {
    let longest = nanos(RETRY_BACKOFF) << made.saturating_sub(1).min(5);
    Duration::from_nanos(mix64(seed) % longest)
}
