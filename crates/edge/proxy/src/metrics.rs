//! The counters of a proxy. Labels are names of declared services and fixed classes, so that the number of series is
//! bounded.

use prometheus_client::registry::Registry;

use crate::{
    forward::metrics::RequestMetrics,
    kernel::metrics::KernelMetrics,
    listen::{metrics::ConnectionMetrics, tls::metrics::TlsMetrics},
    passthrough::metrics::CaptureMetrics,
    tunnel::metrics::TunnelMetrics,
};

/// Counters by subject, except those of services and of the access log.
#[derive(Debug, Default)]
pub(crate) struct ProxyMetrics {
    pub(crate) connections: ConnectionMetrics,
    pub(crate) requests: RequestMetrics,
    pub(crate) tunnels: TunnelMetrics,
    pub(crate) tls: TlsMetrics,
    pub(crate) capture: CaptureMetrics,
    pub(crate) kernel: KernelMetrics,
}

impl ProxyMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.connections.register(registry);
        self.requests.register(registry);
        self.tunnels.register(registry);
        self.tls.register(registry);
        self.capture.register(registry);
        self.kernel.register(registry);
    }
}
