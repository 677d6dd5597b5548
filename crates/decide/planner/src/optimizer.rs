//! Plans of the optimizer for all services that ask for it together, from the same facts and reports as the rings planner.
//!
//! Reports become a [`CallGraph`] and [`PoolCosts`]. From these, `graph_problem` makes a problem of `fairmesh-te`: the calls to the
//! optimizer's services are free, those to other services have their present shares, and all others are demand of their regions. `solving`
//! solves it, starts from the solution before, and replaces the shares in force where that is worth it. A service of which
//! too little is known is left to the rings planner, and the others are planned around it.
//!
//! One decision: the state in force is that of the stored tables, not that of the last plan. So a control plane that takes over, a write
//! that failed and a person who changed a table are all the same case.

mod flows;
mod graph_problem;
mod service_model;
mod service_plan;
mod solving;
mod trace_context;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{Label, Region, ServiceName, TrafficMode, TrafficReport};

pub use service_plan::{Expectation, Fallback, ServicePlan, Verdict};

use crate::{
    Now,
    call_graph::{CallGraph, GraphEdge, GraphNode},
    cost_model::PoolCosts,
    facts::{ServiceFacts, TopologyFacts},
};
use flows::Flows;
use graph_problem::Sources;
use service_model::{Known, ServiceModel, check_settings, fits_of, nodes_of};
use solving::Solving;
use trace_context::TraceContexts;

/// The half-life of demand: a plan is for the calls of the last seconds, by the graph and the costs of the last minutes.
const DEMAND_HALF_LIFE_MS: f64 = 3_000.0;
/// The time from one solution to the next.
const PERIOD_MS: u64 = 5_000;

/// The optimizer of a mesh: the call graph and the costs of calls that reports show, and the last plan.
#[derive(Clone, Debug)]
pub struct OptimizerPlanner {
    graph: CallGraph,
    /// The same with the demand of the last seconds.
    recent: CallGraph,
    costs: PoolCosts,
    flows: Flows,
    contexts: TraceContexts,
    /// Services whose reports are not counted.
    distrusted: BTreeSet<ServiceName>,
    /// The plan of services whose tables are published.
    active: Solving,
    /// The plan as if tables of services in shadow mode were published too.
    shadow: Solving,
    verdicts: BTreeMap<ServiceName, Verdict>,
    /// What the last solution started from, and when.
    seen: Option<(u64, BTreeMap<ServiceName, Standing>)>,
}

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

/// What a plan of a service depends on besides its reports: a change is planned for at once.
#[derive(Clone, Debug, PartialEq)]
struct Standing {
    mode: TrafficMode,
    classes: Vec<Label>,
    serving: Vec<Region>,
    fallback: Option<Fallback>,
}

impl Default for OptimizerPlanner {
    fn default() -> Self {
        Self {
            graph: CallGraph::default(),
            recent: CallGraph::with_half_life(DEMAND_HALF_LIFE_MS),
            costs: PoolCosts::default(),
            flows: Flows::default(),
            contexts: TraceContexts::default(),
            distrusted: BTreeSet::new(),
            active: Solving::default(),
            shadow: Solving::default(),
            verdicts: BTreeMap::new(),
            seen: None,
        }
    }
}

