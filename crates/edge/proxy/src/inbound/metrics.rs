//! Counters of the calls to the program.

use fairmesh_server::Admission;
use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::inbound::{caller_metrics, server::ServedEndpoint};

/// Registers the state of the concurrency limit, and the responses by caller.
pub(crate) fn register(registry: &mut Registry, endpoint: &ServedEndpoint) {
    caller_metrics::register(registry, &endpoint.observation.callers);
    register_admission(registry, &endpoint.server.admission());
}

fn register_admission(registry: &mut Registry, admission: &Admission) {
    let limit = ConstGauge::new(u64::from(admission.limit.unwrap_or(u32::MAX)));
    registry.register("inbound_concurrency_limit", "Current concurrency limit of the program", limit);
    let in_flight = ConstGauge::new(u64::from(admission.outstanding.calls));
    registry.register(
        "inbound_requests_in_flight",
        "Requests in flight at the program, without streams",
        in_flight,
    );
    let counters = [
        ("inbound_requests_rejected", "Requests rejected by the concurrency limit", admission.refused),
        (
            "inbound_requests_unauthorized",
            "Requests refused by the policy of the service",
            admission.unauthorized,
        ),
        (
            "inbound_requests_audited",
            "Requests that the policy of the service would refuse, but for its mode audit",
            admission.audited,
        ),
        (
            "inbound_plaintext_connections",
            "Connections in plaintext that the policy of the service permits beside mutual TLS",
            admission.plaintext_connections,
        ),
        (
            "inbound_tls_handshake_failures",
            "Connections that ended before their handshake of mutual TLS was complete",
            admission.failed_handshakes,
        ),
        ("inbound_deadline_exceeded", "Requests cancelled because their deadline had passed", admission.late),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
}
