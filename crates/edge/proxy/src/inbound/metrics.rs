//! Counters of calls to the program.

use std::sync::atomic::Ordering::Relaxed;

use fairmesh_edge::{metrics::EdgeMetrics, observe::served_requests::ServedObserver};
use fairmesh_server::Admission;
use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::inbound::server::ServedEndpoint;

/// Registers the requests by caller, the state of the concurrency limit, and the connections.
pub(crate) fn register(registry: &mut Registry, endpoint: &ServedEndpoint) {
    let registry = registry.sub_registry_with_prefix("inbound");
    register_front(registry, &endpoint.observer, &endpoint.connections);
    register_admission(registry, &endpoint.server.admission());
}

/// Registers the requests by caller, and the connections.
pub(crate) fn register_front(registry: &mut Registry, observer: &ServedObserver, edge: &EdgeMetrics) {
    observer.metrics().register(registry);
    edge.connections.register(registry);
    edge.tunnels.register(registry);
    let too_large = ConstCounter::new(edge.requests.too_large.load(Relaxed));
    registry.register("requests_too_large", "Requests with bodies above the maximum size", too_large);
}

fn register_admission(registry: &mut Registry, admission: &Admission) {
    let limit = ConstGauge::new(u64::from(admission.limit.unwrap_or(u32::MAX)));
    registry.register("concurrency_limit", "Current concurrency limit of the program", limit);
    let in_flight = ConstGauge::new(u64::from(admission.outstanding.calls));
    registry.register("requests_in_flight", "Requests in flight at the program, without streams", in_flight);
    let counters = [
        ("requests_rejected", "Requests rejected by the concurrency limit", admission.refused),
        ("requests_unauthorized", "Requests refused by the policy of the service", admission.unauthorized),
        (
            "requests_audited",
            "Requests that the policy of the service would refuse, but for its mode audit",
            admission.audited,
        ),
        (
            "plaintext_connections",
            "Connections in plaintext that the policy of the service permits beside mutual TLS",
            admission.plaintext_connections,
        ),
        (
            "tls_handshake_failures",
            "Connections that ended before their handshake of mutual TLS was complete",
            admission.failed_handshakes,
        ),
        ("deadline_exceeded", "Requests cancelled because their deadline had passed", admission.late),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
}
