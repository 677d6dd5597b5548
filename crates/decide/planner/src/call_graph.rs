//! The call graph of a mesh, as reports count it (SLATE, 3.2; nodes and edges as in Google's and Uber's studies of call graphs).
//!
//! A node is a service with a traffic class, an edge the calls that are made to one node for calls of another. Sums decay with a
//! half-life, so that the graph follows the program within a minute, and a mean is formed of more than one report. Multiplicity
//! is calls of the edge over calls that the parent's servers processed since the edge was first seen: both are counted by the same
//! programs. Calls that callers sent to the parent were rejected as the divisor, since callers outside of the mesh report none.

mod cycles;
mod decayed_sums;
mod demand_rises;
mod tenant_counts;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{CallNode, Region, ServiceName, Tenant, TrafficReport};

use cycles::cut_edges;
use decayed_sums::{EdgeSums, NodeSums};
use tenant_counts::TenantCounts;

/// The most nodes of a graph. Beyond it, the tenant with the most loses one, or calls of the further node are left out.
pub const MAX_GRAPH_NODES: usize = 4_096;
/// The most edges of a graph.
pub const MAX_GRAPH_EDGES: usize = 16_384;

/// The time in which a count loses half of its weight, unless stated otherwise.
const HALF_LIFE_MS: f64 = 20_000.0;
/// Nodes and edges without a report for this long are forgotten.
const FORGOTTEN_MS: u64 = 600_000;
/// Reports stand for no more than this time, however late the next sum is formed.
const MAX_STEP_MS: u64 = 5_000;
/// The share of a node's calls from which on a surplus at its servers comes from outside of the mesh: less is the noise of two
/// counts of the same calls.
const OUTSIDE_SHARE: f64 = 0.1;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// Nodes and edges of the call graph, with sums of reported calls and bytes that decay by half in a fixed time. At most
/// [`MAX_GRAPH_NODES`] nodes and [`MAX_GRAPH_EDGES`] edges.
#[derive(Clone, Debug)]
pub struct CallGraph {
    half_life_ms: f64,
    nodes: BTreeMap<CallNode, NodeSums>,
    edges: BTreeMap<Edge, EdgeSums>,
    /// Numbers of nodes by the tenant of their service, and of edges by that of their parent.
    node_counts: TenantCounts,
    edge_counts: TenantCounts,
    observed_at_ms: Option<u64>,
    left_out: BTreeSet<CallNode>,
}

/// A parent and its child.
type Edge = (CallNode, CallNode);

/// Calls of one class to one service.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphNode {
    /// The service and the class.
    pub node: CallNode,
    /// Calls per second that its servers processed, by their region.
    pub served: BTreeMap<Region, f64>,
    /// Calls per second that were made for no known call, by the region of the callers; those from outside of the mesh by the
    /// region of the servers.
    pub demand: BTreeMap<Region, f64>,
    /// The part of the demand that comes from outside of the mesh: no table moves it.
    pub outside: BTreeMap<Region, f64>,
    /// Bytes of the request's body, for each call that was made for no known call.
    pub request_bytes: f64,
    /// Bytes of the response's body, for each of them.
    pub response_bytes: f64,
    /// Time since the last report on it, in milliseconds.
    pub age_ms: u64,
}

/// Calls that are made to one node for the calls of another.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphEdge {
    /// The node whose calls make these.
    pub parent: CallNode,
    /// The called node.
    pub child: CallNode,
    /// Calls per second, by the region of the callers.
    pub from: BTreeMap<Region, f64>,
    /// Calls for each call of the parent: the mean count times the probability. `None` if the parent's servers report none.
    pub multiplicity: Option<f64>,
    /// Bytes of the request's body, for each call.
    pub request_bytes: f64,
    /// Bytes of the response's body, for each call.
    pub response_bytes: f64,
    /// Time until the response began, in microseconds; `None` without a response.
    pub time_us: Option<f64>,
    /// Whether planners cut the edge: it has the fewest calls of a cycle.
    pub is_cut: bool,
    /// Time since the last report on it, in milliseconds.
    pub age_ms: u64,
}

impl Default for CallGraph {
    fn default() -> Self {
        Self::with_half_life(HALF_LIFE_MS)
    }
}

impl CallGraph {
    /// A graph whose counts lose half of their weight in this time. With a short time, rates follow a change of demand,
    /// and means are noisy.
    pub(crate) fn with_half_life(half_life_ms: f64) -> Self {
        Self {
            half_life_ms,
            nodes: BTreeMap::new(),
            edges: BTreeMap::new(),
            node_counts: TenantCounts::default(),
            edge_counts: TenantCounts::default(),
            observed_at_ms: None,
            left_out: BTreeSet::new(),
        }
    }

