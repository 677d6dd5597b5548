//! Edges of the problem: calls between nodes by their multiplicity, everything else as demand of regions.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{CallNode, Region};
use fairmesh_te::optimizer::{Caller, Edge, Problem};

use super::Sources;
use crate::call_graph::GraphEdge;

/// Sums of calls that become one edge.
#[derive(Clone, Debug, Default)]
struct Sum {
    /// Calls per second, by region of the caller.
    demand: BTreeMap<Region, f64>,
    /// Calls per second over all regions.
    calls: f64,
    request_bytes: f64,
    response_bytes: f64,
}

impl Sum {
    /// Adds calls per second with their mean bytes.
    fn add(&mut self, calls: f64, request_bytes: f64, response_bytes: f64) {
        self.calls += calls;
        self.request_bytes += calls * request_bytes;
        self.response_bytes += calls * response_bytes;
    }

    fn add_demand<'a>(&mut self, by_region: impl IntoIterator<Item = (&'a Region, f64)>) {
        for (region, calls) in by_region {
            *self.demand.entry(region.clone()).or_default() += calls;
        }
    }

    /// Mean bytes of request and response.
    fn bytes(&self) -> (f64, f64) {
        let mean = |bytes: f64| if self.calls > 0.0 { bytes / self.calls } else { 0.0 };
        (mean(self.request_bytes), mean(self.response_bytes))
    }
}

/// The edges, and those of them that are calls from outside of the mesh, which come last.
pub(super) fn edges(
    sources: Sources<'_>,
    problem: &Problem,
    (regions, nodes): (&[Region], &[CallNode]),
) -> (Vec<Edge>, BTreeSet<usize>) {
    let served = served(sources, nodes);
    let mut sums = Sums::default();
    sums.add_edges(sources, nodes, &served);
    sums.add_nodes(sources, nodes);
    let given = Given { sources, problem, regions, nodes };
    let inner = sums.between.into_iter().map(|((parent, child), sum)| {
        let (request_bytes, response_bytes) = sum.bytes();
        let caller = Caller::Node { node: parent, calls: sum.calls / served[parent] };
        Edge { caller, callee: child, request_bytes, response_bytes, given: given.shares(child) }
    });
    let mut edges: Vec<Edge> = inner.collect();
    for (child, sum) in sums.clients.into_iter().filter(|(_, sum)| sum.calls > 0.0) {
        // Calls from outside come first: nothing sheds them before they arrive.
        let priority = given.priority(child).saturating_add(1);
        edges.push(client_edge(&sum, (regions, child), priority, given.shares(child)));
    }
    let first = edges.len();
    for (child, sum) in sums.outside.into_iter().filter(|(_, sum)| !sum.demand.is_empty()) {
        edges.push(client_edge(&sum, (regions, child), 0, given.at_home(child)));
    }
    let outside = (first..edges.len()).collect();
    (edges, outside)
}

/// Sums by positions of nodes.
#[derive(Debug, Default)]
struct Sums {
    /// By parent and child.
    between: BTreeMap<(usize, usize), Sum>,
    clients: BTreeMap<usize, Sum>,
    outside: BTreeMap<usize, Sum>,
}

impl Sums {
    /// Calls for calls: those of a parent that is not planned with are demand of the regions in which they are made.
    fn add_edges(&mut self, sources: Sources<'_>, nodes: &[CallNode], served: &[f64]) {
        let position = |node: &CallNode| nodes.binary_search(&sources.merged(node)).ok();
        for edge in sources.edges {
            let Some(child) = position(&edge.child) else { continue };
            let parent = position(&edge.parent).filter(|parent| served[*parent] > 0.0);
            match parent.zip(rate(sources, edge)) {
                Some((parent, rate)) => {
                    let sum = self.between.entry((parent, child)).or_default();
                    sum.add(rate, edge.request_bytes, edge.response_bytes);
                }
                None => {
                    let sum = self.clients.entry(child).or_default();
                    sum.add(edge.from.values().sum(), edge.request_bytes, edge.response_bytes);
                    sum.add_demand(edge.from.iter().map(|(region, calls)| (region, *calls)));
                }
            }
        }
    }

    /// Calls for no known call, by callers in the mesh and by others.
    fn add_nodes(&mut self, sources: Sources<'_>, nodes: &[CallNode]) {
        for node in sources.nodes {
            let Ok(position) = nodes.binary_search(&sources.merged(&node.node)) else { continue };
            let inside = node.demand.iter().map(|(region, calls)| {
                (region, (calls - node.outside.get(region).copied().unwrap_or_default()).max(0.0))
            });
            let inside: Vec<_> = inside.filter(|(_, calls)| *calls > 0.0).collect();
            let sum = self.clients.entry(position).or_default();
            sum.add(inside.iter().map(|(_, calls)| calls).sum(), node.request_bytes, node.response_bytes);
            sum.add_demand(inside);
            let sum = self.outside.entry(position).or_default();
            sum.add_demand(node.outside.iter().map(|(region, calls)| (region, *calls)));
        }
    }
}

