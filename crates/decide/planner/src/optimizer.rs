//! Plans of the optimizer for all services that ask for it together, from the same facts and reports as the rings planner.

mod service_plan;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{ServiceName, TrafficReport};

pub use service_plan::{Expectation, Fallback, ServicePlan, Verdict};

use crate::{
    Now,
    facts::{ServiceFacts, TopologyFacts},
};

/// The optimizer of a mesh: the call graph and the costs of calls that reports show, and the last plan.
#[derive(Clone, Debug, Default)]
pub struct OptimizerPlanner {}

/// What a round of the optimizer starts from.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerInput<'a> {
    /// The facts of all services with a planner.
    pub services: &'a BTreeMap<ServiceName, Arc<ServiceFacts>>,
    /// Services whose reports the rings planner refused in the round before.
    pub refused: &'a BTreeSet<ServiceName>,
    /// Regions, distances, drains and prices.
    pub topology: &'a TopologyFacts,
}

impl OptimizerPlanner {
    /// Counts what a sum of reports says of the time since the last one. `now_ms` is of a clock that only advances.
    pub fn observe(&mut self, _sum: &TrafficReport, _now_ms: u64) {}

    /// Plans anew, if the last plan is older than its period or does not fit the facts any more.
    pub fn round(&mut self, _input: OptimizerInput<'_>, _now: Now) {}

    /// Who plans a service that asks for the optimizer, by the last round.
    pub fn verdict(&self, _service: &ServiceName) -> Verdict {
        Verdict::Rings(Fallback::new("no_model", "no reports were counted yet"))
    }
}
