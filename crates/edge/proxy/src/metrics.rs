//! The counters of a proxy. Labels are names of declared services and fixed classes, so that the number of series is
//! bounded.

pub(crate) mod connections;
pub(crate) mod requests;
pub(crate) mod tls;
pub(crate) mod tunnels;

use prometheus_client::registry::Registry;

use crate::metrics::{
    connections::ConnectionMetrics, requests::RequestMetrics, tls::TlsMetrics, tunnels::TunnelMetrics,
};

/// Counters by subject, except those of services and of the access log.
#[derive(Debug, Default)]
pub(crate) struct EdgeMetrics {
    pub(crate) connections: ConnectionMetrics,
    pub(crate) requests: RequestMetrics,
    pub(crate) tunnels: TunnelMetrics,
    pub(crate) tls: TlsMetrics,
}

impl EdgeMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.connections.register(registry);
        self.requests.register(registry);
        self.tunnels.register(registry);
        self.tls.register(registry);
    }
}
