//! From facts of a mesh to region tables: what the control plane and the simulator run alike.
//!
//! [`MeshFacts`] is an index of policies, endpoints, tables, distances and drains, changed one record at a time, with
//! the last sum of reports. [`ServicePlanner`] makes the rounds of one service: from its [`ServiceFacts`] to the tables
//! that are to be written, by the planner of `fairmesh-te`. [`MeshPlanner`] makes the rounds of all services. Services
//! that ask for the optimizer are planned together by the [`OptimizerPlanner`]. [`CallGraph`] counts which calls are
//! made for which. [`next_keep`] says how far the drain of a region may go. No clock, no randomness, no I/O: the caller
//! applies records and reports, passes the present as [`Now`], and writes.
//!
//! One decision: a planner reads snapshots of facts and keeps a memory of its own, so that another planner can decide from the
//! same facts. A planner that owns its facts was rejected: two of them would disagree on the mesh.

mod call_graph;
mod cost_model;
mod egress_bill;
mod facts;
mod lone_shards;
mod mesh_planner;
mod model_adjustment;
mod optimizer;
mod path_templates;
mod planning_time;
mod region_drains;
mod service_planner;
mod table_conversion;
mod workers;

pub use fairmesh_te::drain::Forecast;

pub use call_graph::{CallGraph, GraphEdge, GraphNode, MAX_GRAPH_EDGES, MAX_GRAPH_NODES};
pub use cost_model::{
    ClassWork, LatencyFit, LatencyObservation, PoolCosts, PoolFit, PoolLatency, WorkFit, WorkRegression,
};
pub use egress_bill::{EgressBill, EgressPath, EgressSum, EgressTotals};
pub use facts::{
    CallerRates, MeshFacts, PolicyFacts, RegionEndpoints, ServiceFacts, ServiceReports, StoredDrain,
    StoredTable, Subset, TopologyFacts, ZoneRates,
};
pub use lone_shards::LoneShards;
pub use mesh_planner::{MeshPlanner, ServiceRound};
pub use model_adjustment::{Adjustments, Attempt, LatencyCorrection, Outcome, WorkCorrection};
pub use optimizer::{
    Expectation, Fallback, OptimizerInput, OptimizerPlanner, Prediction, Scenario, ServicePlan, Verdict,
    WhatIf,
};
pub use path_templates::{PathTemplate, PathTemplates, ProposedClass, propose_classes};
pub use planning_time::Now;
pub use region_drains::{DrainWait, next_keep, why_not_drained};
pub use service_planner::{
    DrainStep, KnownRegion, Refused, RegionZones, ServicePlanner, ShiftNote, TableWrite,
};
pub use workers::{InSequence, Workers};
