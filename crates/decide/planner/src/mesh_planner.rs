//! All planners of a mesh: what the control plane and the simulator run in each round.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{ServiceName, TrafficReport};

use crate::{
    Now,
    facts::{ServiceFacts, TopologyFacts},
    optimizer::{OptimizerInput, OptimizerPlanner},
    service_planner::{Refused, STARTING, ServicePlanner, TableWrite},
};

/// Plans every service by the planner that its policy asks for.
///
/// Each service has a [`ServicePlanner`], which writes and confirms its tables, and plans by rings. For services that ask for the
/// optimizer it takes over the shares of the [`OptimizerPlanner`], which plans all of them at once. Planners are kept in `Arc`s: a copy of
/// them all can be published, and a round copies those that it changes.
#[derive(Clone, Debug, Default)]
pub struct MeshPlanner {
    services: BTreeMap<ServiceName, Arc<ServicePlanner>>,
    optimizer: OptimizerPlanner,
}

/// A round of one service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRound {
    /// The service.
    pub service: ServiceName,
    /// The tables to be written, all in one batch.
    pub tables: Vec<TableWrite>,
    /// Why the tables were not planned anew.
    pub refused: Option<Refused>,
}

impl MeshPlanner {
    /// The planners, as the last round left them.
    pub fn services(&self) -> &BTreeMap<ServiceName, Arc<ServicePlanner>> {
        &self.services
    }

    /// Services whose programs do not pass the trace context of a call on, as [`OptimizerPlanner::without_trace_context`].
    pub fn without_trace_context(&self) -> BTreeMap<ServiceName, f64> {
        self.optimizer.without_trace_context()
    }

    /// Counts what a sum of all reports says of the time since the last one. Only the optimizer needs it. `now_ms` is of the clock of
    /// [`Now::ms`]; once a second is enough.
    pub fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        self.optimizer.observe(sum, now_ms);
    }

    /// Plans the services that have anything to plan. `facts` has all services with a planner: others are forgotten.
    pub fn round(
        &mut self,
        facts: &BTreeMap<ServiceName, Arc<ServiceFacts>>,
        topology: &TopologyFacts,
        now: Now,
    ) -> Vec<ServiceRound> {
        self.services.retain(|service, _| facts.contains_key(service));
        let is_refused = |planner: &ServicePlanner| {
            planner.refused.as_ref().is_some_and(|refused| refused.reason != STARTING)
        };
        let refused = self.services.iter().filter(|(_, planner)| is_refused(planner));
        let refused: BTreeSet<ServiceName> = refused.map(|(service, _)| service.clone()).collect();
        self.optimizer.round(OptimizerInput { services: facts, refused: &refused, topology }, now);
        let mut rounds = Vec::new();
        for (service, facts) in facts {
            let verdict = facts.traffic.is_optimized().then(|| self.optimizer.verdict(service));
            let planner = self.services.entry(service.clone()).or_default();
            if !planner.is_due(facts, topology, now) && planner.verdict == verdict {
                continue;
            }
            let planner = Arc::make_mut(planner);
            planner.verdict = verdict;
            let tables = planner.round(facts, topology, now);
            rounds.push(ServiceRound { service: service.clone(), tables, refused: planner.refused.clone() });
        }
        rounds
    }

    /// Notes that the tables of a round were written; `facts` and `now` are those of the round.
    pub fn written(&mut self, service: &ServiceName, facts: &ServiceFacts, tables: &[TableWrite], now: Now) {
        if let Some(planner) = self.services.get_mut(service) {
            Arc::make_mut(planner).written(facts, tables, now);
        }
    }
}
