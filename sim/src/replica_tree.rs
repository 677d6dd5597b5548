//! Simulates the propagation of the routing information base: a root, replicas by region, the agents of machines, their
//! programs.
//!
//! Every simulated process owns a real [`fairmesh_rib::NodeCore`]: table, log, watchers, pulls, snapshots, overflows
//! and acknowledgements are those of production, and messages have the sizes that production would send. Links,
//! processors and time are simulated. Of equal processes under one parent only some are simulated, and each of these
//! represents several: its cost to the parent is multiplied. A model of formulas was rejected: what breaks first is
//! what the formulas leave out.

mod catalogue;
mod engine;
mod meter;
mod process;
mod report;
mod scenario;
mod write_workload;

pub use engine::run;
pub use report::{Layer, Propagation, Recovery, Report, Traffic};
pub use scenario::{
    Action, Agents, Costs, Expect, Kind, Link, Machine, RegionAt, Replicas, Scenario, ScenarioEvent,
    Services, Size, Writes,
};
