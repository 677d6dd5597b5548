//! The metrics of a proxy, and the page `/metrics`.

use std::sync::Arc;

use fairmesh_calls::Stats;
use fairmesh_edge::metrics::EdgeMetrics;
use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

use crate::{
    admin::{service_series, state::AdminState},
    inbound,
    kernel::metrics::KernelMetrics,
    passthrough::metrics::CaptureMetrics,
};

/// The counters of a proxy, by subject. Their labels are fixed, so the number of series is bounded.
#[derive(Debug, Default)]
pub(crate) struct ProxyMetrics {
    pub(crate) edge: Arc<EdgeMetrics>,
    pub(crate) capture: Arc<CaptureMetrics>,
    pub(crate) kernel: Arc<KernelMetrics>,
}

/// Registers all metrics of the proxy with their current values.
pub(crate) fn register(state: &AdminState, registry: &mut Registry) {
    state.metrics.edge.register(registry);
    state.metrics.capture.register(registry);
    state.metrics.kernel.register(registry);
    calls(registry, &state.mesh.stats());
    service_series::register(registry, &state.services, &state.observer);
    if let Some(endpoint) = &state.inbound {
        inbound::metrics::register(registry, endpoint);
    }
    if let Some(keys) = &state.key_servers {
        let help = "Whether a key server signs TLS handshakes";
        registry.gauge("tls_key_server_up", help, keys.is_up());
    }
    state.listeners.register(registry);
}

fn calls(registry: &mut Registry, stats: &Stats) {
    let counters = [
        ("upstream_connections_opened", "Connections opened to endpoints", stats.connections_opened),
        ("upstream_connection_reuses", "Attempts over a reused connection", stats.connection_reuses),
    ];
    for (name, help, value) in counters {
        registry.counter(name, help, value);
    }
    registry.gauge("upstream_connections_open", "Open connections to endpoints", stats.connections_open);
    let help = "Age of the routing information; 0 while current";
    registry.gauge("data_age_seconds", help, stats.data_age.as_secs_f64());
}
