//! The counters of a DNS server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

/// Counters of queries and responses.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) queries: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) unknown_names: AtomicU64,
    /// Responses with SERVFAIL.
    pub(crate) failures: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) malformed: AtomicU64,
    /// Queries over UDP that were dropped because too many others waited.
    pub(crate) shed: AtomicU64,
    pub(crate) connections: AtomicU64,
}

/// Increments a counter by one.
pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Metrics {
    /// Registers the counters with their current values, the number of followed tenants, and whether the
    /// upstream is connected.
    pub(crate) fn register(&self, (tenants, is_connected): (usize, bool), registry: &mut Registry) {
        let counters = [
            ("queries", "Queries", &self.queries),
            ("queries_answered", "Queries for names that exist", &self.answered),
            ("queries_unknown_name", "Queries for names of no service", &self.unknown_names),
            ("queries_failed", "Queries while the services of their tenant were not known", &self.failures),
            ("queries_refused", "Queries for other zones, classes or operations", &self.refused),
            ("queries_malformed", "Messages that could not be read", &self.malformed),
            ("queries_shed", "Queries dropped because too many waited", &self.shed),
            ("connections_accepted", "Accepted connections over TCP", &self.connections),
        ];
        for (name, help, counter) in counters {
            registry.counter(name, help, counter);
        }
        registry.gauge("tenants", "Tenants whose services are followed", tenants);
        registry.gauge("connected", "1 while the agent is followed", u64::from(is_connected));
    }
}
