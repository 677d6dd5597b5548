//! Plans of the optimizer for all services that ask for it together, from the same facts and reports as the rings planner.
//!
//! Reports become a [`CallGraph`] and [`PoolCosts`]. From these, `graph_problem` makes a problem of `fairmesh-te`: the
//! calls to the optimizer's services are free, calls to other services have their present shares, and all other calls
//! are demand of their regions. `solving` solves it, starts from the previous solution, and replaces the shares in
//! force where that is worth it. If too little is known about a service, the rings planner plans it, and the optimizer
//! plans the others around it.
//!
//! One decision: the state in force is that of the stored tables, not that of the last plan. So a control plane that takes over, a write
//! that failed and a person who changed a table are all the same case.

mod current_flows;
mod graph_problem;
mod missing_trace_context;
mod service_model;
mod service_plan;
mod successive_solutions;
mod trial_shifts;
mod what_if;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{Label, Region, ServiceName, TrafficMode, TrafficReport};

pub(crate) use service_model::ServiceModel;
pub use service_plan::{Expectation, Fallback, ServicePlan, Verdict};
pub use what_if::{Prediction, Scenario, WhatIf};

use crate::{
    Now,
    call_graph::{CallGraph, GraphEdge, GraphNode},
    cost_model::PoolCosts,
    facts::{ServiceFacts, TopologyFacts},
    model_adjustment::{Adjustment, Outcome, Present},
};
use current_flows::Flows;
use graph_problem::Sources;
use missing_trace_context::TraceContexts;
use service_model::{Known, check_settings, fits_of, nodes_of};
use successive_solutions::Solving;

/// The half-life of demand: a plan is for the calls of the last seconds, by the graph and the costs of the last minutes.
const DEMAND_HALF_LIFE_MS: f64 = 3_000.0;
/// A half-life that leaves nothing of the sums before.
const LATEST_HALF_LIFE_MS: f64 = 1.0;
/// The reason of a fallback because reports are refused.
const REFUSED: &str = "reports";
/// The time from one solution to the next.
const PERIOD_MS: u64 = 5_000;
/// Solutions for a rise of demand alone within [`PERIOD_MS`]. Calls in bursts rise in each second, and a solution may take two seconds,
/// for which the rounds of all services wait.
const MAX_RISES: usize = 3;

/// The optimizer of a mesh: the call graph and the costs of calls that reports show, and the last plan.
#[derive(Clone, Debug)]
pub struct OptimizerPlanner {
    graph: CallGraph,
    /// The same with the demand of the last seconds.
    recent: CallGraph,
    /// The same with the demand of the last sum.
    latest: CallGraph,
    /// Whether demand rose notably since the last plan.
    has_risen: bool,
    /// When plans were made for a rise alone, within the last period.
    rises: Vec<u64>,
    costs: PoolCosts,
    adjustment: Adjustment,
    flows: Flows,
    contexts: TraceContexts,
    /// The plan of services whose tables are published.
    active: Solving,
    /// The plan as if tables of services in shadow mode were published too.
    shadow: Solving,
    verdicts: BTreeMap<ServiceName, Verdict>,
    /// Services with servers in a region that the last sum does not report.
    unheard: BTreeSet<ServiceName>,
    /// The models of the last plan.
    models: BTreeMap<ServiceName, ServiceModel>,
    /// The last models of services whose reports are refused.
    held: BTreeMap<ServiceName, ServiceModel>,
    /// What the last solution started from, and when.
    seen: Option<(u64, BTreeMap<ServiceName, Standing>)>,
}

/// What a round of the optimizer starts from.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerInput<'a> {
    /// The facts of all services with a planner.
    pub services: &'a BTreeMap<ServiceName, Arc<ServiceFacts>>,
    /// Services whose reports the rings planner refuses.
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
            latest: CallGraph::with_half_life(LATEST_HALF_LIFE_MS),
            has_risen: false,
            rises: Vec::new(),
            costs: PoolCosts::default(),
            adjustment: Adjustment::default(),
            flows: Flows::default(),
            contexts: TraceContexts::default(),
            active: Solving::default(),
            shadow: Solving::default(),
            verdicts: BTreeMap::new(),
            unheard: BTreeSet::new(),
            models: BTreeMap::new(),
            held: BTreeMap::new(),
            seen: None,
        }
    }
}

impl OptimizerPlanner {
    /// One that does not correct its model by what it measures of its plans, for comparison.
    pub(crate) fn without_adjustment() -> Self {
        Self { adjustment: Adjustment::off(), ..Self::default() }
    }

