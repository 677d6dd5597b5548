//! What a change would lead to, by the model in use: predicted before it is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{Region, RegionDrain, Regions, RoundTrips, ServiceName, Share};
use fairmesh_te::optimizer::{Caller, Effort, Plan, optimize};

use super::{
    Fallback, OptimizerInput, OptimizerPlanner, ServicePlan,
    graph_problem::{GraphProblem, Sources},
    service_model::{Known, ServiceModel, check_settings, fits_of, nodes_of},
    successive_solutions::{problem_service, problem_text},
};
use crate::{
    call_graph::{GraphEdge, GraphNode},
    facts::{PolicyFacts, ServiceFacts, StoredDrain, TopologyFacts},
};

/// The gap at which a prediction ends, and the most iterations that it takes.
const EFFORT: Effort = Effort { gap: 0.01, iterations: 200 };
/// Seconds in an hour.
const HOUR: f64 = 3_600.0;

/// A change of the mesh.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// What changed policies say to planners, with defaults.
    pub policies: BTreeMap<ServiceName, PolicyFacts>,
    /// Other declared regions and prices of bytes.
    pub regions: Option<Regions>,
    /// Other declared round trips.
    pub round_trips: Option<RoundTrips>,
    /// Factors of the demand of regions, or of all; each finite and not negative. A region's own comes after that of all.
    pub demand: Vec<(Option<Region>, f64)>,
    /// Regions whose servers are gone. Their callers stay.
    pub lost: BTreeSet<Region>,
}

/// Present and predicted state.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// What the tables in force cause, by the model.
    pub now: Prediction,
    /// What the best plan after the change causes.
    pub then: Prediction,
}

/// What a plan causes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Mean milliseconds of a client's call with all calls that are made for it.
    pub latency_ms: f64,
    /// Milliseconds by which the mean may be off, by the errors of the fits.
    pub latency_error_ms: f64,
    /// Dollars per hour for egress.
    pub egress: f64,
    /// The share of clients' calls that are shed.
    pub shed: f64,
    /// How far the cost of the plan may be above the least one, as a part of it.
    pub gap: f64,
    /// The services that the optimizer plans.
    pub services: BTreeMap<ServiceName, ServicePlan>,
    /// Services that ask for the optimizer and that it cannot plan.
    pub unplanned: BTreeMap<ServiceName, Fallback>,
}

impl OptimizerPlanner {
    /// What the model says of the present, and of a change. Services in shadow mode count as if their tables were in force.
    ///
    /// # Errors
    /// If there is nothing that the optimizer could plan, or no plan.
    pub fn what_if(
        &self,
        input: OptimizerInput<'_>,
        scenario: &Scenario,
        now_ms: u64,
    ) -> Result<WhatIf, Fallback> {
        let (mut nodes, mut edges) = self.graph_of_recent_demand(now_ms);
        let now = self.predict(input, (&nodes, &edges), now_ms, true)?;
        scale(&mut nodes, &mut edges, &scenario.demand);
        let topology = scenario.topology(input.topology);
        let services = scenario.services(input.services);
        let changed = OptimizerInput { services: &services, topology: &topology, ..input };
        Ok(WhatIf { now, then: self.predict(changed, (&nodes, &edges), now_ms, false)? })
    }

    /// What tables in force cause, or the best plan.
    fn predict(
        &self,
        input: OptimizerInput<'_>,
        (nodes, edges): (&[GraphNode], &[GraphEdge]),
        now_ms: u64,
        is_in_force: bool,
    ) -> Result<Prediction, Fallback> {
        let OptimizerInput { services, topology, .. } = input;
        let (mut models, mut unplanned) = self.scenario_models(input, nodes, now_ms);
        loop {
            if models.is_empty() {
                return Err(none_planned(&unplanned));
            }
            let (held, flows) = (&self.held, &self.flows);
            let sources =
                Sources { nodes, edges, models: &models, held, services, flows, topology, shifts: &[] };
            let built = GraphProblem::new(sources);
            let plan = match is_in_force {
                true => self.active.evaluate_in_force(&built, sources),
                false => optimize(&built.problem, None, EFFORT, &mut |_| true),
            };
            let error = match plan {
                Ok(plan) => return Ok(prediction((&built, &plan), &models, unplanned, now_ms)),
                Err(error) => error,
            };
            // One service without a plan must not hide those of all others.
            let why = problem_text(&built, &error);
            let Some(service) = problem_service(&built, &error).cloned() else { return Err(why) };
            if models.remove(&service).is_none() {
                return Err(why);
            }
            unplanned.insert(service, why);
        }
    }

    /// The models of the services that ask for the optimizer, and why the others have none.
    fn scenario_models(
        &self,
        input: OptimizerInput<'_>,
        nodes: &[GraphNode],
        now_ms: u64,
    ) -> (BTreeMap<ServiceName, ServiceModel>, BTreeMap<ServiceName, Fallback>) {
        let OptimizerInput { services, topology, .. } = input;
        let fits = self.costs.fits();
        let (mut models, mut unplanned) = (BTreeMap::new(), BTreeMap::new());
        for (service, facts) in services.iter().filter(|(_, facts)| facts.traffic.is_optimized()) {
            let known = Known { facts, nodes: nodes_of(nodes, service), fits: fits_of(&fits, service) };
            let model =
                check_settings(facts, topology).and_then(|()| ServiceModel::new(known, topology, now_ms));
            match model {
                Ok(mut model) => {
                    if let Some(known) = self.models.get(service) {
                        model.adopt_corrections(known);
                    }
                    models.insert(service.clone(), model);
                }
                Err(why) => drop(unplanned.insert(service.clone(), why)),
            }
        }
        (models, unplanned)
    }

