//! Traffic reports: calls and load by region, for planners. The crate counts them, converts counters to rates, and adds
//! reports up.
//!
//! Clients count each attempt with [`ReportedPaths`], servers read their counters with [`ServerMeter`]; agents, replicas
//! and the control plane add reports up with [`ReportSums`]. The messages are in the model ([`TrafficReport`]).
//!
//! A report has rates over its reporter's own interval, and a sum covers the last report of each reporter. The
//! rejected alternative added counts into each level's own interval: intervals of two levels never align, so sums
//! would be a call too high or too low, and a planner would see changes of demand.
//!
//! Calls name their parent, the call during which they were made: [`ServedCall`] is what a server processes, and
//! [`TraceParents`] finds it for programs behind a proxy. Sums by edge of the call graph travel, and no spans: a span for each
//! call costs more than the call's own count, and a sample of them misses rare edges.
//!
//! Views of the mesh get counts: [`CountMeter`] reads the same counters, [`CountOutbox`] adds counts up and sends them until
//! they have arrived, and [`CountInbox`] tells repetitions. Each call is counted once, where planners need the present rate.
//!
//! CPU of servers is attributed to callers and origins by [`CpuDivision`], in proportion to the time in which [`InFlightMeter`]s saw their
//! calls in flight.
//!
//! [`TrafficReport`]: fairmesh_model::TrafficReport

mod call_counters;
mod call_node;
mod count_inbox;
mod count_meter;
mod count_outbox;
mod cpu_division;
mod fair_share;
mod in_flight;
mod origin_id;
mod outcome_counters;
mod paths;
mod report_parts;
mod report_sums;
mod served_call;
mod served_counters;
mod server_meter;
mod service_sums;
mod trace_parents;

pub use call_counters::{CallCounters, CallMeter};
pub use call_node::{NodeId, serves};
pub use count_inbox::CountInbox;
pub use count_meter::{CountMeter, counted_by_caller};
pub use count_outbox::CountOutbox;
pub use cpu_division::{Chain, CpuDivision, MAX_CPU_USERS};
pub use fair_share::{beyond_shares, own_service};
pub use in_flight::{InFlightMeter, InFlightTime};
pub use origin_id::OriginId;
pub use paths::{Destinations, ReportedAs, ReportedPaths};
pub use report_parts::ReportParts;
pub use report_sums::{ReportSums, SumLimits, Taken, bound, merge_paths};
pub use served_call::{ChildCall, Entered, ServedCall};
pub use served_counters::{ServedCounters, ServedMeter};
pub use server_meter::{CpuReading, ServerMeter, ServerReading};
pub use service_sums::{ServiceSum, ServiceSums};
pub use trace_parents::TraceParents;

/// Interval of reports if a service is planned, in milliseconds.
pub const REPORT_INTERVAL_MS: u64 = 1_000;
/// Interval of reports without a planned service, in milliseconds.
pub const IDLE_INTERVAL_MS: u64 = 5_000;
/// The most services whose calls are reported because operators watch them.
pub const MAX_WATCHED_SERVICES: usize = 64;
/// How long the upstream's last response stays valid, in milliseconds.
pub const WATCHED_FOR_MS: u64 = 4 * IDLE_INTERVAL_MS;
