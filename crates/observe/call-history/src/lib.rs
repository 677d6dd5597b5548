//! Records who called whom in the last hour, in bounded memory: in steps of ten seconds for ten minutes, and in
//! minutes for an hour.
//!
//! The control plane records the counts that processes report ([`CountedInterval`]), and views of the mesh read sums
//! over a window. The crate has no clock, randomness or I/O: callers pass the time of a clock that only advances.
//! Intervals are given as ages, so that clocks of other machines do not matter.
//!
//! Decision: a step without a report is a gap, which differs from zero. Rates are calls divided by the time that
//! reports cover. Filling gaps with zero was rejected: a mesh whose reports stop would look like a mesh without
//! calls. A longer history is left to Prometheus.
//!
//! [`CountedInterval`]: fairmesh_model::CountedInterval

mod counted_step;
mod history;
mod minute_sums;
mod step_history;

pub use history::{CallHistory, HistoryLimits, RegionSteps, RowSum};
pub use step_history::{MINUTES, STEP_MS, STEPS};
