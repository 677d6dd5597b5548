//! Traffic reports for planners: calls and load by region. The crate counts calls, converts counters to rates, and
//! adds up reports.
//!
//! Clients count each attempt with [`ReportedPaths`], and servers read their counters with [`ServerMeter`]. Agents,
//! replicas and the control plane add up reports with [`ReportSums`]. The message types are in the model
//! ([`TrafficReport`]).
//!
//! A report has rates over its reporter's own interval, and a sum covers the last report of each reporter. The
//! rejected alternative added counts into each level's own interval: intervals of two levels never align, so sums
//! would be a call too high or too low, and a planner would see changes of demand.
//!
//! A call names its parent, the call during which it was made. [`ServedCall`] is the call that a server processes,
//! and [`TraceParents`] finds the parent for programs behind a proxy. Reports carry sums per edge of the call graph,
//! not spans: a span per call costs more than counting the call, and sampled spans miss rare edges.
//!
//! Views of the mesh use counts instead of rates, because each call must be counted exactly once. [`CountMeter`]
//! reads the same counters, [`CountOutbox`] adds up counts and sends them until they have arrived, and [`CountInbox`]
//! detects repeated reports.
//!
//! [`CpuDivision`] attributes the CPU of servers to callers and origins, in proportion to the time in which
//! [`InFlightMeter`]s saw their calls in flight.
//!
//! [`TrafficReport`]: fairmesh_model::TrafficReport

mod call_counters;
mod count_inbox;
mod count_meter;
mod count_outbox;
mod cpu_division;
mod fair_share;
mod in_flight;
mod mean_utilisation;
mod missed_services;
mod node_id;
mod origin_id;
mod outcome_counters;
mod report_parts;
mod report_shares;
mod report_sums;
mod reported_paths;
mod served_call;
mod served_counters;
mod server_meter;
mod service_sums;
mod trace_parents;

pub use call_counters::{CallCounters, CallMeter};
pub use count_inbox::CountInbox;
pub use count_meter::{CountMeter, counted_by_caller};
pub use count_outbox::CountOutbox;
pub use cpu_division::{Chain, CpuDivision, MAX_CPU_USERS};
pub use fair_share::{beyond_shares, own_service};
pub use in_flight::{InFlightMeter, InFlightTime};
pub use mean_utilisation::MeanUtilisation;
pub use node_id::{NodeId, serves};
pub use origin_id::OriginId;
pub use report_parts::ReportParts;
pub use report_shares::{ReportOwner, ReportSource};
pub use report_sums::{ReportSums, SumLimits, Taken, bound, merge_paths};
pub use reported_paths::{Destinations, ReportedAs, ReportedPaths};
pub use served_call::{ChildCall, Entered, ServedCall};
pub use served_counters::{ServedCounters, ServedMeter};
pub use server_meter::{CpuReading, ServerMeter, ServerReading};
pub use service_sums::{ServiceSum, ServiceSums};
pub use trace_parents::TraceParents;

/// Interval of reports while a service is planned, in milliseconds.
pub const REPORT_INTERVAL_MS: u64 = 1_000;
/// Interval of reports while no service is planned, in milliseconds.
pub const IDLE_INTERVAL_MS: u64 = 5_000;
/// Maximum number of services whose calls are reported because operators watch them.
pub const MAX_WATCHED_SERVICES: usize = 64;
/// Time for which the upstream's last response stays valid, in milliseconds.
pub const WATCHED_FOR_MS: u64 = 4 * IDLE_INTERVAL_MS;
