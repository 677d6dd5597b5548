//! The page `/metrics`.

use fairmesh_client::Stats;
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
        ("tries", "Tries to send a request to an endpoint", stats.tries),
        ("retries", "Tries after the first", stats.retries),
        ("retries_refused", "Retries that the budget refused", stats.retries_refused),
        ("hedges", "Tries made beside one that took long", stats.hedges),
        ("limited", "Calls that a limit of a policy did not let through", stats.limited),
        ("aborted", "Calls that a policy answered with a failure on purpose", stats.aborted),
        ("mirrored", "Copies of calls sent to another service", stats.mirrored),
        ("mirrors_failed", "Copies of calls that got no answer", stats.mirrors_failed),
        ("mirrors_skipped", "Copies of calls that were not sent", stats.mirrors_skipped),
        ("unroutable", "Tries for which there was no endpoint to choose", stats.unroutable),
        (
            "lookaside_missed",
            "Calls by the records, since a service's own lookaside had never answered",
            stats.lookaside_missed,
        ),
        ("panics", "Tries made while nobody was avoided", stats.panics),
        ("upstream_connections_opened", "Connections to endpoints opened", stats.connections_opened),
        ("upstream_reused", "Tries over a connection that had carried another", stats.reused),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let open = ConstGauge::new(stats.connections_open);
    registry.register("upstream_connections_open", "Connections to endpoints", open);
    let age = ConstGauge::new(stats.data_age.as_secs_f64());
    registry.register_with_unit("data_age", "How old what is known may be", Unit::Seconds, age);
}
