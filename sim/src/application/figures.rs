//! Predicted effects of a plan: latency by class, egress by pair of regions, load by pool.

use fairmesh_te::optimizer::{Caller, Plan, Problem};
use serde::Serialize;

use super::Scenario;

/// Number of bytes to which egress prices refer.
const BYTES_OF_PRICE: f64 = 1e9;
/// Egress in dollars per second below which there counts as none.
const NO_EGRESS: f64 = 1e-12;

/// Figures of one planner.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Name of the planner: `rings`, `waterfall`, `criticality` or `optimizer`.
    pub planner: String,
    /// Mean latency of served client calls, in milliseconds.
    pub mean_ms: f64,
    /// Figures of each entry of `clients`.
    pub classes: Vec<ClassFigures>,
    /// Egress cost in dollars per second.
    pub egress: f64,
    /// Pairs of regions with egress.
    pub pairs: Vec<EgressFigures>,
    /// Maximum utilisation of a pool.
    pub greatest_load: f64,
    /// Pools with servers.
    pub pools: Vec<PoolFigures>,
    /// Relative optimality gap: the part of the objective that is not proven necessary. Only for the optimizer.
    pub gap: Option<f64>,
}

/// Figures of one entry of `clients`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassFigures {
    /// Operation that the clients call.
    pub to: String,
    /// Share of served calls.
    pub admitted: f64,
    /// Mean latency in milliseconds. Of parallel calls, only the one that is slowest on average counts.
    pub mean_ms: f64,
}

/// Egress from one region to another.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressFigures {
    /// The region that sends.
    pub from: String,
    /// The region that receives.
    pub to: String,
    /// Cost in dollars per second.
    pub dollars: f64,
}

/// One service in one region.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolFigures {
    /// The service.
    pub service: String,
    /// The region.
    pub region: String,
    /// Predicted utilisation.
    pub load: f64,
}

impl Figures {
    pub(super) fn new(planner: &str, scenario: &Scenario, problem: &Problem, plan: &Plan) -> Self {
        let classes = Latencies::new(scenario, problem, plan).classes();
        let rate = |at: usize| plan.calls[at * problem.regions..][..problem.regions].iter().sum::<f64>();
        let served: f64 = (0..classes.len()).map(rate).sum();
        let sum: f64 = classes.iter().enumerate().map(|(at, class)| class.mean_ms * rate(at)).sum();
        Self {
            planner: planner.to_owned(),
            mean_ms: if served > 0.0 { sum / served } else { 0.0 },
            classes,
            egress: plan.egress,
            pairs: pairs(scenario, problem, plan),
            greatest_load: plan.greatest_load(),
            pools: pools(scenario, problem, plan),
            gap: (plan.bound > 0.0).then(|| plan.gap()),
        }
    }
}

fn pools(scenario: &Scenario, problem: &Problem, plan: &Plan) -> Vec<PoolFigures> {
    let regions = scenario.regions();
    let loads = plan.loads.iter().enumerate();
    let places = loads.map(|(at, load)| (at / problem.regions, at % problem.regions, *load));
    let placed = places.filter(|(service, region, _)| problem.services[*service].capacity[*region] > 0.0);
    let figures = placed.map(|(service, region, load)| PoolFigures {
        service: scenario.services[service].name.clone(),
        region: regions[region].to_owned(),
        load,
    });
    figures.collect()
}

/// Computes the egress between regions. Requests cost egress on the way there, and responses on the way back.
fn pairs(scenario: &Scenario, problem: &Problem, plan: &Plan) -> Vec<EgressFigures> {
    let count = problem.regions;
    let mut bytes = vec![0.0; count * count];
    for (number, edge) in problem.edges.iter().enumerate() {
        for source in 0..count {
            for (to, share) in plan.shares.row(number, source) {
                let (to, rate) = (usize::from(*to), plan.calls[number * count + source] * share);
                bytes[source * count + to] += rate * edge.request_bytes;
                bytes[to * count + source] += rate * edge.response_bytes;
            }
        }
    }
    let regions = scenario.regions();
    let dollars =
        bytes.iter().zip(&problem.egress_prices).map(|(bytes, price)| bytes * price / BYTES_OF_PRICE);
    let pairs = dollars.enumerate().filter(|(_, dollars)| *dollars > NO_EGRESS);
    let figures = pairs.map(|(at, dollars)| EgressFigures {
        from: regions[at / count].to_owned(),
        to: regions[at % count].to_owned(),
        dollars,
    });
    figures.collect()
}

/// Latency of a call to each operation in each region, including the calls that it makes, in milliseconds.
struct Latencies<'a> {
    scenario: &'a Scenario,
    problem: &'a Problem,
    plan: &'a Plan,
    /// For each operation, its first edge.
    first_edges: Vec<usize>,
    /// Latencies that are already known, by operation and region.
    known: Vec<Option<f64>>,
}

impl<'a> Latencies<'a> {
    fn new(scenario: &'a Scenario, problem: &'a Problem, plan: &'a Plan) -> Self {
        let mut next = scenario.clients.len();
        let mut first_edges = Vec::new();
        for operation in &scenario.operations {
            first_edges.push(next);
            next += operation.calls.iter().map(Vec::len).sum::<usize>();
        }
        let known = vec![None; scenario.operations.len() * problem.regions];
        Self { scenario, problem, plan, first_edges, known }
    }

    fn classes(mut self) -> Vec<ClassFigures> {
        let clients = self.scenario.clients.iter().enumerate();
        let figures = clients.map(|(edge, clients)| {
            let demand = match &self.problem.edges[edge].caller {
                Caller::Clients { demand, .. } => demand.clone(),
                Caller::Node { .. } => Vec::new(),
            };
            let total: f64 = demand.iter().sum();
            let sum: f64 =
                demand.iter().enumerate().map(|(region, rate)| rate * self.of_edge(edge, region)).sum();
            ClassFigures {
                to: clients.to.clone(),
                admitted: self.plan.admitted[edge],
                mean_ms: if total > 0.0 { sum / total } else { 0.0 },
            }
        });
        figures.collect()
    }

    /// Returns the latency of a call over an edge from a region: round trip plus operation, weighted by shares.
    fn of_edge(&mut self, edge: usize, source: usize) -> f64 {
        let callee = self.problem.edges[edge].callee;
        let plan = self.plan;
        let row = plan.shares.row(edge, source).iter();
        row.map(|(to, share)| {
            let to = usize::from(*to);
            share
                * (self.problem.round_trips[source * self.problem.regions + to]
                    + self.of_operation(callee, to))
        })
        .sum()
    }

    /// Returns the latency of an operation. A valid scenario has no cycles, so the recursion ends.
    fn of_operation(&mut self, operation: usize, region: usize) -> f64 {
        let at = operation * self.problem.regions + region;
        if let Some(known) = self.known[at] {
            return known;
        }
        let node = &self.problem.nodes[operation];
        let work = self.plan.work_latencies[node.service * self.problem.regions + region];
        let mut latency = node.latency + node.work * work;
        let mut edge = self.first_edges[operation];
        let scenario = self.scenario;
        for stage in &scenario.operations[operation].calls {
            let mut slowest: f64 = 0.0;
            for call in stage {
                slowest = slowest.max(call.repeats() * self.of_edge(edge, region));
                edge += 1;
            }
            latency += slowest;
        }
        self.known[at] = Some(latency);
        latency
    }
}
