use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use fairmesh_model::Retries;

/// What one retry costs, so that a call may deposit a hundredth of it.
const RETRY: i64 = 1000;
/// How many seconds' worth of the floor may be saved up: a burst after a quiet time is not a storm.
const SAVED_SECONDS: i64 = 10;
/// How many calls' worth of deposits may be saved up.
const SAVED_CALLS: i64 = 1000;

/// A token bucket that keeps retries a share of calls, so that they cannot multiply an overload. Waits before a retry
/// are inside: a retry is paid for when it is decided.
///
/// It holds the policy's numbers itself, so that a call finds all of this in one cache line.
#[derive(Debug, Default)]
pub struct Budget {
    /// Saved up by calls, in thousandths of a retry.
    earned: AtomicI64,
    /// Left of the floor, in thousandths of a retry; refilled with time.
    floor: AtomicI64,
    /// When the floor was refilled, in nanoseconds of the caller's clock.
    refilled: AtomicU64,
    attempts: AtomicU32,
    percent: AtomicU32,
    per_second: AtomicU32,
}

impl Budget {
    /// Goes by what the policy says from now on; without any, nothing is tried again.
    pub fn rule(&self, retries: &Retries) {
        self.attempts.store(retries.attempts, Relaxed);
        self.percent.store(retries.budget_percent, Relaxed);
        self.per_second.store(retries.budget_floor, Relaxed);
    }

    /// Tries that a call may make in all.
    #[inline]
    pub fn attempts(&self) -> u32 {
        self.attempts.load(Relaxed)
    }

    /// A call began.
    #[inline]
    pub fn deposit(&self) {
        let deposit = i64::from(self.percent.load(Relaxed)) * RETRY / 100;
        if deposit > 0 && self.earned.load(Relaxed) < deposit * SAVED_CALLS {
            self.earned.fetch_add(deposit, Relaxed);
        }
    }

    /// Takes one retry out; `false` when there is none, and then the call must end as it stands.
    pub fn withdraw(&self, now: u64) -> bool {
        self.refill(now);
        take(&self.floor) || take(&self.earned)
    }

    fn refill(&self, now: u64) {
        let rate = i64::from(self.per_second.load(Relaxed)) * RETRY;
        let before = self.refilled.load(Relaxed);
        // One of several racing callers refills; `before` is 0 only the first time, when the floor starts full.
        if now <= before || self.refilled.compare_exchange(before, now, Relaxed, Relaxed).is_err() {
            return;
        }
        let full = rate * SAVED_SECONDS;
        let seconds = SAVED_SECONDS * 1_000_000_000;
        let elapsed =
            if before == 0 { seconds } else { i64::try_from(now - before).unwrap_or(seconds).min(seconds) };
        let gained = i64::try_from(i128::from(rate) * i128::from(elapsed) / 1_000_000_000).unwrap_or(full);
        let _ = self.floor.fetch_update(Relaxed, Relaxed, |left| Some((left + gained).min(full)));
    }
}

fn take(tokens: &AtomicI64) -> bool {
    tokens.fetch_update(Relaxed, Relaxed, |left| (left >= RETRY).then_some(left - RETRY)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ruled(budget_percent: u32, budget_floor: u32) -> Budget {
        let budget = Budget::default();
        budget.rule(&Retries { attempts: 3, budget_percent, budget_floor });
        budget
    }

    fn drain(budget: &Budget, now: u64) -> u32 {
        (0..100_000).take_while(|_| budget.withdraw(now)).count().try_into().unwrap()
    }

    #[test]
    fn retries_stay_a_share_of_calls() {
        let budget = ruled(20, 0);
        assert_eq!(drain(&budget, SECOND), 0, "nothing was earned");
        (0..100).for_each(|_| budget.deposit());
        assert_eq!(drain(&budget, SECOND), 20);
        (0..1_000_000).for_each(|_| budget.deposit());
        assert_eq!(drain(&budget, SECOND), 200, "savings are bounded");
    }

    #[test]
    fn the_floor_comes_back_with_time() {
        let budget = ruled(0, 2);
        assert_eq!(drain(&budget, SECOND), 20);
        assert_eq!(drain(&budget, SECOND), 0);
        assert_eq!(drain(&budget, SECOND + SECOND / 2), 1);
        assert_eq!(drain(&budget, 1000 * SECOND), 20);
    }
}
