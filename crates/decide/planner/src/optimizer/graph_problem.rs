//! From the call graph to the problem of the optimizer, and back from positions to names.

mod edges;
mod service_part;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{CallNode, Label, Region, RegionShares, ServiceName};
use fairmesh_te::optimizer::{Caller, Node, Plan, Preferences, Problem, ProblemError, ServicePools, Shares};

use super::{current_flows::Flows, service_model::ServiceModel};
use crate::{
    call_graph::{GraphEdge, GraphNode},
    facts::{ServiceFacts, TopologyFacts},
    model_adjustment::Shift,
};

/// Milliseconds between regions at an unknown distance, at least: the farthest known ones may be farther.
const UNKNOWN_MS: f64 = 100.0;
/// Milliseconds in a second, seconds in an hour.
const MILLI: f64 = 1_000.0;
const HOUR: f64 = 3_600.0;

/// What a problem is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) nodes: &'a [GraphNode],
    pub(super) edges: &'a [GraphEdge],
    /// The services whose calls are the optimizer's to divide.
    pub(super) models: &'a BTreeMap<ServiceName, ServiceModel>,
    /// The last models of services whose reports are refused: their shares are those in force, and their servers have no more room than
    /// before.
    pub(super) held: &'a BTreeMap<ServiceName, ServiceModel>,
    /// All services with a planner.
    pub(super) services: &'a BTreeMap<ServiceName, Arc<ServiceFacts>>,
    pub(super) flows: &'a Flows,
    pub(super) topology: &'a TopologyFacts,
    /// Changes that are in force beside the optimizer's plan.
    pub(super) shifts: &'a [Shift],
}

/// A problem, and what its positions stand for.
///
/// Its nodes are the classes of the optimizer's services, and the nodes that are called for their calls. Calls of all other nodes do not
/// depend on the plan: they are demand of the regions in which they are made. A node that another planner divides has its present shares as
/// given ones, and takes no work: it says from where its own calls are made, and its load is not the optimizer's. A service whose reports
/// are refused for now has given shares, and its load counts: without it, calls before it would come home to full servers.
#[derive(Clone, Debug)]
pub(super) struct GraphProblem {
    pub(super) problem: Problem,
    pub(super) regions: Vec<Region>,
    pub(super) services: Vec<ServiceName>,
    pub(super) nodes: Vec<CallNode>,
    /// Edges of calls from outside of the mesh, which no table moves.
    pub(super) outside: BTreeSet<usize>,
}

/// What has to be the same for shares of a problem to be those of another one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    regions: Vec<Region>,
    services: Vec<ServiceName>,
    edges: Vec<(Option<usize>, CallNode)>,
}

impl GraphProblem {
    /// The problem of these services.
    pub(super) fn new(sources: Sources<'_>) -> Self {
        let regions = regions(sources);
        let nodes: Vec<CallNode> = included(sources).into_iter().collect();
        let names: BTreeSet<&ServiceName> = nodes.iter().map(|node| &node.service).collect();
        let services: Vec<ServiceName> = names.into_iter().cloned().collect();
        let preferences = preferences(sources.topology);
        let pools =
            services.iter().map(|service| pools(sources, service, (&regions, &nodes), preferences.ceiling));
        let of_service = |node: &CallNode| services.binary_search(&node.service).unwrap_or_default();
        let problem_node = |node: &CallNode| match sources.model(&node.service) {
            Some(model) => {
                let cost = model.cost(node.class.as_ref());
                Node { service: of_service(node), work: cost.work, latency: cost.base_ms }
            }
            None => Node { service: of_service(node), work: 0.0, latency: 0.0 },
        };
        let corrections = nodes.iter().flat_map(|node| {
            let model = sources.model(&node.service);
            regions
                .iter()
                .map(move |region| model.map_or(0.0, |model| model.correction(node.class.as_ref(), region)))
        });
        let mut problem = Problem {
            regions: regions.len(),
            round_trips: round_trips(sources.topology, &regions),
            egress_prices: prices(sources.topology, &regions),
            services: pools.collect(),
            nodes: nodes.iter().map(problem_node).collect(),
            corrections: corrections.collect(),
            edges: Vec::new(),
            preferences,
        };
        let (edges, outside) = edges::edges(sources, &problem, (&regions, &nodes));
        problem.edges = edges;
        Self { problem, regions, services, nodes, outside }
    }

