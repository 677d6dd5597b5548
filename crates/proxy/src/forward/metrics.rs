//! Counters of requests that are not counted by service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};

/// Requests that were not forwarded.
#[derive(Debug, Default)]
pub(crate) struct RequestMetrics {
    /// Requests whose host matches no declared service.
    pub(crate) unrouted: AtomicU64,
    /// Requests that the proxy does not support.
    pub(crate) unsupported: AtomicU64,
    /// Requests with bodies above the maximum size.
    pub(crate) too_large: AtomicU64,
}

impl RequestMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = [
            (
                "requests_for_nobody",
                "Requests for hosts of no service, or of one that nobody declared",
                &self.unrouted,
            ),
            ("requests_refused", "Requests for what a proxy does not do", &self.unsupported),
            ("requests_too_large", "Requests with bodies that are too long", &self.too_large),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
