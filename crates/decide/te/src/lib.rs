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
mod check;
mod distances;
pub mod drain;
mod fill;
mod flows;
mod observation;
pub mod optimizer;
mod pace;
mod peak;
mod policy;
mod problem;
mod rings;
mod shift;
mod smoothed;
mod state;
mod table;
mod targets;
mod trust;
mod zones;

pub use check::{MAX_LOAD, Refusal};
pub use distances::RingMatrix;
pub use observation::{CallerReport, Observation, RegionObservation, ServerReport};
pub use policy::{LoadRing, MAX_CLASSES, MAX_REGIONS, RingsPolicy};
pub use rings::{Plan, PlanInput, plan};
pub use shift::{Cause, Destination, Shift};
pub use state::PlannerState;
pub use table::{ClassShares, MILLIONTHS, MIN_SHARE, RegionTable, Tables, WHOLE};
pub use trust::Doubt;
pub use zones::ZoneState;
