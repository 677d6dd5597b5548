//! The imbalance indicator: cores that services waste because the load of their containers is uneven (Uber, imbalance
//! indicator).
//!
//! For each service and minute, `used` is the total usage of its containers, and `peak` is the p99 of their usage
//! times their number. `wasted` is the difference: the capacity that all containers keep free because of the hottest
//! ones. The index is peak / used; ten containers with a p99 of 5 cores and a mean of 4 have 50 / 40 = 1.25. All
//! stored values are sums of millicore-minutes, so that services, slices and minutes add up in any order. Storing
//! ratios was rejected: their average would let ten small clusters at 110 % hide a big one at 140 %.
//!
//! No clock, no I/O: servers count with [`UsageRecorder`], the control plane collects with [`OpenMinutes`], and both
//! get the time as an argument.

mod history_resolution;
mod history_row;
mod minute_usage;
mod open_minutes;
mod outliers;
mod percentile;
mod report;
mod report_query;
mod usage_area;
mod usage_recorder;

pub use history_resolution::{Tier, read_window};
pub use history_row::{Causes, Dimension, NO_NAME, OTHERS, Row, Slice};
pub use minute_usage::{ImplausibleUsage, MIN_COVERED_MS, Minute, Usage};
pub use open_minutes::{
    AddOutcome, MAX_INSTANCES, MAX_LATENESS, MAX_WRITE_DELAY, MeasuredInstance, OpenMinutes,
};
pub use outliers::{Measure, Member, Outlier, outliers};
pub use percentile::{median, p99};
pub use report::{Breakdown, CauseView, Figures, ImbalanceReport, Line, OutlierView, ServiceOutlier, View};
pub use report_query::ReportQuery;
pub use usage_area::Area;
pub use usage_recorder::{CounterReading, Moment, UsageRecorder};