    /// The regions that a scenario names and nothing else has, and all others: those that the topology declares, before or
    /// after the change, and those of endpoints and of calls.
    pub fn regions_of_scenario(
        &self,
        input: OptimizerInput<'_>,
        scenario: &Scenario,
        now_ms: u64,
    ) -> (BTreeSet<Region>, BTreeSet<Region>) {
        let declared = [Some(&input.topology.regions), scenario.regions.as_ref()];
        let declared = declared.into_iter().flatten().flat_map(|regions| regions.regions.keys());
        let mut known: BTreeSet<Region> = declared.cloned().collect();
        known.extend(input.services.values().flat_map(|facts| facts.endpoints.keys()).cloned());
        let (nodes, edges) = self.graph_of_recent_demand(now_ms);
        for node in &nodes {
            known.extend(node.demand.keys().chain(node.outside.keys()).cloned());
        }
        known.extend(edges.iter().flat_map(|edge| edge.from.keys()).cloned());
        let named = scenario.demand.iter().filter_map(|(region, _)| region.as_ref()).chain(&scenario.lost);
        (named.filter(|region| !known.contains(*region)).cloned().collect(), known)
    }
}

fn prediction(
    (built, plan): (&GraphProblem, &Plan),
    models: &BTreeMap<ServiceName, ServiceModel>,
    unplanned: BTreeMap<ServiceName, Fallback>,
    now_ms: u64,
) -> Prediction {
    let service = |(service, model): (&ServiceName, &ServiceModel)| {
        (service.clone(), built.service_plan(plan, (service, model), 0, now_ms))
    };
    Prediction {
        latency_ms: plan.mean_latency,
        latency_error_ms: plan.latency_error,
        egress: plan.egress * HOUR,
        shed: shed(built, plan),
        gap: plan.gap(),
        services: models.iter().map(service).collect(),
        unplanned,
    }
}

/// Why there is no prediction at all: the reason of each service.
fn none_planned(unplanned: &BTreeMap<ServiceName, Fallback>) -> Fallback {
    let reasons: Vec<_> = unplanned.iter().map(|(service, why)| format!("{service}: {}", why.text)).collect();
    let text = match &reasons[..] {
        [] => "no service asks for the optimizer".to_owned(),
        reasons => reasons.join("; "),
    };
    Fallback::new("unplanned", text)
}

impl Scenario {
    /// The topology after the change. Lost regions are as drained ones.
    fn topology(&self, present: &TopologyFacts) -> TopologyFacts {
        let mut topology = present.clone();
        if let Some(regions) = &self.regions {
            topology.regions = regions.clone();
        }
        if let Some(declared) = &self.round_trips {
            topology.round_trips.set_declared(declared.clone());
        }
        for region in &self.lost {
            let over = std::time::Duration::ZERO;
            let drain = RegionDrain { keep: Share::NONE, returns: false, over, began_at_ms: 0 };
            topology.drains.insert(region.clone(), StoredDrain { drain, revision: 0 });
        }
        topology
    }

    fn services(
        &self,
        present: &BTreeMap<ServiceName, Arc<ServiceFacts>>,
    ) -> BTreeMap<ServiceName, Arc<ServiceFacts>> {
        let mut services = present.clone();
        for (service, policy) in &self.policies {
            let facts = Arc::make_mut(services.entry(service.clone()).or_default());
            (facts.traffic, facts.not_understood) = (policy.traffic.clone(), policy.not_understood);
            (facts.local_only, facts.zone_first) = (policy.local_only, policy.zone_first);
            facts.subset = policy.subset;
        }
        services
    }
}

/// Multiplies the demand of regions. Calls for calls follow by their multiplicity.
fn scale(nodes: &mut [GraphNode], edges: &mut [GraphEdge], factors: &[(Option<Region>, f64)]) {
    let of = |region: &Region| -> f64 {
        let concerns = |of: &Option<Region>| of.as_ref().is_none_or(|of| of == region);
        factors.iter().filter(|(of, _)| concerns(of)).map(|(_, factor)| factor).product()
    };
    for node in nodes {
        let demand = node.demand.iter_mut().chain(&mut node.outside);
        demand.for_each(|(region, calls)| *calls *= of(region));
    }
    for edge in edges {
        edge.from.iter_mut().for_each(|(region, calls)| *calls *= of(region));
    }
}

/// The share of clients' calls that are shed.
fn shed(built: &GraphProblem, plan: &Plan) -> f64 {
    let (mut offered, mut served) = (0.0, 0.0);
    for (edge, admitted) in built.problem.edges.iter().zip(&plan.admitted) {
        if let Caller::Clients { demand, .. } = &edge.caller {
            let calls: f64 = demand.iter().sum();
            (offered, served) = (offered + calls, served + calls * admitted);
        }
    }
    if offered > 0.0 { (1.0 - served / offered).max(0.0) } else { 0.0 }
}
