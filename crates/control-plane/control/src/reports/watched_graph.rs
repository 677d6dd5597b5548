//! The call graph and the cost of calls, computed while operators look at them.

mod pool_fit;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{CallNode, Region, ServiceName};
use fairmesh_planner::{CallGraph, GraphEdge, GraphNode, PoolCosts, PoolFit};
use fairmesh_wire::v1;
use tonic::Status;

use super::TrafficReports;

/// Time for which reports are still counted after an operator's last view, in milliseconds.
const WATCH_MS: u64 = 60_000;
/// Interval between two sums of the reports, in milliseconds.
const STEP_MS: u64 = 1_000;

/// The graph, and the costs since operators began to view them. While no operator views them, no sums are formed.
#[derive(Debug, Default)]
pub(super) struct WatchedGraph {
    graph: CallGraph,
    costs: PoolCosts,
    since_ms: u64,
    until_ms: u64,
    observed_at_ms: Option<u64>,
}

impl TrafficReports {
    /// The graph of all reported calls; or, for a service, of its calls and the calls of all services that
    /// are called on its behalf. Their calls are reported from now on.
    ///
    /// # Errors
    /// The service does not exist, or too many services are watched.
    pub(crate) fn call_graph(
        &self,
        service: Option<&ServiceName>,
    ) -> Result<v1::TrafficGraphResponse, Status> {
        let now_ms = self.now_ms();
        service.map(|service| self.look(service, now_ms)).transpose()?;
        self.graph().look(now_ms);
        self.observe_graph(now_ms);
        // Copied, since reports arrive meanwhile.
        let (graph, fits, since_ms) = self.graph().read();
        let below = service.map(|service| graph.below(service));
        let is_below = |name: &ServiceName| below.as_ref().is_none_or(|below| below.contains(name));
        let nodes = graph.nodes(now_ms).into_iter().filter(|one| is_below(&one.node.service));
        let edges = graph.edges(now_ms).into_iter().filter(|edge| is_below(&edge.parent.service));
        let pools = fits.into_iter().filter(|pool| is_below(&pool.service));
        let mut response = v1::TrafficGraphResponse {
            nodes: nodes.map(write_node).collect(),
            edges: edges.map(write_edge).collect(),
            left_out: u32::try_from(graph.left_out()).unwrap_or(u32::MAX),
            counted_ms: now_ms.saturating_sub(since_ms),
            not_watched: 0,
            pools: pools.map(|pool| pool_fit::write(pool, now_ms)).collect(),
        };
        response.not_watched = self.look_at_all(&below.unwrap_or_default(), now_ms);
        Ok(response)
    }

    /// Adds the latest reports to the graph, once per second while an operator views it.
    pub(super) fn observe_graph(&self, now_ms: u64) {
        if !self.graph().begin_step(now_ms) {
            return;
        }
        let sum = self.sums().sum_of_all(now_ms);
        let mut watched = self.graph();
        watched.graph.observe(&sum, now_ms);
        watched.costs.observe(&sum, now_ms);
    }

    /// Requests reports of the services' calls. Returns the number of services for which there is no room.
    fn look_at_all(&self, services: &BTreeSet<ServiceName>, now_ms: u64) -> u32 {
        let refused = services.iter().filter(|service| self.look(service, now_ms).is_err());
        u32::try_from(refused.count()).unwrap_or(u32::MAX)
    }
}

impl WatchedGraph {
    /// Records a view by an operator. If the last view is long ago, the graph starts again.
    fn look(&mut self, now_ms: u64) {
        if now_ms >= self.until_ms {
            *self = Self { since_ms: now_ms, ..Self::default() };
        }
        self.until_ms = now_ms.saturating_add(WATCH_MS);
    }

    /// Whether the caller must count the latest reports now. A concurrent caller gets `false`.
    fn begin_step(&mut self, now_ms: u64) -> bool {
        let is_new = self.observed_at_ms.is_none_or(|at| now_ms.saturating_sub(at) >= STEP_MS);
        let is_due = is_new && now_ms < self.until_ms;
        if is_due {
            self.observed_at_ms = Some(now_ms);
        }
        is_due
    }

    /// Returns the graph, the fits, and the time since which both are counted.
    fn read(&self) -> (CallGraph, Vec<PoolFit>, u64) {
        (self.graph.clone(), self.costs.fits(), self.since_ms)
    }
}

fn write_node(node: GraphNode) -> v1::GraphNode {
    let GraphNode { node, served, demand, age_ms, .. } = node;
    v1::GraphNode { node: Some(name(node)), served: by_region(served), demand: by_region(demand), age_ms }
}

fn write_edge(edge: GraphEdge) -> v1::GraphEdge {
    let GraphEdge {
        parent,
        child,
        from,
        multiplicity,
        request_bytes,
        response_bytes,
        time_us,
        is_cut,
        age_ms,
    } = edge;
    v1::GraphEdge {
        parent: Some(name(parent)),
        child: Some(name(child)),
        from: by_region(from),
        multiplicity,
        request_bytes,
        response_bytes,
        time_us,
        is_cut,
        age_ms,
    }
}

fn name(node: CallNode) -> v1::CallNode {
    v1::CallNode {
        service: node.service.to_string(),
        class: node.class.map(String::from).unwrap_or_default(),
    }
}

fn by_region(calls: BTreeMap<Region, f64>) -> Vec<v1::RegionCalls> {
    calls.into_iter().map(|(region, calls)| v1::RegionCalls { region: region.into(), calls }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_call_graph_counts_reports_once_per_second() {
        let mut watched = WatchedGraph::default();
        assert!(!watched.begin_step(5_000), "no operator looks");
        watched.look(5_000);
        assert_eq!([5_000, 5_000, 5_999, 6_000].map(|at| watched.begin_step(at)), [true, false, false, true]);
        assert!(!watched.begin_step(65_000), "a minute after the look");
    }
}
