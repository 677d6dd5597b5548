//! Traffic engineering across regions: planners that compute from global knowledge which region serves which share of
//! a service's calls (ServiceRouter §3.4.1).
//!
//! A planner is a function: from a [`RingsPolicy`], [`RingMatrix`], [`Observation`] and the [`PlannerState`] of the
//! round before to [`Tables`], the reasons of each change, and the next state. The control plane and the simulator run
//! the same code. No clock, no randomness, no I/O; sums are formed in the order of regions, so the same input gives
//! the same tables on every machine.
//!
//! [`optimizer`] plans whole call graphs of several services at once. It shares the crate, and not the state of the rings planner.
//!
//! One decision: the plan is computed from demand by source region and work per call, not from the error of measured
//! load alone. Demand does not depend on the table in force, so reports that are seconds old do not make the planner
//! move the same calls twice. A controller on load alone was rejected, because it has to be slower than its reports.

mod backlog;
mod capacity_trust;
mod class_mix;
pub mod drain;
mod observation;
mod observation_check;
pub mod optimizer;
mod pid_controller;
mod planner_state;
mod reach;
mod recent_peak;
mod region_flows;
mod ring_fill;
mod ring_matrix;
mod rings_planner;
mod rings_policy;
mod round_problem;
mod share_tables;
mod shift;
mod smoothed_value;
mod targets;
mod zones;

pub use capacity_trust::Doubt;
pub use observation::{CallerReport, Observation, RegionObservation, ServerReport, Spread};
pub use observation_check::{MAX_LOAD, Refusal};
pub use planner_state::PlannerState;
pub use ring_matrix::RingMatrix;
pub use rings_planner::{Plan, PlanInput, plan};
pub use rings_policy::{LoadRing, MAX_CLASSES, MAX_REGIONS, RingsPolicy};
pub use share_tables::{ClassShares, MILLIONTHS, MIN_SHARE, RegionTable, Tables, WHOLE};
pub use shift::{Cause, Destination, Shift};
pub use zones::ZoneState;
