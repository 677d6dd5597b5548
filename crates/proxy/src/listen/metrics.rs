//! Counters of connections of clients.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// Connections of clients.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMetrics {
    pub(crate) open: AtomicU64,
    pub(crate) accepted: AtomicU64,
    /// Accepts that waited for a permit or a file descriptor.
    pub(crate) accepts_delayed: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Connections and tunnels that were open at the drain deadline.
    pub(crate) drain_timeouts: AtomicU64,
    /// HTTP/2 connections closed by the rapid-reset guard.
    pub(crate) rapid_resets: AtomicU64,
    /// HTTP/2 connections closed for a flood of control frames.
    pub(crate) frame_floods: AtomicU64,
    /// HTTP/2 responses dropped because the client did not open the flow-control window.
    pub(crate) stalled_responses: AtomicU64,
    /// Connections without a valid PROXY protocol header on a listener that requires one.
    pub(crate) proxy_protocol_errors: AtomicU64,
}

impl ConnectionMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let open = ConstGauge::new(self.open.load(Relaxed));
        registry.register("connections_open", "Connections of programs", open);
        let counters = [
            ("connections_accepted", "Connections of programs accepted", &self.accepted),
            ("connections_broken", "Connections of programs that ended early", &self.failed),
            ("connections_cut", "Connections cut off at the end of a drain", &self.drain_timeouts),
            ("connections_restless", "Connections that took back most of their requests", &self.rapid_resets),
            (
                "connections_flooding",
                "Connections that sent little but frames that ask for nothing",
                &self.frame_floods,
            ),
            (
                "accepts_delayed",
                "Waits for a place or a descriptor before a connection was accepted",
                &self.accepts_delayed,
            ),
            (
                "answers_not_taken",
                "Answers that were dropped since nobody made room for them",
                &self.stalled_responses,
            ),
            (
                "proxy_heads_refused",
                "Connections without the PROXY protocol where it was due",
                &self.proxy_protocol_errors,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
