//! The imbalance indicator: how many cores services waste since the load of their containers is uneven (Uber, imbalance indicator).
//!
//! For each service and minute, `peak` is the p99 of what its containers used times their number, `used` is what they
//! used together, and `wasted` is the difference: what was kept free on all because of the hottest. The index is
//! peak / used; ten containers with a p99 of 5 cores and a mean of 4 have 50 / 40 = 1.25. Everything that is kept is a
//! sum of millicore-minutes, so that services, slices and minutes add up in any order. Keeping ratios was rejected: their
//! average lets ten small clusters at 110 % hide a big one at 140 %.
//!
//! No clock, no I/O: servers count with [`Minutes`], the control plane gathers with [`Open`], and both are told the time.

mod area;
mod minutes;
mod open;
mod outliers;
mod percentile;
mod report;
mod row;
mod tier;
mod usage;

pub use area::Area;
pub use minutes::{Minutes, Moment, Reading};
pub use open::{KEPT, LATENESS, MAX_INSTANCES, Open, Taken};
pub use outliers::{Measure, Member, Outlier, outliers};
pub use percentile::{median, p99};
pub use report::{By, CauseView, Figures, Line, OutlierView, Report, ServiceOutlier, View};
pub use row::{Causes, Dimension, NO_NAME, OTHERS, Row, Slice};
pub use tier::{Tier, read_window};
pub use usage::{MIN_COVERED_MS, Minute, Unusable, Usage};
