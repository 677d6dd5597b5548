//! Waterfall: in the order of calls, each region serves its own calls up to a limit, and the rest goes to the nearest regions that have room
//! (SLATE Appendix A). It is a contender, and where the optimizer starts.
//!
//! A start from the nearest regions alone was rejected: with sparse placement it began at six times the capacity of a pool.

use std::collections::BTreeMap;

use super::{
    arc_flows::Arcs,
    compiled_problem::{CallEdge, Network, Origin, Service},
};

/// Shares below this are not worth an arc.
const LEAST_SHARE: f64 = 1e-6;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Calls of all classes alike.
    Calls,
    /// Units of work.
    Work,
}

/// Work per second up to a load, by pool.
pub(super) fn rooms(network: &Network, load: f64) -> Vec<f64> {
    network.pools.iter().map(|pool| pool.capacity * load).collect()
}

/// Fills pools up to the `room` that each has left, and takes what it uses. What finds no room stays at home, or at the nearest region.
///
/// Nodes of one service at the same depth of the graph have common shares: Waterfall does not tell classes apart.
pub(super) fn fill(network: &Network, room: &mut [f64], unit: Unit) -> Arcs {
    let (groups, group_of) = groups(network);
    let mut filling = Filling { network, room, unit, arrivals: vec![0.0; network.states] };
    let rows: Vec<Vec<Row>> = groups.iter().map(|nodes| filling.fill_group(nodes)).collect();
    let mut arcs = Arcs { offsets: vec![0], ..Arcs::default() };
    for (node, group) in network.nodes.iter().zip(group_of) {
        for edge in &network.edges[node.inbound.clone()] {
            for source in &edge.sources {
                let source = usize::from(*source);
                let row = if edge.given.is_empty() { &rows[group][source][..] } else { &[] };
                for (to, share) in row {
                    arcs.push(*to, network.arc_cost(edge, source, usize::from(*to)), *share);
                }
                arcs.end_block();
            }
        }
    }
    arcs
}

/// Placed destinations and shares of one source.
type Row = Vec<(u16, f64)>;

/// Nodes by depth and service, and the group of each node.
fn groups(network: &Network) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut depths = vec![0; network.nodes.len()];
    let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (at, node) in network.nodes.iter().enumerate() {
        let depth = |edge: &CallEdge| match edge.origin {
            Origin::Caller { node, .. } => depths[node] + 1,
            Origin::Clients(_) | Origin::Lagged { .. } => 0,
        };
        depths[at] = network.edges[node.inbound.clone()].iter().map(depth).max().unwrap_or(0);
        groups.entry((depths[at], node.service)).or_default().push(at);
    }
    let mut group_of = vec![0; network.nodes.len()];
    for (group, nodes) in groups.values().enumerate() {
        nodes.iter().for_each(|node| group_of[*node] = group);
    }
    (groups.into_values().collect(), group_of)
}

struct Filling<'a> {
    network: &'a Network,
    room: &'a mut [f64],
    unit: Unit,
    arrivals: Vec<f64>,
}

impl Filling<'_> {
    fn weight(&self, node: usize) -> f64 {
        match self.unit {
            Unit::Calls => 1.0,
            Unit::Work => self.network.nodes[node].work,
        }
    }

    fn fill_group(&mut self, nodes: &[usize]) -> Vec<Row> {
        let mut wanted = vec![0.0; self.network.regions];
        for node in nodes {
            self.each_call(*node, |filling, edge, at, rate| match edge.given_row(at) {
                Some(row) => row.iter().for_each(|(to, share)| filling.serve(*node, *to, rate * share)),
                None => wanted[usize::from(edge.sources[at])] += filling.weight(*node) * rate,
            });
        }
        let network = self.network;
        let service = &network.services[network.nodes[nodes[0]].service];
        let rows = self.divide(service, &wanted);
        for node in nodes {
            self.each_call(*node, |filling, edge, at, rate| {
                if edge.given.is_empty() {
                    for (to, share) in &rows[usize::from(edge.sources[at])] {
                        let first = filling.network.nodes[*node].first_state;
                        filling.arrivals[first + usize::from(*to)] += rate * share;
                    }
                }
            });
        }
        rows
    }

    /// Calls `visit` with edge, position of the source and calls per second.
    fn each_call(&mut self, node: usize, mut visit: impl FnMut(&mut Self, &CallEdge, usize, f64)) {
        let network = self.network;
        for edge in &network.edges[network.nodes[node].inbound.clone()] {
            for at in 0..edge.sources.len() {
                let rate = network.rate(edge, at, &self.arrivals);
                visit(self, edge, at, rate);
            }
        }
    }

    /// Given calls to a node.
    fn serve(&mut self, node: usize, to: u16, rate: f64) {
        let weight = self.weight(node);
        let node = &self.network.nodes[node];
        self.arrivals[node.first_state + usize::from(to)] += rate;
        let pool = self.network.services[node.service].first_pool + usize::from(to);
        self.room[pool] -= weight * rate;
    }

    /// The shares of each source: own region first, then the nearest. Rows are empty where the service has no servers: a valid problem
    /// has no calls to it.
    fn divide(&mut self, service: &Service, wanted: &[f64]) -> Vec<Row> {
        if service.placed.is_empty() {
            return vec![Row::new(); wanted.len()];
        }
        let pools = &mut self.room[service.first_pool..service.first_pool + service.placed.len()];
        let mut rows = vec![Row::new(); wanted.len()];
        let mut left: Vec<f64> = wanted.to_vec();
        let mut take = |source: usize, to: usize, left: &mut f64| {
            let taken = pools[to].max(0.0).min(*left);
            if taken > LEAST_SHARE * wanted[source] {
                pools[to] -= taken;
                *left -= taken;
                rows[source].push((to as u16, taken / wanted[source]));
            }
        };
        for (to, region) in service.placed.iter().enumerate() {
            let source = usize::from(*region);
            take(source, to, &mut left[source]);
        }
        for (source, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0.0) {
            for to in service.nearest(source) {
                if usize::from(service.placed[to]) != source && *left > LEAST_SHARE * wanted[source] {
                    take(source, to, left);
                }
            }
        }
        for (source, row) in rows.iter_mut().enumerate() {
            let rest = 1.0 - row.iter().map(|(_, share)| share).sum::<f64>();
            if row.is_empty() {
                row.push((service.nearest(source).first().map_or(0, |to| *to as u16), 0.0));
            }
            row[0].1 += rest;
            if rest > LEAST_SHARE {
                pools[usize::from(row[0].0)] -= rest * wanted[source];
            }
        }
        rows
    }
}
