//! Counters of client connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::counter::{GaugeGuard, increment};

/// Counters of client connections.
#[derive(Debug, Default)]
pub struct ConnectionMetrics {
    pub(crate) open: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// Accepts that waited for a permit or a file descriptor.
    pub(crate) accepts_delayed: AtomicU64,
    /// Connections without a request that were closed to make room for new ones.
    pub(crate) displaced: AtomicU64,
    /// Connections that failed.
    pub failed: AtomicU64,
    /// Connections and tunnels still open at the drain deadline.
    pub drain_timeouts: AtomicU64,
    /// HTTP/2 connections closed for rapid resets (CVE-2023-44487).
    pub(crate) rapid_resets: AtomicU64,
    /// HTTP/2 connections closed for a flood of control frames.
    pub(crate) frame_floods: AtomicU64,
    /// HTTP/2 responses dropped because the client did not open the flow-control window.
    pub(crate) stalled_responses: AtomicU64,
    /// Connections without a valid PROXY protocol header on a listener that requires one.
    pub(crate) proxy_protocol_errors: AtomicU64,
}

impl ConnectionMetrics {
    /// Counts a connection that another listener accepted. It counts as open until the result is dropped.
    pub fn count_open(&self) -> impl Drop + Send + '_ {
        increment(&self.accepted);
        GaugeGuard::new(&self.open)
    }

    /// Registers all counters with their current values.
    pub fn register(&self, registry: &mut Registry) {
        let open = ConstGauge::new(self.open.load(Relaxed));
        registry.register("connections_open", "Open connections of programs", open);
        let counters = [
            ("connections_accepted", "Accepted connections of programs", &self.accepted),
            (
                "connections_displaced",
                "Connections without a request that were closed for new ones",
                &self.displaced,
            ),
            ("connections_failed", "Connections of programs that failed", &self.failed),
            ("connections_drain_timeout", "Connections closed at the drain deadline", &self.drain_timeouts),
            (
                "rapid_reset_connections",
                "HTTP/2 connections closed by the rapid-reset guard",
                &self.rapid_resets,
            ),
            (
                "frame_flood_connections",
                "HTTP/2 connections closed for a flood of control frames",
                &self.frame_floods,
            ),
            (
                "accepts_delayed",
                "Accepts delayed by the maximum of connections or of descriptors",
                &self.accepts_delayed,
            ),
            (
                "stalled_responses",
                "HTTP/2 responses dropped because the client read nothing",
                &self.stalled_responses,
            ),
            (
                "invalid_proxy_headers",
                "Connections without a valid PROXY protocol header",
                &self.proxy_protocol_errors,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
