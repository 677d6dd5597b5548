//! Counters of captured connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};

/// Connections that the system redirected to a capturing listener.
#[derive(Debug, Default)]
pub(crate) struct CaptureMetrics {
    /// Connections to services, or of HTTP/2, whose requests are routed one by one.
    pub(crate) served: AtomicU64,
    /// Connections passed through to their original destination.
    pub(crate) passed_through: AtomicU64,
    /// Connections and requests that failed at their original destination.
    pub(crate) failed: AtomicU64,
    /// HTTP/2 requests passed through to the original destination of their connection.
    pub(crate) requests_passed_through: AtomicU64,
    /// Connections and requests to no service where only services are allowed.
    pub(crate) refused: AtomicU64,
    /// Connections that were not redirected, or were the proxy's own.
    pub(crate) looped: AtomicU64,
}

impl CaptureMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = [
            ("captured_served", "Captured connections that were for services, or spoke HTTP/2", &self.served),
            (
                "captured_passed_on",
                "Captured connections that went on to where they were meant to go",
                &self.passed_through,
            ),
            ("captured_in_vain", "Those of them, and requests, that nobody took there", &self.failed),
            (
                "captured_requests_passed_on",
                "Requests over HTTP/2 that went on to where their connections were meant to go",
                &self.requests_passed_through,
            ),
            (
                "captured_refused",
                "Captured connections and requests that were not let through",
                &self.refused,
            ),
            (
                "captured_looped",
                "Connections to be captured that were the proxy's own, or not redirected",
                &self.looped,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
