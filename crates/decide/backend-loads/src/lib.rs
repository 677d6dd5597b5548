//! How loaded the backends of a gateway are, and which service is the cause (Canal Mesh, section 4.3).
//!
//! [`LoadBoard`] takes the reports of replicas and keeps rates, never counters: the last of each replica and service, and
//! what was usual in the minutes before. A backend whose CPU passes [`ALERT_LEVEL`] has an [`Alert`] until it is below
//! [`SAFE_LEVEL`] again. While it has one, what is usual stays as it was, so that an overload does not become the
//! usual. [`LoadBoard::review`] compares the two, and names the service. Callers pass the time.
//!
//! Rejected: a history of steps for each service and replica. A hundred replicas with a thousand services each would fill
//! hundreds of megabytes, and two means answer the same question.

mod board;
mod cause;
mod report;
mod trend;

pub use board::{
    ALERT_LEVEL, Alert, BackendLoad, INTERVAL, LoadBoard, MAX_REPLICAS, REPORTS_PER_SECOND, ReplicaLoad,
    SAFE_LEVEL,
};
pub use cause::Cause;
pub use report::{MAX_SERVICES, Report, ServiceCounts};
pub use trend::{ServiceTrend, Trend};
