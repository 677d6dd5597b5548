//! Simulates the propagation of the routing information base: a root, replicas by region, agents of machines, and
//! programs.
//!
//! Every simulated process owns a real [`fairmesh_rib::NodeCore`]: table, log, watchers, pulls, snapshots, overflows
//! and acknowledgements are those of production, and messages have their production sizes. Links, processors and time
//! are simulated. Of equal processes under one parent only some are simulated, each representing several: its cost to
//! the parent is multiplied. Rejected: a model of formulas, because what breaks first is what formulas leave out.

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
