//! Planners that know the application's true model, and learn only the demand from reports.

use std::sync::Arc;

use fairmesh_model::{Invalid, Label, Region, TrafficShares};
use fairmesh_planner::ServiceFacts;
use fairmesh_te::optimizer::{
    Caller, Effort, Plan, Problem, ProblemError, is_worth_publishing, optimize, ring_by_criticality,
    waterfall,
};

use super::{controller::Planner, reports::Names};
use crate::application::Scenario;

/// Weight of a new interval in the demand estimate: a single second of Poisson arrivals is off by several percent.
const WEIGHT: f64 = 0.3;
/// Loads to try when searching for Waterfall's best threshold.
const THRESHOLDS: [f64; 9] = [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0];
const EFFORT: Effort = Effort { gap: 1e-3, iterations: 300 };
/// A plan must be better by at least this relative amount to be published.
const DEAD_BAND: f64 = 0.01;

/// Tables of services, by region of the callers.
pub(super) type ServiceShares = Vec<(usize, Vec<(Region, TrafficShares)>)>;

/// A planner of all services.
#[derive(Debug)]
pub(super) struct Contender {
    planner: Planner,
    /// Threshold of Waterfall and ring by criticality.
    load: f64,
    problem: Problem,
    /// By service: its operations, and the class labels of all but the first.
    nodes: Vec<(Vec<usize>, Vec<Label>)>,
    in_force: Option<Plan>,
    has_heard: bool,
    /// The scenario, for the oracle, which knows the effect of events on servers.
    scenario: Option<Scenario>,
}

impl Contender {
    pub(super) fn new(scenario: &Scenario, planner: Planner, names: &Names) -> Result<Self, Invalid> {
        let problem = scenario.problem();
        let of_service = |service: usize| {
            let nodes: Vec<usize> =
                (0..problem.nodes.len()).filter(|node| problem.nodes[*node].service == service).collect();
            let labels = nodes.iter().filter_map(|node| names.nodes[*node].class.clone()).collect();
            (nodes, labels)
        };
        let nodes = (0..problem.services.len()).map(of_service).collect();
        let load = match planner {
            Planner::WaterfallBest => best_threshold(scenario),
            _ => scenario.waterfall,
        };
        let scenario = (planner == Planner::Oracle).then(|| scenario.clone());
        Ok(Self { planner, load, problem, nodes, in_force: None, has_heard: false, scenario })
    }

    /// Computes tables for the demand in the last reports. Empty if the last plan is as good, or if there is no plan.
    pub(super) fn plan(&mut self, facts: &[Arc<ServiceFacts>], names: &Names, now: u64) -> ServiceShares {
        if let Some(scenario) = &self.scenario {
            let Problem { services, corrections, .. } = scenario.problem_at(now);
            (self.problem.services, self.problem.corrections) = (services, corrections);
        }
        match self.learn_demand(facts, names) {
            // A problem of a valid scenario is refused only if no server is left; tables then stay.
            true => self.plan_known(names).unwrap_or_default(),
            false => Vec::new(),
        }
    }

    /// As `plan`, for the demand that is known.
    ///
    /// # Errors
    /// Why there is no plan.
    pub(super) fn plan_known(&mut self, names: &Names) -> Result<ServiceShares, ProblemError> {
        let Some(plan) = self.next_plan()? else { return Ok(Vec::new()) };
        let tables = self.nodes.iter().enumerate().map(|(service, (nodes, labels))| {
            let tables = plan.tables(&self.problem, nodes);
            let sources = names.regions.iter().zip(tables.sources);
            let shares =
                sources.map(|(region, table)| (region.clone(), table.to_shares(&names.regions, labels)));
            (service, shares.collect())
        });
        let tables = tables.collect();
        self.in_force = Some(plan);
        Ok(tables)
    }

    fn next_plan(&self) -> Result<Option<Plan>, ProblemError> {
        let problem = &self.problem;
        match self.planner {
            Planner::Criticality => ring_by_criticality(problem, self.load).map(Some),
            Planner::Oracle => {
                let plan = optimize(problem, self.in_force.as_ref(), EFFORT, &mut |_| true)?;
                let is_worth = match &self.in_force {
                    Some(in_force) => is_worth_publishing(problem, in_force, &plan, DEAD_BAND)?,
                    None => true,
                };
                Ok(is_worth.then_some(plan))
            }
            _ => waterfall(problem, self.load).map(Some),
        }
    }

    /// Learns offered client calls, and regions with servers, from reports. Returns false before there are any calls.
    fn learn_demand(&mut self, facts: &[Arc<ServiceFacts>], names: &Names) -> bool {
        let weight = if self.has_heard { WEIGHT } else { 1.0 };
        for edge in &mut self.problem.edges {
            let Caller::Clients { demand, .. } = &mut edge.caller else { continue };
            let node = &names.nodes[edge.callee];
            let service = self.problem.nodes[edge.callee].service;
            for (region, known) in names.regions.iter().zip(demand) {
                if !facts[service].reports.heard.contains(region) {
                    continue;
                }
                let of_clients = facts[service].reports.calls.iter().filter(|(path, _)| {
                    path.parent.is_none() && path.from == *region && path.class == node.class
                });
                let offered: f64 = of_clients.map(|(_, rates)| rates.offered as f64 / 1e3).sum();
                *known += weight * (offered - *known);
                self.has_heard |= offered > 0.0;
            }
        }
        self.has_heard
    }
}

/// The threshold with which Waterfall is fastest according to the model, at the scenario's rates.
fn best_threshold(scenario: &Scenario) -> f64 {
    let problem = scenario.problem();
    let mean = |load: &f64| waterfall(&problem, *load).map_or(f64::INFINITY, |plan| plan.mean_latency);
    let best = THRESHOLDS.into_iter().min_by(|a, b| mean(a).total_cmp(&mean(b)));
    best.unwrap_or(scenario.waterfall)
}