    /// The number of shares that a solution goes through, or a few more: edges × regions².
    pub(super) fn size(sources: Sources<'_>) -> usize {
        let (nodes, regions) = (included(sources), regions(sources).len());
        let edges = sources.edges.iter().filter(|edge| nodes.contains(&sources.merged(&edge.child))).count();
        // A node may be called by clients, and from outside of the mesh.
        (edges + 2 * nodes.len()).saturating_mul(regions * regions)
    }

    pub(super) fn shape(&self) -> Shape {
        let edge = |edge: &fairmesh_te::optimizer::Edge| {
            let caller = match edge.caller {
                Caller::Clients { .. } => None,
                Caller::Node { node, .. } => Some(node),
            };
            (caller, self.nodes[edge.callee].clone())
        };
        Shape {
            regions: self.regions.clone(),
            services: self.services.clone(),
            edges: self.problem.edges.iter().map(edge).collect(),
        }
    }

    /// The positions of the nodes of a service, in the order of its classes.
    pub(super) fn nodes_of(&self, service: &ServiceName, classes: &[Label]) -> Vec<usize> {
        let node = |class: Option<&Label>| {
            let node = CallNode { service: service.clone(), class: class.cloned() };
            self.nodes.binary_search(&node).unwrap_or_default()
        };
        std::iter::once(None).chain(classes.iter().map(Some)).map(node).collect()
    }

    /// What shares in force cause, and whether any of them lead to a region without servers. `table` has those of a service and source region, of one of its classes or of all other calls.
    pub(super) fn evaluate<'a>(
        &self,
        table: impl Fn(&ServiceName, &Region, Option<&Label>) -> Option<Cow<'a, RegionShares>>,
    ) -> Result<(Plan, bool), ProblemError> {
        let (mut rows, mut admitted, mut leads_nowhere) = (Vec::new(), Vec::new(), false);
        for edge in &self.problem.edges {
            let pools = &self.problem.services[self.problem.nodes[edge.callee].service].capacity;
            let node = &self.nodes[edge.callee];
            let (mut calls, mut dropped) = (0.0, 0.0);
            for (source, region) in self.regions.iter().enumerate() {
                if let Some(given) = edge.given.get(source).or(edge.given.first()) {
                    rows.push(entries(given.iter().copied()));
                    continue;
                }
                let shares = table(&node.service, region, node.class.as_ref());
                if let Caller::Clients { demand, .. } = &edge.caller {
                    calls += demand[source];
                    dropped += demand[source] * shares.as_ref().map_or(0.0, |shares| share(shares.dropped));
                }
                let row = shares.map(|shares| self.row(&shares)).unwrap_or_default();
                leads_nowhere |= row.iter().any(|(to, _)| pools[usize::from(*to)] <= 0.0);
                rows.push(row);
            }
            admitted.push(if calls > 0.0 { (1.0 - dropped / calls).clamp(0.0, 1.0) } else { 1.0 });
        }
        let plan = Plan::evaluate(&self.problem, &Shares::new(self.problem.regions, rows), &admitted)?;
        Ok((plan, leads_nowhere))
    }

    /// Shares of a table without its dropped calls; they sum to 1.
    fn row(&self, shares: &RegionShares) -> Vec<(u16, f64)> {
        let to = |region: &Region| shares.to.get(region).map_or(0.0, |to| share(*to));
        let row = entries(self.regions.iter().map(to));
        let sum: f64 = row.iter().map(|(_, share)| share).sum();
        row.into_iter().map(|(to, share)| (to, share / sum)).collect()
    }
}

/// The shares above zero with their positions.
fn entries(shares: impl Iterator<Item = f64>) -> Vec<(u16, f64)> {
    let shares = shares.enumerate().filter(|(_, share)| *share > 0.0);
    shares.filter_map(|(to, share)| Some((u16::try_from(to).ok()?, share))).collect()
}

fn share(share: fairmesh_model::Share) -> f64 {
    f64::from(share.millionths()) / 1e6
}

