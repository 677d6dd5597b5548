//! Flows: shares of each block over its arcs, in compressed rows, and what they cause.

use super::{
    compiled_problem::{CallEdge, Network},
    topological_order::ROUNDS,
};

/// Calls per second below this are none: shares of such a block do not matter now, and are the best response to prices.
pub(super) const NO_RATE: f64 = 1e-9;

/// The change of rates that ends rounds of calls through cycles.
const SETTLED: f64 = 1e-6;

/// The arcs in use. Blocks with given shares have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Arcs {
    /// By block, and one more.
    pub(super) offsets: Vec<u32>,
    /// Destination among the placed regions.
    pub(super) to: Vec<u16>,
    /// Milliseconds of a call.
    pub(super) cost: Vec<f64>,
    /// Shares of a block sum to 1.
    pub(super) share: Vec<f64>,
}

/// What shares cause.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// Calls per second by block.
    pub(super) inflow: Vec<f64>,
    /// Calls per second by state.
    pub(super) arrivals: Vec<f64>,
    /// Work per second by pool.
    pub(super) work: Vec<f64>,
    /// Milliseconds, in a second, of round trips, egress and latencies that do not depend on load.
    pub(super) linear: f64,
}

impl Arcs {
    pub(super) fn range(&self, block: usize) -> std::ops::Range<usize> {
        self.offsets[block] as usize..self.offsets[block + 1] as usize
    }

    pub(super) fn push(&mut self, to: u16, cost: f64, share: f64) {
        self.to.push(to);
        self.cost.push(cost);
        self.share.push(share);
    }

    /// Ends the block that was pushed.
    pub(super) fn end_block(&mut self) {
        self.offsets.push(self.to.len() as u32);
    }

    /// Costs by the network's price of egress.
    pub(super) fn renew_costs(&mut self, network: &Network) {
        for edge in &network.edges {
            for (at, source) in edge.sources.iter().enumerate() {
                for arc in self.range(edge.first_block + at) {
                    let to = usize::from(self.to[arc]);
                    self.cost[arc] = network.arc_cost(edge, usize::from(*source), to);
                }
            }
        }
    }

    /// Calls `visit` with each destination and share of a block.
    fn each(
        &self,
        edge: &CallEdge,
        at: usize,
        shares: &[f64],
        mut visit: impl FnMut(usize, Option<usize>, f64),
    ) {
        match edge.given_row(at) {
            Some(row) => row.iter().for_each(|(to, share)| visit(usize::from(*to), None, *share)),
            None => {
                for arc in self.range(edge.first_block + at) {
                    visit(usize::from(self.to[arc]), Some(arc), shares[arc]);
                }
            }
        }
    }

    /// What these shares of the arcs cause.
    pub(super) fn propagate(&self, network: &Network, shares: &[f64], flow: &mut Flow) {
        flow.clear(network);
        for node in &network.nodes {
            for edge in &network.edges[node.inbound.clone()] {
                for (at, source) in edge.sources.iter().enumerate() {
                    let rate = network.rate(edge, at, &flow.arrivals);
                    flow.inflow[edge.first_block + at] = rate;
                    if rate <= 0.0 {
                        continue;
                    }
                    self.each(edge, at, shares, |to, arc, share| {
                        let cost = match arc {
                            Some(arc) => self.cost[arc],
                            None => network.arc_cost(edge, usize::from(*source), to),
                        };
                        flow.linear += rate * share * cost;
                        flow.arrivals[node.first_state + to] += rate * share;
                    });
                }
            }
            let service = &network.services[node.service];
            for at in 0..service.placed.len() {
                let arriving = flow.arrivals[node.first_state + at];
                flow.work[service.first_pool + at] += node.work * arriving;
                flow.linear += node.latency[at] * arriving;
            }
        }
    }

    /// What the shares cause, once calls of edges that close cycles have come round.
    pub(super) fn settle(&self, network: &mut Network, flow: &mut Flow) {
        self.propagate(network, &self.share, flow);
        let rounds = if network.cut.is_empty() { 0 } else { ROUNDS };
        for _ in 0..rounds {
            let change = network.renew_lagged(&flow.arrivals);
            self.propagate(network, &self.share, flow);
            if change < SETTLED {
                break;
            }
        }
    }

    /// Dollars per second for egress.
    pub(super) fn egress(&self, network: &Network, flow: &Flow) -> f64 {
        let mut dollars = 0.0;
        self.each_flow(network, flow, |edge, source, to, rate| {
            dollars += rate * network.arc_dollars(edge, source, to);
        });
        dollars
    }

    /// Calls `visit` with edge, source region, placed destination and calls per second.
    pub(super) fn each_flow(
        &self,
        network: &Network,
        flow: &Flow,
        mut visit: impl FnMut(&CallEdge, usize, usize, f64),
    ) {
        for edge in &network.edges {
            for (at, source) in edge.sources.iter().enumerate() {
                let rate = flow.inflow[edge.first_block + at];
                self.each(edge, at, &self.share, |to, _, share| {
                    visit(edge, usize::from(*source), to, rate * share);
                });
            }
        }
    }

    /// Shares by edge and source for each block, with those that it has not.
    pub(super) fn row(&self, edge: &CallEdge, at: usize) -> Vec<(u16, f64)> {
        let mut row = Vec::new();
        self.each(edge, at, &self.share, |to, _, share| row.push((to as u16, share)));
        row
    }
}

impl Flow {
    fn clear(&mut self, network: &Network) {
        for (list, length) in [
            (&mut self.inflow, network.blocks),
            (&mut self.arrivals, network.states),
            (&mut self.work, network.pools.len()),
        ] {
            list.clear();
            list.resize(length, 0.0);
        }
        self.linear = 0.0;
    }

    /// Milliseconds of all calls of a second: the objective, without smoothing and without the ceiling.
    pub(super) fn objective(&self, network: &Network) -> f64 {
        self.linear + network.pools.iter().zip(&self.work).map(|(pool, work)| pool.cost(*work)).sum::<f64>()
    }

    /// How far the fullest pool is above the ceiling.
    pub(super) fn excess(&self, network: &Network) -> f64 {
        let excess = network.pools.iter().zip(&self.work).map(|(pool, work)| pool.excess(*work));
        excess.fold(f64::NEG_INFINITY, f64::max)
    }
}
