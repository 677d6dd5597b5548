use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{BalancerConfig, Outcome};

/// Size of the response window in multiples of `min_samples`. Responses before the window count half.
const WINDOW_SAMPLES: u64 = 4;
/// Maximum number of doublings of the ejection time.
const MAX_DOUBLINGS: u32 = 16;
/// Duration of an ejection for overload, in nanoseconds, unless a call at the endpoint finishes earlier.
const OVERLOAD_EJECTION: u64 = 20_000_000;
/// Number of doublings in the first ejection by failure rate.
const FAILURE_RATE_DOUBLINGS: u32 = 4;

/// Outlier detection for one endpoint. Stored apart from [`HotStats`](crate::endpoint_stats::HotStats), since few
/// endpoints need it.
///
/// There are two kinds of evidence. Consecutive failures are refuted by one success. A failure rate far above the
/// mean of the others, over many responses, is not.
#[derive(Debug, Default)]
pub(crate) struct OutlierState {
    /// Number of consecutive failures.
    consecutive_failures: AtomicU32,
    /// End of the ejection for unreachability, which is certain evidence.
    unreachable_until: AtomicU64,
    /// End of the ejection for failed responses, which may be the callers' fault.
    failing_until: AtomicU64,
    /// Start of the current ejection; meaningless without one.
    ejected_since: AtomicU64,
    /// Number of ejections by failure rate.
    rate_ejections: AtomicU32,
    /// Time at which the endpoint has its full share again.
    ramp_end: AtomicU64,
    window: ResponseWindow,
}

/// A window of responses: their number (low half), and the number of failures among them (high half).
#[derive(Debug, Default)]
struct ResponseWindow(AtomicU64);

impl ResponseWindow {
    fn get(&self) -> (u64, u64) {
        let word = self.0.load(Relaxed);
        (word & u64::from(u32::MAX), word >> 32)
    }

    /// Counts a response. At `capacity`, all earlier responses are halved.
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

    /// End of the ejection for failed responses.
    pub(crate) fn failing_until(&self) -> u64 {
        self.failing_until.load(Relaxed)
    }

    /// Time at which the endpoint has its full share again.
    pub(crate) fn ramp_end(&self) -> u64 {
        self.ramp_end.load(Relaxed)
    }

    /// End of the current ejection. In panic mode, only ejections for unreachability count.
    pub(crate) fn ejected_until(&self, panic: bool) -> u64 {
        let unreachable_until = self.unreachable_until.load(Relaxed);
        if panic { unreachable_until } else { unreachable_until.max(self.failing_until.load(Relaxed)) }
    }

    /// Start and end of the ejection in force at `now`.
    pub(crate) fn ejection(&self, now: u64) -> Option<(u64, u64)> {
        let until = self.ejected_until(false);
        (until > now).then(|| (self.ejected_since.load(Relaxed).min(now), until))
    }

    /// Records the start of an ejection. Must be called before a failure is counted, so that an ejection in force
    /// keeps its start.
    fn note_start(&self, now: u64) {
        if self.ejected_until(false) <= now {
            self.ejected_since.store(now, Relaxed);
        }
    }

    /// The missing part of the endpoint's share, in 1/256, while it ramps up after an ejection.
    pub(crate) fn ramp_remaining(&self, now: u64) -> u64 {
        let (ramp_end, until) = (self.ramp_end.load(Relaxed), self.failing_until.load(Relaxed));
        let (left, duration) = (ramp_end.saturating_sub(now), ramp_end.saturating_sub(until));
        if left == 0 || duration == 0 { 0 } else { (left.min(duration) << 8) / duration }
    }

    /// Counts a success. Returns whether the state is neutral again.
    pub(crate) fn record_success(&self, config: &BalancerConfig) -> bool {
        self.consecutive_failures.store(0, Relaxed);
        self.unreachable_until.store(0, Relaxed);
        if self.rate_ejections.load(Relaxed) == 0 {
            // A success ends an ejection for consecutive failures.
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
        self.note_start(now);
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

    /// Ejects an overloaded endpoint briefly. Overload counts neither as a consecutive failure nor for the failure
    /// rate.
    pub(crate) fn record_overload(&self, now: u64) {
        self.note_start(now);
        self.failing_until.fetch_max(now.saturating_add(OVERLOAD_EJECTION), Relaxed);
    }

    /// The failure rate in 1/2^16; `None` without enough samples, or if the policy does not compare failure rates.
    pub(crate) fn failure_rate(&self, config: &BalancerConfig) -> Option<u64> {
        let (responses, failures) = self.window.get();
        (config.compares_failure_rates() && responses >= u64::from(config.min_samples))
            .then(|| (failures << 16) / responses)
    }

    /// Ejects the endpoint if its failure rate exceeds the mean rate of the `others`, given as their sum and number.
    /// Does nothing if there are no others.
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
        // Measuring a failure rate again needs many responses, so the ejection is longer than for consecutive
        // failures.
        let duration = config.ejection_time(rate_ejections.saturating_add(FAILURE_RATE_DOUBLINGS));
        let until = now.saturating_add(duration);
        self.failing_until.fetch_max(until, Relaxed);
        self.ramp_end.store(until.saturating_add(duration), Relaxed);
        self.window.clear();
    }

    /// Resets to the neutral state.
    pub(crate) fn reset(&self) {
        self.consecutive_failures.store(0, Relaxed);
        self.unreachable_until.store(0, Relaxed);
        self.failing_until.store(0, Relaxed);
        self.ejected_since.store(0, Relaxed);
        self.rate_ejections.store(0, Relaxed);
        self.ramp_end.store(0, Relaxed);
        self.window.clear();
    }
}

impl BalancerConfig {
    /// Ejection time in nanoseconds after this number of doublings, at most `max_ejection`.
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
