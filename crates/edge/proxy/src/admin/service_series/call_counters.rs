//! Counters of the library's calls for the proxy, by service.

use fairmesh_calls::observe::ServiceStats;
use fairmesh_edge::services::Services;
use fairmesh_metrics::{OTHER, Register as _};
use prometheus_client::registry::Registry;

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
pub(super) fn register(registry: &mut Registry, services: &Services) {
    let (labelled, overflow) = services.labelled();
    let stats = labelled.iter().map(|(name, target)| (name.to_string(), target.handle.stats()));
    let overflow = overflow.map(|overflow| (OTHER.to_owned(), overflow.calls));
    let stats: Vec<_> = stats.chain(overflow).collect();
    for (name, help, value) in COUNTERS {
        let rows = stats.iter().map(|(name, stats)| ([("service", name.clone().into())], value(stats)));
        registry.counters(name, help, rows);
    }
}
