//! Counters of tunnels.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// Counters of tunnels: upgraded connections, `CONNECT`, TCP.
#[derive(Debug, Default)]
pub struct TunnelMetrics {
    pub(crate) open: AtomicU64,
    pub(crate) opened: AtomicU64,
    pub(crate) idle_timeouts: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// TCP connections reset because no endpoint was available.
    pub(crate) tcp_refused: AtomicU64,
    /// Bytes sent to servers by closed tunnels.
    sent_bytes: AtomicU64,
    /// Bytes received from servers by closed tunnels.
    received_bytes: AtomicU64,
}

impl TunnelMetrics {
    /// Adds the bytes that a closed tunnel sent to and received from its server.
    pub fn add_bytes(&self, sent: u64, received: u64) {
        self.sent_bytes.fetch_add(sent, Relaxed);
        self.received_bytes.fetch_add(received, Relaxed);
    }

    /// Number of open tunnels.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// Bytes that closed tunnels sent to and received from servers.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent_bytes.load(Relaxed), self.received_bytes.load(Relaxed))
    }

    /// Registers all counters with their current values.
    pub fn register(&self, registry: &mut Registry) {
        let open = ConstGauge::new(self.open.load(Relaxed));
        registry.register("tunnels_open", "Open tunnels: upgraded connections, CONNECT, TCP", open);
        let counters = [
            ("tunnels", "Tunnels opened", &self.opened),
            ("tunnel_idle_timeouts", "Tunnels closed by the idle timeout", &self.idle_timeouts),
            ("tunnels_failed", "Tunnels that failed on either side", &self.failed),
            (
                "tcp_connections_refused",
                "TCP connections refused because no endpoint was available",
                &self.tcp_refused,
            ),
            ("tunnel_sent_bytes", "Bytes sent to servers by closed tunnels", &self.sent_bytes),
            ("tunnel_received_bytes", "Bytes received from servers by closed tunnels", &self.received_bytes),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
