//! Reports of calls and load by region, for planners: how they are counted, turned into rates and added up.
//!
//! Clients count each attempt with [`ReportedPaths`], servers read their counters with [`ServerMeter`]; agents, replicas
//! and the control plane add reports up with [`ReportSums`]. The messages are in the model ([`TrafficReport`]).
//!
//! One decision: a report has rates of its reporter's own interval, and a sum is formed of the last report of each
//! reporter. Counts that each level adds to its own interval were rejected: intervals of two levels never fit, so that
//! every second one would have a call too many or too few, and a planner would take that for a change of demand.
//!
//! [`TrafficReport`]: fairmesh_model::TrafficReport

mod call_counters;
mod paths;
mod report_sums;
mod server_meter;

pub use call_counters::{CallCounters, CallMeter};
pub use paths::{Destinations, ReportedPaths};
pub use report_sums::{ReportSums, SumLimits, Taken};
pub use server_meter::{CpuReading, ServerMeter, ServerReading};

/// Time between two reports where a service is planned for.
pub const REPORT_INTERVAL_MS: u64 = 1_000;
/// Time between two reports where none is.
pub const IDLE_INTERVAL_MS: u64 = 5_000;
/// The most services that operators look at at the same time, and whose calls are reported for it.
pub const MAX_WATCHED_SERVICES: usize = 64;
/// How long what the process above has said of them holds without its next response.
pub const WATCHED_FOR_MS: u64 = 4 * IDLE_INTERVAL_MS;
