//! All planners of a mesh: what the control plane and the simulator run in each round.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{ServiceName, TrafficReport};

use crate::{
    Now,
    facts::{ServiceFacts, TopologyFacts},
    optimizer::{OptimizerInput, OptimizerPlanner, Verdict},
    service_planner::{Prepared, Refused, ServicePlanner, TableWrite},
    workers::Workers,
};

/// Plans every service by the planner that its policy asks for.
///
/// Each service has a [`ServicePlanner`], which writes and confirms its tables, and plans by rings. For services that
/// ask for the optimizer it takes over the shares of the [`OptimizerPlanner`], which plans all of them at once.
/// Planners are kept in `Arc`s: a copy of all of them can be published, and a round copies only the planners that it
/// changes.
#[derive(Clone, Debug, Default)]
pub struct MeshPlanner {
    services: BTreeMap<ServiceName, Arc<ServicePlanner>>,
    optimizer: OptimizerPlanner,
    /// The last sum of reports and when it was formed, until it is counted.
    sum: Option<(TrafficReport, u64)>,
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
    /// One whose optimizer does not correct its model by what it measures of its plans, for comparison.
    pub fn without_adjustment() -> Self {
        Self { optimizer: OptimizerPlanner::without_adjustment(), ..Self::default() }
    }

    /// The planners, as the last round left them.
    pub fn services(&self) -> &BTreeMap<ServiceName, Arc<ServicePlanner>> {
        &self.services
    }

    /// What the optimizer knows.
    pub fn optimizer(&self) -> &OptimizerPlanner {
        &self.optimizer
    }

    /// Services whose programs do not pass the trace context of a call on, as [`OptimizerPlanner::without_trace_context`].
    pub fn without_trace_context(&self) -> BTreeMap<ServiceName, f64> {
        self.optimizer.without_trace_context()
    }

    /// Takes what a sum of all reports says of the time since the last one. The next round counts it, without services whose reports it
    /// refuses. Only the optimizer needs it. `now_ms` is of the clock of [`Now::ms`]; once a second is enough.
    pub fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        self.count_sum();
        self.sum = Some((sum.clone(), now_ms));
    }

    /// Plans the services that have anything to plan, each by one of the workers. `facts` has all services with a planner: others are
    /// forgotten.
    pub fn round(
        &mut self,
        facts: &BTreeMap<ServiceName, Arc<ServiceFacts>>,
        topology: &TopologyFacts,
        workers: &impl Workers,
        now: Now,
    ) -> Vec<ServiceRound> {
        let (mut rounds, mut prepared) = self.plan_by_rings(facts, topology, workers, now);
        self.count_sum();
        let refused = self.refused();
        self.optimizer.round(OptimizerInput { services: facts, refused: &refused, topology }, now);
        for (service, facts) in facts.iter().filter(|(_, facts)| facts.traffic.is_optimized()) {
            let verdict = self.optimizer.verdict(service);
            let own = prepared.remove(service);
            let Some(planner) = self.services.get_mut(service) else { continue };
            if own.is_none() && planner.verdict.as_ref() == Some(&verdict) {
                continue;
            }
            let planner = Arc::make_mut(planner);
            let own = own.unwrap_or_else(|| planner.prepare(facts, topology, now));
            rounds.push(finish((service, planner), facts, (own, Some(verdict)), now));
        }
        rounds
    }

    /// Rounds of services that rings plan, and the rounds by rings of services that ask for the optimizer.
    fn plan_by_rings<'a>(
        &mut self,
        facts: &'a BTreeMap<ServiceName, Arc<ServiceFacts>>,
        topology: &TopologyFacts,
        workers: &impl Workers,
        now: Now,
    ) -> (Vec<ServiceRound>, BTreeMap<&'a ServiceName, Prepared>) {
        self.services.retain(|service, _| facts.contains_key(service));
        for service in facts.keys().filter(|service| !self.services.contains_key(service)).collect::<Vec<_>>()
        {
            self.services.insert(service.clone(), Arc::new(ServicePlanner::of(service)));
        }
        // Both maps have the same keys now, in the same order.
        let due = self.services.values_mut().zip(facts).filter_map(|(planner, (service, facts))| {
            let leaves_optimizer = !facts.traffic.is_optimized() && planner.verdict.is_some();
            let is_due = leaves_optimizer || planner.is_due(facts, topology, now);
            is_due.then_some(DueService { service, facts, planner, outcome: None })
        });
        let mut due: Vec<_> = due.collect();
        workers.each(&mut due, |service| service.plan(topology, now));
        let (mut rounds, mut prepared) = (Vec::new(), BTreeMap::new());
        for DueService { service, outcome, .. } in due {
            match outcome {
                Some(Planned::ByRings(round)) => rounds.push(round),
                Some(Planned::Prepared(own)) => drop(prepared.insert(service, *own)),
                None => {}
            }
        }
        (rounds, prepared)
    }

    /// Counts the sum that is not counted yet, without services whose reports are refused.
    fn count_sum(&mut self) {
        if let Some((sum, at_ms)) = self.sum.take() {
            let refused = self.refused();
            self.optimizer.observe(sum, &refused, at_ms);
        }
    }

    /// Services whose reports the last round refused.
    fn refused(&self) -> BTreeSet<ServiceName> {
        let is_refused =
            |planner: &ServicePlanner| planner.refused.as_ref().is_some_and(Refused::is_of_reports);
        let refused = self.services.iter().filter(|(_, planner)| is_refused(planner));
        refused.map(|(service, _)| service.clone()).collect()
    }

    /// Notes that the tables of a round were written; `facts` and `now` are those of the round.
    pub fn written(&mut self, service: &ServiceName, facts: &ServiceFacts, tables: &[TableWrite], now: Now) {
        if let Some(planner) = self.services.get_mut(service) {
            Arc::make_mut(planner).written(facts, tables, now);
        }
    }
}

/// A service that a round plans.
struct DueService<'a, 'b> {
    service: &'a ServiceName,
    facts: &'a ServiceFacts,
    planner: &'b mut Arc<ServicePlanner>,
    outcome: Option<Planned>,
}

enum Planned {
    ByRings(ServiceRound),
    /// The optimizer has yet to judge.
    Prepared(Box<Prepared>),
}

impl DueService<'_, '_> {
    fn plan(&mut self, topology: &TopologyFacts, now: Now) {
        let planner = Arc::make_mut(self.planner);
        let own = planner.prepare(self.facts, topology, now);
        self.outcome = Some(match self.facts.traffic.is_optimized() {
            true => Planned::Prepared(Box::new(own)),
            false => Planned::ByRings(finish((self.service, planner), self.facts, (own, None), now)),
        });
    }
}

fn finish(
    (service, planner): (&ServiceName, &mut ServicePlanner),
    facts: &ServiceFacts,
    (prepared, verdict): (Prepared, Option<Verdict>),
    now: Now,
) -> ServiceRound {
    planner.verdict = verdict;
    let tables = planner.finish(facts, prepared, now);
    ServiceRound { service: service.clone(), tables, refused: planner.refused.clone() }
}
