//! The counters of a proxy. Labels are names of declared services and fixed classes, so the number of series
//! is bounded.

pub mod connections;
pub mod requests;
pub mod tls;
pub mod tunnels;

use prometheus_client::registry::Registry;

use crate::metrics::{
    connections::ConnectionMetrics, requests::RequestMetrics, tls::TlsMetrics, tunnels::TunnelMetrics,
};

/// All counters of a proxy, except those of services and of the access log.
#[derive(Debug, Default)]
pub struct EdgeMetrics {
    /// Connections of clients.
    pub connections: ConnectionMetrics,
    /// Counters of requests that are not counted by service.
    pub requests: RequestMetrics,
    /// Tunnels.
    pub tunnels: TunnelMetrics,
    /// Handshakes and certificates.
    pub tls: TlsMetrics,
}

impl EdgeMetrics {
    /// Registers all counters with their current values.
    pub fn register(&self, registry: &mut Registry) {
        self.connections.register(registry);
        self.requests.register(registry);
        self.tunnels.register(registry);
        self.tls.register(registry);
    }
}