    /// Counts what a sum of reports says of the time since the last one. `now_ms` is of a clock that only advances.
    /// Services whose reports are refused stay as they are known, and so do services with servers in a region without
    /// reports.
    pub fn observe(&mut self, mut sum: TrafficReport, refused: &BTreeSet<ServiceName>, now_ms: u64) {
        let is_unheard =
            |standing: &Standing| standing.serving.iter().any(|region| !sum.regions.contains(region));
        let seen = self.seen.iter().flat_map(|(_, seen)| seen);
        let unheard = seen.filter(|(_, standing)| is_unheard(standing));
        self.unheard = unheard.map(|(service, _)| service.clone()).collect();
        let held: BTreeSet<ServiceName> = refused.union(&self.unheard).cloned().collect();
        if !held.is_empty() {
            sum.calls.retain(|path, _| !held.contains(&path.service));
            sum.served.retain(|path, _| !held.contains(&path.node.service));
            sum.servers.retain(|(service, _), _| !held.contains(service));
        }
        for graph in [&mut self.graph, &mut self.recent, &mut self.latest] {
            graph.observe_except(&held, &sum, now_ms);
        }
        self.has_risen |= self.recent.adopt_rises(&self.latest);
        self.costs.observe(&sum, now_ms);
        self.adjustment.observe(&sum, &mut self.costs, now_ms);
        self.flows.observe(&sum, now_ms);
        self.contexts.observe(&sum, now_ms);
    }

    /// Plans anew, if the last plan is older than its period, demand has risen since, or it does not fit the facts any more. A rise
    /// beyond the third of a period waits.
    pub fn round(&mut self, input: OptimizerInput<'_>, now: Now) {
        let optimized = input.services.iter().filter(|(_, facts)| facts.traffic.is_optimized());
        let standings: BTreeMap<ServiceName, Standing> =
            optimized.map(|(service, facts)| (service.clone(), standing(input, service, facts))).collect();
        let fits = |(at_ms, seen): &(u64, BTreeMap<_, _>)| {
            now.ms.saturating_sub(*at_ms) < PERIOD_MS && *seen == standings
        };
        self.rises.retain(|at_ms| now.ms.saturating_sub(*at_ms) < PERIOD_MS);
        if self.seen.as_ref().is_some_and(fits) {
            if !self.has_risen || self.rises.len() >= MAX_RISES {
                return;
            }
            self.rises.push(now.ms);
        }
        if standings.is_empty() {
            *self = Self { adjustment: self.adjustment.cleared(), ..Self::default() };
            return;
        }
        self.plan(input, &standings, now.ms);
        self.has_risen = false;
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
        // All graphs have seen the same sums, and have the same nodes and edges.
        let nodes = self.recent.with_recent_demand(&self.graph, now_ms);
        let mut edges = self.graph.edges(now_ms);
        for (edge, recent) in edges.iter_mut().zip(self.recent.edges(now_ms)) {
            edge.from = recent.from;
        }
        (nodes, edges)
    }

    fn plan(&mut self, input: OptimizerInput<'_>, standings: &BTreeMap<ServiceName, Standing>, now_ms: u64) {
        let OptimizerInput { services, topology, .. } = input;
        let (nodes, edges) = self.graph_of_recent_demand(now_ms);
        self.learn_models(input, (standings, &nodes), now_ms);
        self.forget_unnamed(input, now_ms);
        for (service, model) in &mut self.models {
            if !self.unheard.contains(service) {
                self.adjustment.correct(service, model, now_ms);
            }
        }
        let is_active = |service: &&ServiceName| standings[*service].mode == TrafficMode::Active;
        let active = self.models.iter().filter(|(service, _)| is_active(service));
        let active = active.map(|(service, model)| (service.clone(), model.clone())).collect();
        let (models, held, flows) = (&active, &self.held, &self.flows);
        let plans = self.active.plans();
        let is_same = self.seen.as_ref().is_some_and(|(_, seen)| seen == standings);
        let is_calm = is_same && !self.has_risen && self.unheard.is_empty() && held.is_empty();
        let change = self.adjustment.advance(Present { models, plans, topology, is_calm, now_ms });
        let shifts = self.adjustment.shifts();
        let (nodes, edges, shifts) = (&nodes[..], &edges[..], &shifts[..]);
        let sources = Sources { nodes, edges, models, held, services, flows, topology, shifts };
        let has_begun = match change.map(|shift| self.active.shift(sources, &shift, now_ms)) {
            Some(Some(fuller)) => {
                self.adjustment.watch(fuller);
                self.adjustment.is_trying()
            }
            Some(None) => {
                // A change that cannot be taken back goes with the next plan.
                if !self.adjustment.is_trying() {
                    self.active.republish();
                }
                self.adjustment.end_attempt(Outcome::HeadRoom, now_ms);
                false
            }
            None => false,
        };
        // A round that takes a change back is about another fault, perhaps, which cannot wait.
        if !has_begun && self.active.round(sources, now_ms) {
            self.adjustment.end_attempt(Outcome::Replanned, now_ms);
        }
        match active.len() < self.models.len() {
            true => drop(self.shadow.round(Sources { models: &self.models, shifts: &[], ..sources }, now_ms)),
            false => self.shadow = Solving::default(),
        }
        for service in self.models.keys() {
            let solving = if active.contains_key(service) { &self.active } else { &self.shadow };
            self.verdicts.insert(service.clone(), verdict(solving, &self.adjustment, service));
        }
    }