fn client_edge(sum: &Sum, (regions, callee): (&[Region], usize), priority: u8, given: Vec<Vec<f64>>) -> Edge {
    let demand = regions.iter().map(|region| sum.demand.get(region).copied().unwrap_or_default()).collect();
    let (request_bytes, response_bytes) = sum.bytes();
    Edge { caller: Caller::Clients { demand, priority }, callee, request_bytes, response_bytes, given }
}

/// Calls per second that servers of each node process.
fn served(sources: Sources<'_>, nodes: &[CallNode]) -> Vec<f64> {
    let mut served = vec![0.0; nodes.len()];
    for node in sources.nodes {
        if let Ok(position) = nodes.binary_search(&sources.merged(&node.node)) {
            served[position] += node.served.values().sum::<f64>();
        }
    }
    served
}

/// Calls per second over an edge, by its multiplicity; `None` if the parent's servers report no calls.
fn rate(sources: Sources<'_>, edge: &GraphEdge) -> Option<f64> {
    let at = sources.nodes.binary_search_by(|node| node.node.cmp(&edge.parent)).ok()?;
    let parent: f64 = sources.nodes[at].served.values().sum();
    Some(edge.multiplicity? * parent)
}

/// Shares that are not the optimizer's to divide.
struct Given<'a> {
    sources: Sources<'a>,
    problem: &'a Problem,
    regions: &'a [Region],
    nodes: &'a [CallNode],
}

impl Given<'_> {
    /// Importance of a node's calls: the position of its class.
    fn priority(&self, node: usize) -> u8 {
        let CallNode { service, class } = &self.nodes[node];
        let classes = self.sources.model(service).map(|model| &model.classes[..]).unwrap_or_default();
        let position = class.as_ref().and_then(|class| classes.iter().position(|one| one == class));
        position.map_or(0, |at| u8::try_from(at + 1).unwrap_or(u8::MAX))
    }

    /// The present shares of a node that the optimizer does not plan; empty of one that it plans.
    fn shares(&self, node: usize) -> Vec<Vec<f64>> {
        let named = &self.nodes[node];
        if self.sources.models.contains_key(&named.service) {
            return Vec::new();
        }
        let capacity = &self.problem.services[self.problem.nodes[node].service].capacity;
        let row = |(source, region): (usize, &Region)| {
            let in_force = self.in_force(named, region);
            let shares = in_force.unwrap_or_else(|| self.sources.flows.shares(named, region));
            let of = |(to, capacity): (&Region, &f64)| match *capacity > 0.0 {
                true => shares.get(to).copied().unwrap_or_default(),
                false => 0.0,
            };
            let row: Vec<f64> = self.regions.iter().zip(capacity).map(of).collect();
            let sum: f64 = row.iter().sum();
            if sum > 0.0 {
                row.iter().map(|share| share / sum).collect()
            } else {
                self.only(self.nearest(node, source))
            }
        };
        self.regions.iter().enumerate().map(row).collect()
    }

    /// The table in force of a service whose reports are refused: flows are counted by class, and tables have rows of several.
    fn in_force(&self, node: &CallNode, from: &Region) -> Option<BTreeMap<&Region, f64>> {
        let Sources { held, services, .. } = self.sources;
        let facts = services.get(&node.service).filter(|_| held.contains_key(&node.service))?;
        let shares = &facts.tables.get(from)?.table.shares;
        let own = node.class.as_ref().and_then(|class| shares.classes.get(class));
        let row = own.or(shares.default.as_ref())?;
        Some(row.to.iter().map(|(to, share)| (to, f64::from(share.millionths()))).collect())
    }

    /// Calls stay in the region of the servers that they reached.
    fn at_home(&self, node: usize) -> Vec<Vec<f64>> {
        (0..self.regions.len()).map(|source| self.only(self.nearest(node, source))).collect()
    }

    fn only(&self, to: usize) -> Vec<f64> {
        (0..self.regions.len()).map(|region| if region == to { 1.0 } else { 0.0 }).collect()
    }

    /// The nearest region that serves a node; itself if it does.
    fn nearest(&self, node: usize, source: usize) -> usize {
        let pools = &self.problem.services[self.problem.nodes[node].service];
        let placed = (0..self.regions.len()).filter(|region| pools.capacity[*region] > 0.0);
        let distance = |region: &usize| self.problem.round_trips[source * self.regions.len() + region];
        let order = |a: &usize, b: &usize| {
            (*a != source).cmp(&(*b != source)).then(distance(a).total_cmp(&distance(b)))
        };
        placed.min_by(order).unwrap_or(source)
    }
}
