use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use fairmesh_model::Retries;

/// Cost of one retry in thousandths. A call can therefore deposit as little as a hundredth of a retry.
const RETRY_COST: i64 = 1000;
/// Maximum accumulation of the floor, in seconds. A burst of retries after a quiet time is not a retry storm.
const MAX_FLOOR_SECONDS: i64 = 10;
/// Maximum number of calls whose deposits accumulate.
const MAX_SAVED_CALLS: i64 = 1000;

/// A token bucket that limits retries to a share of calls, so that retries cannot amplify an overload. A retry is
/// charged when it is decided, before its backoff.
///
/// The budget holds the policy's numbers itself, so that everything a call reads is in one cache line.
#[derive(Debug, Default)]
pub struct RetryBudget {
    /// Deposits of calls, in thousandths of a retry.
    deposited: AtomicI64,
    /// Remaining floor, in thousandths of a retry; refilled over time.
    floor: AtomicI64,
    /// Time at which the floor was last refilled, in nanoseconds of the caller's clock.
    refilled: AtomicU64,
    attempts: AtomicU32,
    percent: AtomicU32,
    per_second: AtomicU32,
}

impl RetryBudget {
    /// Applies the policy from now on. Before the first policy, nothing is retried.
    pub fn configure(&self, retries: &Retries) {
        self.attempts.store(retries.attempts, Relaxed);
        self.percent.store(retries.budget_percent, Relaxed);
        self.per_second.store(retries.budget_floor, Relaxed);
    }

    /// Maximum number of attempts of a call.
    #[inline]
    pub fn attempts(&self) -> u32 {
        self.attempts.load(Relaxed)
    }

    /// Deposits the share of one call that begins.
    #[inline]
    pub fn deposit(&self) {
        let deposit = i64::from(self.percent.load(Relaxed)) * RETRY_COST / 100;
        if deposit > 0 && self.deposited.load(Relaxed) < deposit * MAX_SAVED_CALLS {
            self.deposited.fetch_add(deposit, Relaxed);
        }
    }

    /// Withdraws one retry. Returns `false` if the budget is exhausted; the call must then end with its present result.
    pub fn withdraw(&self, now: u64) -> bool {
        self.refill(now);
        take(&self.floor) || take(&self.deposited)
    }

    fn refill(&self, now: u64) {
        let rate = i64::from(self.per_second.load(Relaxed)) * RETRY_COST;
        let before = self.refilled.load(Relaxed);
        // Only one of several racing callers refills. `before` is 0 only the first time, when the floor starts full.
        if now <= before || self.refilled.compare_exchange(before, now, Relaxed, Relaxed).is_err() {
            return;
        }
        let full = rate * MAX_FLOOR_SECONDS;
        let seconds = MAX_FLOOR_SECONDS * 1_000_000_000;
        let elapsed =
            if before == 0 { seconds } else { i64::try_from(now - before).unwrap_or(seconds).min(seconds) };
        let gained = i64::try_from(i128::from(rate) * i128::from(elapsed) / 1_000_000_000).unwrap_or(full);
        let _ = self.floor.fetch_update(Relaxed, Relaxed, |left| Some((left + gained).min(full)));
    }
}

fn take(tokens: &AtomicI64) -> bool {
    tokens.fetch_update(Relaxed, Relaxed, |left| (left >= RETRY_COST).then_some(left - RETRY_COST)).is_ok()
}