impl OptimizerPlanner {
    /// Counts what a sum of reports says of the time since the last one. `now_ms` is of a clock that only advances. Services whose
    /// reports were refused in the last round do not count.
    pub fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        if self.distrusted.is_empty() {
            return self.count(sum, now_ms);
        }
        let mut sum = sum.clone();
        sum.calls.retain(|path, _| !self.distrusted.contains(&path.service));
        sum.served.retain(|path, _| !self.distrusted.contains(&path.node.service));
        sum.servers.retain(|(service, _), _| !self.distrusted.contains(service));
        self.count(&sum, now_ms);
    }

    fn count(&mut self, sum: &TrafficReport, now_ms: u64) {
        self.graph.observe(sum, now_ms);
        self.recent.observe(sum, now_ms);
        self.costs.observe(sum, now_ms);
        self.flows.observe(sum, now_ms);
        self.contexts.observe(sum, now_ms);
    }

    /// Plans anew, if the last plan is older than its period, or does not fit the facts any more.
    pub fn round(&mut self, input: OptimizerInput<'_>, now: Now) {
        let optimized = input.services.iter().filter(|(_, facts)| facts.traffic.is_optimized());
        let standings: BTreeMap<ServiceName, Standing> =
            optimized.map(|(service, facts)| (service.clone(), standing(input, service, facts))).collect();
        let is_due = self
            .seen
            .as_ref()
            .is_none_or(|(at_ms, seen)| now.ms.saturating_sub(*at_ms) >= PERIOD_MS || *seen != standings);
        self.distrusted.clone_from(input.refused);
        if !is_due {
            return;
        }
        if standings.is_empty() {
            *self = Self::default();
            return;
        }
        self.plan(input, &standings, now.ms);
        self.seen = Some((now.ms, standings));
    }

    /// Who plans a service that asks for the optimizer, by the last round.
    pub fn verdict(&self, service: &ServiceName) -> Verdict {
        let unknown = || Verdict::Rings(Fallback::new("unsolved", "no plan was made yet"));
        self.verdicts.get(service).cloned().unwrap_or_else(unknown)
    }

    /// Services whose programs do not pass the trace context of a call on to the calls that they make for it, with the share of their calls
    /// that name no parent. Their calls are planned as demand of their regions, hop by hop.
    pub fn without_trace_context(&self) -> BTreeMap<ServiceName, f64> {
        self.contexts.missing()
    }

    /// The nodes and edges of the graph, with the demand of the last seconds.
    fn graph_of_recent_demand(&self, now_ms: u64) -> (Vec<GraphNode>, Vec<GraphEdge>) {
        let (mut nodes, mut edges) = (self.graph.nodes(now_ms), self.graph.edges(now_ms));
        // Both have seen the same sums, and have the same nodes and edges.
        for (node, recent) in nodes.iter_mut().zip(self.recent.nodes(now_ms)) {
            (node.demand, node.outside) = (recent.demand, recent.outside);
        }
        for (edge, recent) in edges.iter_mut().zip(self.recent.edges(now_ms)) {
            edge.from = recent.from;
        }
        (nodes, edges)
    }

    fn plan(&mut self, input: OptimizerInput<'_>, standings: &BTreeMap<ServiceName, Standing>, now_ms: u64) {
        let OptimizerInput { services, topology, .. } = input;
        let ((nodes, edges), fits) = (self.graph_of_recent_demand(now_ms), self.costs.fits());
        let left_out = self.graph.left_out();
        let model = |service: &ServiceName, standing: &Standing| match &standing.fallback {
            Some(fallback) => Err(fallback.clone()),
            None if left_out > 0 => {
                Err(Fallback::new("left_out", format!("the call graph has no room for {left_out} nodes")))
            }
            None => {
                let facts = services.get(service).map(|facts| &**facts);
                let facts = facts.ok_or_else(|| Fallback::new("unsolved", "no plan was made yet"))?;
                let known = Known { facts, nodes: nodes_of(&nodes, service), fits: fits_of(&fits, service) };
                ServiceModel::new(known, topology, now_ms)
            }
        };
        let (mut all, mut active) = (BTreeMap::new(), BTreeMap::new());
        self.verdicts.clear();
        for (service, standing) in standings {
            match model(service, standing) {
                Ok(model) => {
                    if standing.mode == TrafficMode::Active {
                        active.insert(service.clone(), model.clone());
                    }
                    all.insert(service.clone(), model);
                }
                Err(fallback) => drop(self.verdicts.insert(service.clone(), Verdict::Rings(fallback))),
            }
        }
        let has_shadow = active.len() < all.len();
        let sources =
            Sources { nodes: &nodes, edges: &edges, models: &active, services, flows: &self.flows, topology };
        self.active.round(sources, now_ms);
        match has_shadow {
            true => self.shadow.round(Sources { models: &all, ..sources }, now_ms),
            false => self.shadow = Solving::default(),
        }
        for service in all.keys() {
            let solving = if active.contains_key(service) { &self.active } else { &self.shadow };
            let verdict = match solving.plan_of(service) {
                Ok(plan) => Verdict::Optimized(Arc::clone(plan)),
                Err(fallback) => Verdict::Rings(fallback),
            };
            self.verdicts.insert(service.clone(), verdict);
        }
    }
}

fn standing(input: OptimizerInput<'_>, service: &ServiceName, facts: &ServiceFacts) -> Standing {
    let refused = input.refused.contains(service);
    let fallback = match check_settings(facts, input.topology) {
        Ok(()) if refused => Some(Fallback::new("reports", "its reports are refused")),
        Ok(()) => None,
        Err(fallback) => Some(fallback),
    };
    let serving = facts.endpoints.keys().filter(|region| facts.serving_in(region) > 0);
    Standing {
        mode: facts.traffic.mode,
        classes: facts.traffic.classes.clone(),
        serving: serving.cloned().collect(),
        fallback,
    }
}

#[cfg(test)]
mod tests;