    /// Forgets corrections of what no service that asks for the optimizer has any more: regions with endpoints, and classes of the policy.
    fn forget_unnamed(&mut self, input: OptimizerInput<'_>, now_ms: u64) {
        let is_named = |service: &ServiceName, region: &Region, class: Option<&Label>| {
            let facts = input.services.get(service).filter(|facts| facts.traffic.is_optimized());
            facts.is_some_and(|facts| {
                facts.endpoints.contains_key(region)
                    && class.is_none_or(|class| facts.traffic.classes.contains(class))
            })
        };
        self.adjustment.retain(is_named, now_ms);
    }

    /// Makes a model of each service, or says why there is none. The last one stays while reports are missing; while they are refused,
    /// it is held.
    fn learn_models(
        &mut self,
        input: OptimizerInput<'_>,
        (standings, nodes): (&BTreeMap<ServiceName, Standing>, &[GraphNode]),
        now_ms: u64,
    ) {
        let (fits, left_out) = (self.costs.fits(), self.graph.left_out());
        let model = |service: &ServiceName, standing: &Standing| match &standing.fallback {
            Some(fallback) => Err(fallback.clone()),
            None if left_out > 0 => {
                Err(Fallback::new("left_out", format!("the call graph has no room for {left_out} nodes")))
            }
            None => {
                let facts = input.services.get(service).map(|facts| &**facts);
                let facts = facts.ok_or_else(|| Fallback::new("unsolved", "no plan was made yet"))?;
                let known = Known { facts, nodes: nodes_of(nodes, service), fits: fits_of(&fits, service) };
                ServiceModel::new(known, input.topology, now_ms)
            }
        };
        let mut before = std::mem::take(&mut self.held);
        before.append(&mut self.models);
        self.verdicts.clear();
        for (service, standing) in standings {
            let last = before.remove(service).filter(|last| last.classes == standing.classes);
            let last = last.and_then(|last| last.held(&standing.serving, now_ms));
            let is_held = standing.fallback.is_none() && left_out == 0 && self.unheard.contains(service);
            match (last, is_held) {
                (Some(last), true) => drop(self.models.insert(service.clone(), last)),
                (last, _) => match model(service, standing) {
                    Ok(model) => drop(self.models.insert(service.clone(), model)),
                    Err(fallback) => {
                        let last = last.filter(|_| fallback.reason == REFUSED);
                        self.held.extend(last.map(|last| (service.clone(), last)));
                        self.verdicts.insert(service.clone(), Verdict::Rings(fallback));
                    }
                },
            }
        }
    }
}

/// Who plans a service with a model.
fn verdict(solving: &Solving, adjustment: &Adjustment, service: &ServiceName) -> Verdict {
    match solving.plan_of(service) {
        Ok(plan) => {
            let adjustments = adjustment.of_service(service);
            Verdict::Optimized(Arc::new(ServicePlan { adjustments, ..ServicePlan::clone(plan) }))
        }
        Err(fallback) => Verdict::Rings(fallback),
    }
}

fn standing(input: OptimizerInput<'_>, service: &ServiceName, facts: &ServiceFacts) -> Standing {
    let refused = input.refused.contains(service);
    let fallback = match check_settings(facts, input.topology) {
        Ok(()) if refused => Some(Fallback::new(REFUSED, "its reports are refused")),
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
