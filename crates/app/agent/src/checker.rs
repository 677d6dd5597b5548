//! Active health checks: the agents of a region elect one checker, which probes every endpoint there for all callers
//! (Canal Mesh §6.1 measures the cost of probes from every caller).
//!
//! The checker also times round trips to endpoints of other regions, which the control plane names; they become the
//! distances that routers use where none is declared (ServiceRouter §3.4.1).
//!
//! The checker follows the checked services and the endpoints of its region by a watch of its own, which ends with its
//! term. Using subscriptions of the agent was rejected: every machine would keep these records on disk.

mod checked_endpoints;
mod distance_probe;
mod distances;
mod election;
mod probe;
mod probe_scheduler;
mod verdict_tracker;

use std::sync::atomic::AtomicU64;

pub(crate) use election::{Candidate, campaign};
pub use probe::probe_once;

/// Counters of the checker, for metrics.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// 1 while this agent is the elected checker.
    pub(crate) elected: AtomicU64,
    /// Endpoints that it probes.
    pub(crate) endpoints: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Changes of verdicts that the control plane has taken.
    pub(crate) verdicts: AtomicU64,
    /// Endpoints of other regions to which it times round trips.
    pub(crate) distance_targets: AtomicU64,
    pub(crate) distance_probes: AtomicU64,
    pub(crate) distance_failures: AtomicU64,
}