    /// Counts what a sum of reports says of the time since the last one. `now_ms` is of a clock that only advances. The first
    /// sum begins the time.
    pub fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        self.observe_except(&BTreeSet::new(), sum, now_ms);
    }

    /// The same where the sum lacks calls to some services and of their servers: their rates, and the multiplicity of calls for
    /// their calls, stay as they are. Time without reports is not time without calls.
    pub(crate) fn observe_except(&mut self, held: &BTreeSet<ServiceName>, sum: &TrafficReport, now_ms: u64) {
        let Some(before_ms) = self.observed_at_ms.replace(now_ms) else { return };
        let step_ms = now_ms.saturating_sub(before_ms).min(MAX_STEP_MS);
        if step_ms == 0 {
            return;
        }
        let multiplicities = self.multiplicities(held);
        self.decay(held, now_ms.saturating_sub(before_ms), now_ms);
        let seconds = step_ms as f64 / MILLI;
        let served = self.count_served(sum, seconds, now_ms);
        self.count_calls(sum, seconds, now_ms);
        let nodes = self.nodes.iter_mut().filter(|(node, _)| !held.contains(&node.service));
        nodes.for_each(|(_, sums)| sums.seconds += seconds);
        let edges = self.edges.iter_mut().filter(|((_, child), _)| !held.contains(&child.service));
        for ((parent, _), sums) in edges {
            sums.seconds += seconds;
            sums.parent_calls += served.get(parent).copied().unwrap_or_default();
        }
        for (edge, multiplicity) in multiplicities {
            if let Some(sums) = self.edges.get_mut(&edge) {
                sums.parent_calls = sums.calls() / multiplicity;
            }
        }
    }

    /// The nodes, in the order of their names.
    pub fn nodes(&self, now_ms: u64) -> Vec<GraphNode> {
        self.nodes.iter().map(|(node, sums)| sums.describe(node, OUTSIDE_SHARE, now_ms)).collect()
    }

    /// The nodes with the demand of this graph and everything else of a slower one that saw the same sums. Calls come from outside of the mesh
    /// where the slower one says so: over seconds, calls that wait at servers are a surplus too.
    pub(crate) fn with_recent_demand(&self, slower: &Self, now_ms: u64) -> Vec<GraphNode> {
        let mut nodes = slower.nodes(now_ms);
        for (node, sums) in nodes.iter_mut().zip(self.nodes.values()) {
            let least_outside = if node.outside.is_empty() { f64::INFINITY } else { 0.0 };
            let recent = sums.describe(&node.node, least_outside, now_ms);
            (node.demand, node.outside) = (recent.demand, recent.outside);
        }
        nodes
    }

    /// The edges, in the order of their names; the smallest of each cycle are cut.
    pub fn edges(&self, now_ms: u64) -> Vec<GraphEdge> {
        let rates: BTreeMap<&Edge, f64> = self.edges.iter().map(|(edge, sums)| (edge, sums.rate())).collect();
        let cut = cut_edges(&rates);
        self.edges.iter().map(|(edge, sums)| sums.describe(edge, cut.contains(edge), now_ms)).collect()
    }

    /// All services that are called for calls of this one, and itself.
    pub fn below(&self, service: &ServiceName) -> BTreeSet<ServiceName> {
        let mut children = BTreeMap::<&ServiceName, BTreeSet<&ServiceName>>::new();
        for (parent, child) in self.edges.keys() {
            children.entry(&parent.service).or_default().insert(&child.service);
        }
        let (mut found, mut pending) = (BTreeSet::from([service]), vec![service]);
        while let Some(next) = pending.pop() {
            let new = children.get(next).into_iter().flatten().filter(|child| found.insert(**child));
            pending.extend(new);
        }
        found.into_iter().cloned().collect()
    }

    /// Nodes that the graph has no room for, or some of whose calls.
    pub fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// The multiplicities of calls for calls of held services, whose servers are not counted.
    fn multiplicities(&self, held: &BTreeSet<ServiceName>) -> Vec<(Edge, f64)> {
        let is_of_held =
            |(parent, child): &Edge| held.contains(&parent.service) && !held.contains(&child.service);
        let edges = self.edges.iter().filter(|(edge, _)| is_of_held(edge));
        edges
            .filter_map(|(edge, sums)| Some((edge.clone(), sums.multiplicity().filter(|m| *m > 0.0)?)))
            .collect()
    }

    fn decay(&mut self, held: &BTreeSet<ServiceName>, elapsed_ms: u64, now_ms: u64) {
        let factor = (-(elapsed_ms as f64) / self.half_life_ms).exp2();
        self.nodes.retain(|_, node| now_ms.saturating_sub(node.at_ms) < FORGOTTEN_MS);
        self.edges.retain(|_, edge| now_ms.saturating_sub(edge.at_ms) < FORGOTTEN_MS);
        self.node_counts = TenantCounts::of(self.nodes.keys().map(|node| &node.service.tenant));
        self.edge_counts = TenantCounts::of(self.edges.keys().map(|(parent, _)| &parent.service.tenant));
        let nodes = self.nodes.iter_mut().filter(|(node, _)| !held.contains(&node.service));
        nodes.for_each(|(_, sums)| sums.scale(factor));
        let edges = self.edges.iter_mut().filter(|((_, child), _)| !held.contains(&child.service));
        edges.for_each(|(_, sums)| sums.scale(factor));
        // Said anew by each sum.
        self.left_out.clear();
    }

    /// Counts what servers processed; the calls of each node.
    fn count_served(&mut self, sum: &TrafficReport, seconds: f64, now_ms: u64) -> BTreeMap<CallNode, f64> {
        let mut served = BTreeMap::<CallNode, f64>::new();
        for (path, rates) in &sum.served {
            let calls = rates.calls as f64 / MILLI * seconds;
            *served.entry(path.node.clone()).or_default() += calls;
            if let Some(node) = self.node(&path.node, now_ms) {
                *node.served.entry(path.region.clone()).or_default() += calls;
            }
        }
        served
    }

    fn count_calls(&mut self, sum: &TrafficReport, seconds: f64, now_ms: u64) {
        for (path, rates) in &sum.calls {
            let child = CallNode { service: path.service.clone(), class: path.class.clone() };
            let calls = rates.offered as f64 / MILLI * seconds;
            let Some(node) = self.node(&child, now_ms) else { continue };
            // Servers count retries and hedges too.
            node.sent += rates.offered.max(rates.answered) as f64 / MILLI * seconds;
            let Some(parent) = &path.parent else {
                *node.demand.entry(path.from.clone()).or_default() += calls;
                node.request_bytes += rates.request_bytes as f64 * seconds;
                node.response_bytes += rates.bytes as f64 * seconds;
                continue;
            };
            // The parent may have taken the place of the child.
            if self.node(parent, now_ms).is_none() || !self.nodes.contains_key(&child) {
                continue;
            }
            let Some(edge) = self.edge((parent.clone(), child), now_ms) else { continue };
            *edge.from.entry(path.from.clone()).or_default() += calls;
            edge.answered += rates.answered as f64 / MILLI * seconds;
            edge.time_us += rates.time_us as f64 * seconds;
            edge.request_bytes += rates.request_bytes as f64 * seconds;
            edge.response_bytes += rates.bytes as f64 * seconds;
        }
    }

    /// The sums of a node; `None` where there is no room.
    fn node(&mut self, node: &CallNode, now_ms: u64) -> Option<&mut NodeSums> {
        if !self.nodes.contains_key(node) {
            if self.nodes.len() >= MAX_GRAPH_NODES && !self.drop_node_for(&node.service.tenant) {
                self.leave_out(node);
                return None;
            }
            self.node_counts.add(&node.service.tenant);
        }
        let sums = self.nodes.entry(node.clone()).or_default();
        sums.at_ms = now_ms;
        Some(sums)
    }

    fn edge(&mut self, edge: Edge, now_ms: u64) -> Option<&mut EdgeSums> {
        if !self.edges.contains_key(&edge) {
            let tenant = &edge.0.service.tenant;
            if self.edges.len() >= MAX_GRAPH_EDGES && !self.drop_edge_for(tenant) {
                self.leave_out(&edge.1);
                return None;
            }
            self.edge_counts.add(tenant);
        }
        let sums = self.edges.entry(edge).or_default();
        sums.at_ms = now_ms;
        Some(sums)
    }

    /// Drops the last node, by name, of the tenant that has the most, with its edges. Returns whether that is another tenant. Graphs
    /// that see the same sums drop the same nodes.
    fn drop_node_for(&mut self, tenant: &Tenant) -> bool {
        let Some(loser) = self.node_counts.loser(tenant) else { return false };
        let last = self.nodes.keys().rfind(|node| node.service.tenant == loser).cloned();
        let Some(last) = last else { return false };
        self.nodes.remove(&last);
        self.node_counts.remove(&loser);
        self.edges.retain(|(parent, child), _| *parent != last && *child != last);
        self.edge_counts = TenantCounts::of(self.edges.keys().map(|(parent, _)| &parent.service.tenant));
        self.leave_out(&last);
        true
    }

    /// The same for an edge, by the tenant of its parent.
    fn drop_edge_for(&mut self, tenant: &Tenant) -> bool {
        let Some(loser) = self.edge_counts.loser(tenant) else { return false };
        let last = self.edges.keys().rfind(|(parent, _)| parent.service.tenant == loser).cloned();
        let Some(last) = last else { return false };
        self.edges.remove(&last);
        self.edge_counts.remove(&loser);
        self.leave_out(&last.1);
        true
    }

    fn leave_out(&mut self, node: &CallNode) {
        if self.left_out.len() < MAX_GRAPH_NODES {
            self.left_out.insert(node.clone());
        }
    }
}

#[cfg(test)]
mod tests;
