//! Receives reports of processes, and keeps the calls and load that they describe.
//!
//! [`SignalsService`] receives the reports of agents, replicas and programs, and passes rows to their
//! consumers. Minutes of CPU go to the imbalance indicator; rates of calls and servers go to
//! [`TrafficReports`], which keeps the last report of each process; counts of calls go to [`CallViews`],
//! which keeps the last hour. Operators read these, and planners find them in the facts about services. A new
//! consumer of rows is added in the service.
//!
//! Planners read reports, but reports do not depend on planners. Sums within the planner were rejected: a
//! second planner, and operators' views, would have to ask the first planner for them.

mod attributed_cpu;
mod call_queries;
mod call_views;
mod metrics;
mod service;
mod traffic_reports;
mod watched_graph;
mod watched_services;

pub(crate) use call_views::CallViews;
pub(crate) use service::SignalsService;
pub(crate) use traffic_reports::TrafficReports;
