//! What calls cost: CPU by class, and latency by utilisation, fitted to reports (SLATE, 4.2).
//!
//! A pool is the servers of one service and region. Its exclusive latency of a class is `sensitivity × work ÷ (1 − utilisation) + base`:
//! one sensitivity for the pool and one base for each class. With a sensitivity for each class, the optimizer's problem is not convex
//! once several classes share a pool. Processor sharing says the same: what a call waits is proportional to its own work.
//! Every fit has an error and a time, so that a planner can refuse one that is poor or old.

mod linear_solver;
mod pool_costs;
mod pool_latency;
mod work_regression;

pub use pool_costs::{PoolCosts, PoolFit};
pub use pool_latency::{LatencyFit, LatencyObservation, PoolLatency};
pub use work_regression::{ClassWork, WorkFit, WorkRegression};
