//! Observation of calls: counters, per-call traces, observers, and explanations of decisions.

mod explain;
mod freshness;
mod observer;
mod stats;
mod trace;

pub use explain::{CallExplanation, Decision, Question};
pub use freshness::Freshness;
pub use observer::{AttemptEnd, Observer};
pub use stats::Stats;
pub(crate) use stats::{Counters, OpenConnection, count};
pub(crate) use trace::AttemptStart;
pub use trace::{AttemptRecord, Trace};
