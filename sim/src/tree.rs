//! Simulates how the routing information base spreads: a root, replicas by region, the agents of machines, their programs.
//!
//! Every process that is played owns a real [`fairmesh_rib::PlainNode`]: table, log, watchers, pulls, snapshots, overflows and
//! acknowledgements are those of production, and messages have the sizes that production would send. Links, processors and time
//! are simulated. Of processes that are alike and under one parent some are played, and each of these stands for as many:
//! what they cost their parent counts as often. A tree of formulas instead was rejected: what breaks first is just what
//! nobody put into a formula.

mod catalogue;
mod engine;
mod meter;
mod place;
mod report;
mod scenario;
mod writes;

pub use engine::run;
pub use report::{Layer, Propagation, Recovery, Report, Traffic};
pub use scenario::{
    Action, Agents, Costs, Expect, Happening, Kind, Link, Machine, RegionAt, Replicas, Scenario, Services,
    Size, Writes,
};
