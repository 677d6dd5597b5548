//! Registers the metrics of a process: counters, gauges and histograms of durations, whose values are read at each
//! scrape.
//!
//! Components count in their own atomics. For each scrape the metrics page creates a registry, and [`Register`] adds
//! the current values to it. A global registry was rejected: its series would outlive the service, pod or caller that
//! they describe.

mod call_durations;
mod duration_histogram;
mod metric_register;
mod value_rows;

pub use call_durations::{
    ATTRIBUTES, CallOutcome, CallRow, CallSeries, DurationFamily, OTHER, Side, UNKNOWN, families,
    known_method,
};
pub use duration_histogram::{DurationHistogram, DurationSnapshot, SCHEMA, TraceExemplar};
pub use metric_register::Register;
pub use value_rows::{Labels, Value};
