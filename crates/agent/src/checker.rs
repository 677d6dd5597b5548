//! Active health checks: the one agent of a region that holds the office of checker probes every endpoint there, so that no
//! caller does (Canal Mesh §6.1 counts what it costs when all of them do).
//!
//! It follows the services that are checked and the endpoints of its region by a watch of its own, which ends with the
//! office: held among the agent's subscriptions, every machine's disk would keep them.

mod facts;
mod judge;
mod office;
mod probe;
mod rounds;

use std::sync::atomic::AtomicU64;

pub(crate) use office::{Applicant, seek};
pub use probe::look;

/// What the checker does, for metrics.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// 1 while this agent holds the office.
    pub(crate) office: AtomicU64,
    /// Endpoints that it probes.
    pub(crate) endpoints: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Changes of verdicts that the control plane has taken.
    pub(crate) verdicts: AtomicU64,
}
