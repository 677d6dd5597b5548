//! Who called whom in the last hour: steps of ten seconds for ten minutes, and minutes for an hour, in bounded memory.
//!
//! The control plane records the counts that processes report ([`CountedInterval`]), and views of the mesh read sums over a
//! window. No clock, no randomness, no I/O: callers pass the time of a clock that only advances, and intervals are durations
//! before now, so that clocks of other machines do not matter.
//!
//! One decision: a step without a report is a gap, which is not the same as zero. Rates are calls by the time that reports cover.
//! Filling gaps was rejected: a mesh whose reports stop would look like one without calls. Longer history is Prometheus's.
//!
//! [`CountedInterval`]: fairmesh_model::CountedInterval

mod cell;
mod history;
mod minute_sums;
mod ring;

pub use history::{CallHistory, HistoryLimits, RowSum};
pub use ring::{MINUTES, STEP_MS, STEPS};
