//! The optimizer: where each call of an application runs, hop by hop, so that latency plus the price of egress is least
//! (SLATE §4.3).
//!
//! A [`Problem`] is a call graph of (service, class) nodes, the pools of servers that serve it, distances and prices.
//! [`optimize`] returns a [`Plan`]: shares by edge and source region, with the predicted loads and a lower bound on what any
//! plan costs. [`admit`] comes first: it decides which demand fits, by priority.
//!
//! One decision: the latency of a pool is `sensitivity × work / (1 − load)`, one sensitivity for all classes of a pool. Then the
//! cost is convex, so that a lower bound follows from the prices of the pools, and the gap to the optimum is known. A sensitivity
//! for each class, as in the paper, was rejected: its cost always has a direction of negative curvature, and its authors hand it to a
//! branch-and-bound solver that cannot prove its result within a minute from 60 variables on.

mod admission;
mod arc_flows;
mod baselines;
mod compiled_problem;
mod dead_band;
mod egress_cap;
mod line_search;
mod newton;
mod optimize;
mod plan;
mod plan_tables;
mod pool_cost;
mod pricing;
mod problem;
mod solver;
mod topological_order;
mod validation;
mod waterfall;

pub use admission::{Admission, admit};
pub use baselines::{ring_by_criticality, waterfall};
pub use dead_band::is_worth_publishing;
pub use optimize::optimize;
pub use plan::{Plan, Shares};
pub use problem::{Caller, Edge, Kink, Node, Preferences, Problem, ServicePools};
pub use solver::{Effort, Progress};
pub use validation::ProblemError;
