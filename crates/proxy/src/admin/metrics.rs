//! The page `/metrics`.

use fairmesh_calls::Stats;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::{
    admin::{service_series, state::AdminState},
    inbound,
};

pub(crate) fn text(state: &AdminState) -> String {
    let mut registry = Registry::with_prefix("fairmesh_proxy");
    state.metrics.register(&mut registry);
    calls(&mut registry, &state.mesh.stats());
    service_series::register(&mut registry, &state.services, &state.observer);
    if let Some(server) = &state.inbound {
        inbound::metrics::register(&mut registry, &server.admission());
    }
    state.listeners.register(&mut registry);
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn calls(registry: &mut Registry, stats: &Stats) {
    let counters = [
        ("attempts", "Attempts to send a request to an endpoint", stats.attempts),
        ("retries", "Attempts after the first", stats.retries),
        ("retry_budget_exhausted", "Retries refused by the retry budget", stats.retry_budget_exhausted),
        ("hedges", "Hedged attempts", stats.hedges),
        ("rate_limited_calls", "Calls rejected by a rate limit of a policy", stats.rate_limited_calls),
        ("dropped_calls", "Calls dropped by the region table of their service", stats.dropped_calls),
        ("injected_aborts", "Calls aborted by fault injection of a policy", stats.injected_aborts),
        ("mirrored_calls", "Calls mirrored to another service", stats.mirrored_calls),
        ("mirrors_failed", "Mirrored calls without a response", stats.mirrors_failed),
        ("mirrors_skipped", "Mirrored calls that were not sent", stats.mirrors_skipped),
        (
            "attempts_without_endpoint",
            "Attempts without an available endpoint",
            stats.attempts_without_endpoint,
        ),
        (
            "lookaside_fallbacks",
            "Calls decided by the records because the service's own lookaside never responded",
            stats.lookaside_fallbacks,
        ),
        (
            "panic_picks",
            "Attempts picked at the panic threshold, ignoring outliers and health",
            stats.panic_picks,
        ),
        ("upstream_connections_opened", "Connections opened to endpoints", stats.connections_opened),
        ("upstream_connection_reuses", "Attempts over a reused connection", stats.connection_reuses),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let open = ConstGauge::new(stats.connections_open);
    registry.register("upstream_connections_open", "Open connections to endpoints", open);
    let age = ConstGauge::new(stats.data_age.as_secs_f64());
    registry.register_with_unit(
        "data_age",
        "Age of the routing information; 0 while current",
        Unit::Seconds,
        age,
    );
}