/// All regions that have servers or callers, or that a topology declares.
fn regions(sources: Sources<'_>) -> Vec<Region> {
    let Sources { nodes, edges, services, flows, topology, .. } = sources;
    let mut regions: BTreeSet<&Region> = topology.regions.regions.keys().collect();
    regions.extend(services.values().flat_map(|facts| facts.endpoints.keys()));
    regions.extend(nodes.iter().flat_map(|node| node.demand.keys().chain(node.served.keys())));
    regions.extend(edges.iter().flat_map(|edge| edge.from.keys()));
    nodes.iter().for_each(|node| regions.extend(flows.destinations(&node.node)));
    regions.into_iter().cloned().collect()
}

/// The nodes of the optimizer's services, and all that are called for their calls.
fn included(sources: Sources<'_>) -> BTreeSet<CallNode> {
    let mut found = BTreeSet::new();
    for (service, model) in sources.models {
        for class in std::iter::once(None).chain(model.classes.iter().cloned().map(Some)) {
            found.insert(CallNode { service: service.clone(), class });
        }
    }
    let mut children = BTreeMap::<CallNode, BTreeSet<CallNode>>::new();
    for edge in sources.edges {
        let (parent, child) = (sources.merged(&edge.parent), sources.merged(&edge.child));
        children.entry(parent).or_default().insert(child);
    }
    let mut pending: Vec<CallNode> = found.iter().cloned().collect();
    while let Some(node) = pending.pop() {
        for child in children.get(&node).into_iter().flatten() {
            if !sources.placed(child).is_empty() && found.insert(child.clone()) {
                pending.push(child.clone());
            }
        }
    }
    found
}

impl<'a> Sources<'a> {
    /// What the servers of a service are taken for.
    fn model(self, service: &ServiceName) -> Option<&'a ServiceModel> {
        self.models.get(service).or_else(|| self.held.get(service))
    }

    /// The node with whose calls those of a node of the graph share a row in tables.
    fn merged(self, node: &CallNode) -> CallNode {
        let class = match self.model(&node.service) {
            Some(model) => node.class.clone().filter(|class| model.classes.contains(class)),
            None => node.class.clone(),
        };
        CallNode { service: node.service.clone(), class }
    }

    /// The regions that serve a node.
    fn placed(self, node: &CallNode) -> BTreeSet<&'a Region> {
        match self.model(&node.service) {
            Some(model) => model.placed().collect(),
            None => {
                let facts = self.services.get(&node.service);
                let serving = facts
                    .into_iter()
                    .flat_map(|facts| facts.endpoints.keys().filter(|region| facts.serving_in(region) > 0));
                serving.chain(self.flows.destinations(node)).collect()
            }
        }
    }
}

fn pools(
    sources: Sources<'_>,
    service: &ServiceName,
    (regions, nodes): (&[Region], &[CallNode]),
    ceiling: f64,
) -> ServicePools {
    if let Some(model) = sources.model(service) {
        return model.pools(regions, &sources.topology.round_trips, ceiling);
    }
    let own = nodes.iter().filter(|node| node.service == *service);
    let placed: BTreeSet<&Region> = own.flat_map(|node| sources.placed(node)).collect();
    let capacity = |region: &Region| if placed.contains(region) { 1.0 } else { 0.0 };
    ServicePools { capacity: regions.iter().map(capacity).collect(), ..ServicePools::default() }
}

/// Round trips in milliseconds.
fn round_trips(topology: &TopologyFacts, regions: &[Region]) -> Vec<f64> {
    let pairs = || regions.iter().flat_map(|from| regions.iter().map(move |to| (from, to)));
    let known = |(from, to): (&Region, &Region)| {
        topology.round_trips.get(from, to).map(|trip| trip.as_secs_f64() * MILLI)
    };
    let unknown = pairs().filter_map(known).fold(UNKNOWN_MS, f64::max);
    pairs().map(|pair| known(pair).unwrap_or(unknown)).collect()
}

/// Dollars per 10⁹ bytes, by direction.
fn prices(topology: &TopologyFacts, regions: &[Region]) -> Vec<f64> {
    let egress = &topology.regions.egress;
    let pairs = regions.iter().flat_map(|from| regions.iter().map(move |to| (from, to)));
    pairs.map(|(from, to)| egress.price(from, to).amount()).collect()
}

fn preferences(topology: &TopologyFacts) -> Preferences {
    let egress = &topology.regions.egress;
    Preferences {
        dollars_per_ms: egress.per_ms.map_or(f64::INFINITY, |worth| worth.amount()),
        egress_cap: egress.cap.map(|cap| cap.amount() / HOUR),
        ..Preferences::default()
    }
}
