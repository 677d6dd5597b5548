//! Counters of the library's calls for the proxy, by service.

use std::{fmt, sync::Arc};

use fairmesh_calls::observe::ServiceStats;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::MetricType,
    registry::Registry,
};

use super::{OVERFLOW, count};
use fairmesh_edge::services::Services;

/// Name, help text and value of a counter.
type Counter = (&'static str, &'static str, fn(&ServiceStats) -> u64);

const COUNTERS: [Counter; 14] = [
    ("attempts", "Attempts to send a request to an endpoint", |stats| stats.attempts),
    ("retries", "Attempts after the first", |stats| stats.retries),
    ("retry_budget_exhausted", "Retries refused by the retry budget", |stats| stats.retry_budget_exhausted),
    ("hedges", "Hedged attempts", |stats| stats.hedges),
    ("rate_limited_calls", "Calls rejected by a rate limit of a policy", |stats| stats.rate_limited_calls),
    ("dropped_calls", "Calls dropped by the region table of their service", |stats| stats.dropped_calls),
    ("injected_aborts", "Calls aborted by fault injection of a policy", |stats| stats.injected_aborts),
    ("injected_delays", "Calls delayed by fault injection of a policy", |stats| stats.injected_delays),
    ("mirrored_calls", "Calls mirrored to another service", |stats| stats.mirrored_calls),
    ("mirrors_failed", "Mirrored calls without a response", |stats| stats.mirrors_failed),
    ("mirrors_skipped", "Mirrored calls that were not sent", |stats| stats.mirrors_skipped),
    ("attempts_without_endpoint", "Attempts without an available endpoint", |stats| {
        stats.attempts_without_endpoint
    }),
    (
        "lookaside_fallbacks",
        "Calls decided by the records because the service's own lookaside never responded",
        |stats| stats.lookaside_fallbacks,
    ),
    ("panic_picks", "Attempts picked at the panic threshold, ignoring outliers and health", |stats| {
        stats.panic_picks
    }),
];

/// Registers the counters.
pub(super) fn register(registry: &mut Registry, services: &Arc<Services>) {
    for (name, help, value) in COUNTERS {
        registry.register(name, help, CallFamily { value, services: Arc::clone(services) });
    }
}

/// One counter with a series for each service.
#[derive(Debug)]
struct CallFamily {
    value: fn(&ServiceStats) -> u64,
    services: Arc<Services>,
}

impl EncodeMetric for CallFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let (labelled, overflow) = self.services.labelled();
        for (name, target) in labelled {
            let value = (self.value)(&target.handle.stats());
            count(&mut encoder, &[("service", &*name.to_string())], value)?;
        }
        match overflow {
            Some(overflow) => count(&mut encoder, &[("service", OVERFLOW)], (self.value)(&overflow.calls)),
            None => Ok(()),
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
