//! Active health checks. The agents of a region elect one checker, which probes every endpoint of the region for all
//! callers (Canal Mesh §6.1 measures the cost of probes from every caller).
//!
//! The checker also times round trips to endpoints of other regions, which the control plane names. Routers use the
//! results as distances if none is declared (ServiceRouter §3.4.1).
//!
//! A separate watch follows the checked services and the endpoints of the region, and ends with the checker's term.
//! Using the agent's subscriptions was rejected: every machine would store these records on disk.

mod checked_endpoints;
mod distance_probe;
mod distance_prober;
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
    /// Number of probed endpoints.
    pub(crate) endpoints: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Number of verdict changes that the control plane has accepted.
    pub(crate) verdicts: AtomicU64,
    /// Number of endpoints in other regions whose round trips are timed.
    pub(crate) distance_targets: AtomicU64,
    pub(crate) distance_probes: AtomicU64,
    pub(crate) distance_failures: AtomicU64,
}
