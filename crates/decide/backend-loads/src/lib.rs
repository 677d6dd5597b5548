//! Load of a gateway's backends, and which service causes an overload (Canal Mesh, section 4.3).
//!
//! [`LoadBoard`] receives the reports of replicas and keeps rates instead of counters: for each replica and service,
//! the most recent rate and the usual rate of the last minutes. A backend whose CPU utilisation reaches [`ALERT_LEVEL`]
//! has an [`Alert`] until the utilisation falls below [`SAFE_LEVEL`]. During an alert the usual rates are frozen, so
//! that the overload does not become the usual, and so are the rates of connections that are [`Limited`].
//! [`LoadBoard::review`] compares both rates, and names the service. [`crashing_service`] names a service that takes
//! its backends down. Callers pass the time.
//!
//! Rejected: a history of time steps for each service and replica. A hundred replicas with a thousand services each
//! would fill hundreds of megabytes, and two means answer the same question.

mod cause;
mod crashes;
mod day_loads;
mod limited_services;
mod load_board;
mod replica_report;
mod trend;

pub use cause::Cause;
pub use crashes::{CRASHED_FOR, Crashed, crashing_service};
pub use day_loads::{SLOTS, ServiceDays};
pub use limited_services::Limited;
pub use load_board::{
    ALERT_LEVEL, Alert, BackendLoad, INTERVAL, LoadBoard, MAX_REPLICAS, REPORTS_PER_SECOND, ReplicaLoad,
    SAFE_LEVEL,
};
pub use replica_report::{EntryLoad, MAX_SERVICES, Report, ServiceCounts};
pub use trend::{ServiceTrend, Trend};
