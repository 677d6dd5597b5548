//! Counters of requests that are not counted by service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};

/// Requests that were not forwarded.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    /// Requests whose host matches no declared service.
    pub(crate) unrouted: AtomicU64,
    /// Requests that the proxy does not support.
    pub(crate) unsupported: AtomicU64,
    /// Requests with bodies above the maximum size.
    pub too_large: AtomicU64,
    /// Requests that this proxy had forwarded to itself.
    pub loops: AtomicU64,
}

impl RequestMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = [
            ("unrouted_requests", "Requests whose host matches no declared service", &self.unrouted),
            ("unsupported_requests", "Requests that the proxy does not support", &self.unsupported),
            ("requests_too_large", "Requests with bodies above the maximum size", &self.too_large),
            ("loops", "Requests that this proxy had forwarded to itself", &self.loops),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
