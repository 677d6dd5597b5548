//! Counters of a lookaside, without labels, so that callers cannot increase the number of series.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

/// Counters of a lookaside.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) picks: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) leases: AtomicU64,
    /// Leases that were evicted because the table was full.
    pub(crate) evicted: AtomicU64,
    pub(crate) reports: AtomicU64,
    /// Results reported for expired leases.
    pub(crate) unknown: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) cut: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}

impl Metrics {
    /// Registers the counters, with the number of live leases and the age of the routing information.
    pub(crate) fn register(&self, (active_leases, data_age): (usize, f64), registry: &mut Registry) {
        let counters = [
            ("picks", "Picks served", &self.picks),
            ("route_lookups", "Route lookups served", &self.lookups),
            ("faults", "Failed picks and route lookups", &self.errors),
            ("leases_granted", "Leases granted", &self.leases),
            ("leases_evicted", "Leases evicted from the table because it was full", &self.evicted),
            ("results", "Results reported by callers", &self.reports),
            ("unmatched_results", "Results reported for expired leases", &self.unknown),
            ("reported_failures", "Failures reported by callers", &self.failures),
            ("connections_accepted", "Accepted connections of callers", &self.connections),
            ("connections_drain_timeout", "Connections closed at the drain deadline", &self.cut),
        ];
        for (name, help, counter) in counters {
            registry.counter(name, help, counter);
        }
        registry.gauge("active_leases", "Active leases", active_leases);
        let help = "Maximum age of the routing information; 0 while current";
        registry.gauge("data_age_seconds", help, data_age);
    }
}
