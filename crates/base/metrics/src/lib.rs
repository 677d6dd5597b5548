//! How every process registers its metrics: present values as counters, gauges and histograms of durations, read at a scrape.
//!
//! Components count in atomics of their own, and [`Register`] adds their values to the registry that the page of metrics makes for each
//! reader. Metrics that live in a global registry were rejected: a series would outlive the service, pod or caller that it is of.

mod call_durations;
mod duration_histogram;
mod register;
mod rows;

pub use call_durations::{
    ATTRIBUTES, CallOutcome, CallRow, CallSeries, DurationFamily, OTHER, Side, UNKNOWN, families,
    known_method,
};
pub use duration_histogram::{DurationHistogram, DurationSnapshot, SCHEMA, TraceExemplar};
pub use register::Register;
pub use rows::{Labels, Value};
