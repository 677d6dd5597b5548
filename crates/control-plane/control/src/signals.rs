//! What processes report: the intake of reports, and the calls and load that they tell of.
//!
//! [`SignalsService`] takes what agents, replicas and programs report, and hands rows to their consumers: minutes of CPU go to
//! the imbalance indicator, rates of calls and servers to [`TrafficReports`], which keeps the last ones of each process, and
//! counts of calls to [`CallViews`], which has the last hour.
//! Operators read them from there, and planners find them in the facts of services. A further consumer of rows gets them in
//! the service.
//!
//! Planners read reports, and reports know no planner. Sums within the planner were rejected: a second planner and views of
//! operators would have to ask the first one for them.

mod call_graph;
mod call_views;
mod calls;
mod cost;
mod metrics;
mod service;
mod traffic_reports;
mod watched;

pub(crate) use call_views::{CallScope, CallViews};
pub(crate) use service::SignalsService;
pub(crate) use traffic_reports::TrafficReports;
