use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{BalancerConfig, Outcome};

/// Answers after which older ones count half, in samples that a share needs at least.
const WINDOW_SAMPLES: u64 = 4;
/// Penalties double this often.
const MAX_DOUBLINGS: u32 = 16;
/// For how long an endpoint is passed over that has no room, in nanoseconds, unless a call there ends before.
const OVERLOAD_EJECTION: u64 = 20_000_000;
/// How often the first penalty for a share is doubled already.
const FAILURE_RATE_DOUBLINGS: u32 = 4;

/// What this client holds against one endpoint. Kept apart from its slot, since few have any.
///
/// Two kinds of evidence: a row of failures, which one good answer refutes, and a share of failures among many answers
/// that lies far above the others', which it does not.
#[derive(Debug, Default)]
pub(crate) struct OutlierState {
    /// Failures in a row.
    consecutive_failures: AtomicU32,
    /// Until when the endpoint is avoided because it cannot be reached, which is beyond doubt.
    unreachable_until: AtomicU64,
    /// Until when it is avoided because of how it answers, which may be the callers' fault.
    failing_until: AtomicU64,
    /// How often its share of failures has spoken against it.
    rate_ejections: AtomicU32,
    /// When it is to have its whole share again.
    ramp_end: AtomicU64,
    window: ResponseWindow,
}

/// Answers (low half) and failures among them (high half).
#[derive(Debug, Default)]
struct ResponseWindow(AtomicU64);

impl ResponseWindow {
    fn get(&self) -> (u64, u64) {
        let word = self.0.load(Relaxed);
        (word & u64::from(u32::MAX), word >> 32)
    }

    /// Counts an answer; beyond `capacity`, what was counted before weighs half.
    fn record(&self, failed: bool, capacity: u64) {
        let step = 1 | u64::from(failed) << 32;
        let (responses, failures) = self.get();
        match responses >= capacity {
            false => drop(self.0.fetch_add(step, Relaxed)),
            true => self.0.store(((responses / 2) | ((failures / 2) << 32)) + step, Relaxed),
        }
    }

    fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

impl OutlierState {
    pub(crate) fn consecutive_failures(&self) -> u32 {
        self.consecutive_failures.load(Relaxed)
    }

    /// Until when the endpoint is avoided; in a panic, only what is beyond doubt counts.
    pub(crate) fn ejected_until(&self, panic: bool) -> u64 {
        let unreachable_until = self.unreachable_until.load(Relaxed);
        if panic { unreachable_until } else { unreachable_until.max(self.failing_until.load(Relaxed)) }
    }

    /// The part of a share, in 1/256, that the endpoint has to do without while it returns.
    pub(crate) fn ramp_remaining(&self, now: u64) -> u64 {
        let (ramp_end, until) = (self.ramp_end.load(Relaxed), self.failing_until.load(Relaxed));
        let (left, duration) = (ramp_end.saturating_sub(now), ramp_end.saturating_sub(until));
        if left == 0 || duration == 0 { 0 } else { (left.min(duration) << 8) / duration }
    }

    /// Counts an answer; says whether nothing is held against the endpoint any more.
    pub(crate) fn record_success(&self, config: &BalancerConfig) -> bool {
        self.consecutive_failures.store(0, Relaxed);
        self.unreachable_until.store(0, Relaxed);
        if self.rate_ejections.load(Relaxed) == 0 {
            // Only a row has spoken, and it is broken.
            self.failing_until.store(0, Relaxed);
        }
        self.window.record(false, config.failure_window());
        let (responses, failures) = self.window.get();
        let is_cleared = failures == 0
            && (self.rate_ejections.load(Relaxed) == 0 || responses >= u64::from(config.min_samples));
        is_cleared || !config.compares_failure_rates()
    }

    /// Counts a failure.
    pub(crate) fn record_failure(&self, outcome: Outcome, now: u64, config: &BalancerConfig) {
        let consecutive_failures = self.consecutive_failures.fetch_add(1, Relaxed).saturating_add(1);
        if outcome == Outcome::Unreachable {
            self.unreachable_until
                .fetch_max(now.saturating_add(config.ejection_time(consecutive_failures - 1)), Relaxed);
        } else if let Some(over) =
            consecutive_failures.checked_sub(config.consecutive).filter(|_| config.consecutive > 0)
        {
            self.failing_until.fetch_max(now.saturating_add(config.ejection_time(over)), Relaxed);
        }
        self.window.record(true, config.failure_window());
    }

    /// Has no room for another call now, which speaks neither of failures in a row nor of a share of them.
    pub(crate) fn record_overload(&self, now: u64) {
        self.failing_until.fetch_max(now.saturating_add(OVERLOAD_EJECTION), Relaxed);
    }

    /// The share of failures in 1/2^16, once there are answers enough to tell and where shares are compared at all.
    pub(crate) fn failure_rate(&self, config: &BalancerConfig) -> Option<u64> {
        let (responses, failures) = self.window.get();
        (config.compares_failure_rates() && responses >= u64::from(config.min_samples))
            .then(|| (failures << 16) / responses)
    }

    /// Compares its share of failures with those of `others`, a sum and how many it is of; with none to compare with, it
    /// says nothing.
    pub(crate) fn compare_failure_rate(
        &self,
        rate: u64,
        (sum, others): (u64, u64),
        now: u64,
        config: &BalancerConfig,
    ) {
        let margin = (u64::from(config.failure_percent) << 16) / 100;
        if others == 0 || rate < sum / others + margin {
            return;
        }
        let rate_ejections = self.rate_ejections.fetch_add(1, Relaxed);
        // A share needs many answers, and so is not told again after a moment: a longer time than for a row.
        let duration = config.ejection_time(rate_ejections.saturating_add(FAILURE_RATE_DOUBLINGS));
        let until = now.saturating_add(duration);
        self.failing_until.fetch_max(until, Relaxed);
        self.ramp_end.store(until.saturating_add(duration), Relaxed);
        self.window.clear();
    }

    /// Forgets everything.
    pub(crate) fn reset(&self) {
        self.consecutive_failures.store(0, Relaxed);
        self.unreachable_until.store(0, Relaxed);
        self.failing_until.store(0, Relaxed);
        self.rate_ejections.store(0, Relaxed);
        self.ramp_end.store(0, Relaxed);
        self.window.clear();
    }
}

impl BalancerConfig {
    /// For how many nanoseconds an endpoint is avoided the `rate_ejections`-th time, from 0: doubled each time up to the longest.
    pub(crate) fn ejection_time(&self, doublings: u32) -> u64 {
        self.base_ejection.saturating_mul(1 << doublings.min(MAX_DOUBLINGS)).min(self.max_ejection)
    }

    fn compares_failure_rates(&self) -> bool {
        self.failure_percent > 0
    }

    fn failure_window(&self) -> u64 {
        u64::from(self.min_samples) * WINDOW_SAMPLES
    }
}

#[cfg(test)]
mod tests;
