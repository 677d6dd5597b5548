use std::{
    ops::AddAssign,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::Metric;

/// Counters of the calls of one [`ServiceHandle`](crate::ServiceHandle) and its clones, as those of [`Stats`](super::Stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Attempts: calls that found an endpoint, and their retries.
    pub attempts: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Retries that the retry budget refused.
    pub retry_budget_exhausted: u64,
    /// Hedged attempts.
    pub hedges: u64,
    /// Calls that a rate limit of the policy refused.
    pub rate_limited_calls: u64,
    /// Calls that the region table dropped.
    pub dropped_calls: u64,
    /// Calls that the policy aborted by fault injection.
    pub injected_aborts: u64,
    /// Calls that the policy delayed by fault injection.
    pub injected_delays: u64,
    /// Calls mirrored to another service.
    pub mirrored_calls: u64,
    /// Mirrored calls without a response.
    pub mirrors_failed: u64,
    /// Mirrored calls that were not sent.
    pub mirrors_skipped: u64,
    /// Attempts without an eligible endpoint.
    pub attempts_without_endpoint: u64,
    /// Calls decided by the records, since the service's lookaside had never responded.
    pub lookaside_fallbacks: u64,
    /// Attempts picked while so many endpoints failed that outlier detection was ignored (panic).
    pub panic_picks: u64,
}

/// The counters behind [`ServiceStats`], of one service or of all.
#[derive(Debug, Default)]
pub(crate) struct ServiceCounters {
    pub(crate) attempts: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) retry_budget_exhausted: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) rate_limited_calls: AtomicU64,
    pub(crate) dropped_calls: AtomicU64,
    pub(crate) injected_aborts: AtomicU64,
    pub(crate) injected_delays: AtomicU64,
    pub(crate) mirrored_calls: AtomicU64,
    pub(crate) mirrors_failed: AtomicU64,
    pub(crate) mirrors_skipped: AtomicU64,
    pub(crate) attempts_without_endpoint: AtomicU64,
    pub(crate) lookaside_fallbacks: AtomicU64,
    pub(crate) panic_picks: AtomicU64,
}

impl ServiceStats {
    /// Every number with its name, as [`Stats::metrics`](super::Stats::metrics): an exporter adds the label `service`.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        [
            ("fairmesh_client_service_attempts_total", self.attempts),
            ("fairmesh_client_service_retries_total", self.retries),
            ("fairmesh_client_service_retry_budget_exhausted_total", self.retry_budget_exhausted),
            ("fairmesh_client_service_hedges_total", self.hedges),
            ("fairmesh_client_service_rate_limited_calls_total", self.rate_limited_calls),
            ("fairmesh_client_service_dropped_calls_total", self.dropped_calls),
            ("fairmesh_client_service_injected_aborts_total", self.injected_aborts),
            ("fairmesh_client_service_injected_delays_total", self.injected_delays),
            ("fairmesh_client_service_mirrored_calls_total", self.mirrored_calls),
            ("fairmesh_client_service_mirrors_failed_total", self.mirrors_failed),
            ("fairmesh_client_service_mirrors_skipped_total", self.mirrors_skipped),
            ("fairmesh_client_service_attempts_without_endpoint_total", self.attempts_without_endpoint),
            ("fairmesh_client_service_lookaside_fallbacks_total", self.lookaside_fallbacks),
            ("fairmesh_client_service_panic_picks_total", self.panic_picks),
        ]
        .into_iter()
        .map(|(name, count)| Metric { name, value: count as f64 })
    }
}

impl AddAssign for ServiceStats {
    fn add_assign(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.retries += other.retries;
        self.retry_budget_exhausted += other.retry_budget_exhausted;
        self.hedges += other.hedges;
        self.rate_limited_calls += other.rate_limited_calls;
        self.dropped_calls += other.dropped_calls;
        self.injected_aborts += other.injected_aborts;
        self.injected_delays += other.injected_delays;
        self.mirrored_calls += other.mirrored_calls;
        self.mirrors_failed += other.mirrors_failed;
        self.mirrors_skipped += other.mirrors_skipped;
        self.attempts_without_endpoint += other.attempts_without_endpoint;
        self.lookaside_fallbacks += other.lookaside_fallbacks;
        self.panic_picks += other.panic_picks;
    }
}

impl ServiceCounters {
    pub(crate) fn read(&self) -> ServiceStats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        ServiceStats {
            attempts: of(&self.attempts),
            retries: of(&self.retries),
            retry_budget_exhausted: of(&self.retry_budget_exhausted),
            hedges: of(&self.hedges),
            rate_limited_calls: of(&self.rate_limited_calls),
            dropped_calls: of(&self.dropped_calls),
            injected_aborts: of(&self.injected_aborts),
            injected_delays: of(&self.injected_delays),
            mirrored_calls: of(&self.mirrored_calls),
            mirrors_failed: of(&self.mirrors_failed),
            mirrors_skipped: of(&self.mirrors_skipped),
            attempts_without_endpoint: of(&self.attempts_without_endpoint),
            lookaside_fallbacks: of(&self.lookaside_fallbacks),
            panic_picks: of(&self.panic_picks),
        }
    }
}
