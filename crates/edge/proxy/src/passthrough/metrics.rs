//! Counters of captured connections.

use std::sync::atomic::AtomicU64;

use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

/// Connections that the system redirected to a capturing listener.
#[derive(Debug, Default)]
pub(crate) struct CaptureMetrics {
    /// Connections to services, and HTTP/2 connections, whose requests are routed individually.
    pub(crate) served: AtomicU64,
    /// Connections passed through to their original destination.
    pub(crate) passed_through: AtomicU64,
    /// Connections and requests that failed at their original destination.
    pub(crate) failed: AtomicU64,
    /// HTTP/2 requests passed through to the original destination of their connection.
    pub(crate) requests_passed_through: AtomicU64,
    /// Connections and requests refused because they are not for a service and only services are allowed.
    pub(crate) refused: AtomicU64,
    /// Connections that were not redirected, or were opened by the proxy itself.
    pub(crate) loops: AtomicU64,
}

impl CaptureMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = [
            ("captured_connections_served", "Captured connections to services, or of HTTP/2", &self.served),
            (
                "captured_connections_passthrough",
                "Captured connections passed through to their original destination",
                &self.passed_through,
            ),
            (
                "original_dst_failures",
                "Captured connections and requests that failed at their original destination",
                &self.failed,
            ),
            (
                "captured_requests_passthrough",
                "HTTP/2 requests passed through to the original destination of their connection",
                &self.requests_passed_through,
            ),
            ("captured_refused", "Captured connections and requests that were refused", &self.refused),
            (
                "captured_loops",
                "Connections on a capturing listener that were the proxy's own, or not redirected",
                &self.loops,
            ),
        ];
        for (name, help, counter) in counters {
            registry.counter(name, help, counter);
        }
    }
}
