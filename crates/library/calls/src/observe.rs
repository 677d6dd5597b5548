//! Observation of calls: counters, traces of single calls, observers, and explanations of decisions.

mod call_info;
mod endpoint_status;
mod explain;
mod freshness;
mod observer;
mod service_stats;
pub(crate) mod span;
mod stats;
mod trace;

pub use call_info::CallInfo;
pub use endpoint_status::{Ejection, EndpointStatus};
pub use explain::{CallExplanation, Decision, Question, explain};
pub(crate) use fairmesh_connections::count;
pub use fairmesh_router::Step;
pub use freshness::Freshness;
pub use observer::{AttemptEnd, Observer};
pub(crate) use service_stats::ServiceCounters;
pub use service_stats::ServiceStats;
pub(crate) use stats::Counters;
pub use stats::{Metric, Stats};
pub(crate) use trace::AttemptStart;
pub use trace::{AttemptRecord, Trace, take_reasons, take_unfinished, trace_with_reasons};
