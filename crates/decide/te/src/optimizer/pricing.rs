//! A pass of prices from callees to callers: the best arc of each block, a gradient projection, and a lower bound.
//!
//! Given a price of work for each pool, the least cost of one call to a node in a region is its own cost plus, for each call that it makes,
//! the least over destinations (Gallager 1977 on call graphs). Each node is priced once for all of its callers. The same least costs give
//! the bound: what the pools cost at these prices at least, plus demand × least cost of a call. It holds for any prices.

use super::{
    arc_flows::{Arcs, Flow, NO_RATE},
    compiled_problem::{CallEdge, CallNode, Network},
    pool_cost::Slope,
};

/// Arcs with shares below this, before and after a step, are removed.
const NEGLIGIBLE: f64 = 1e-10;
/// Curvatures are at least this, so that a step along a linear cost is finite.
const LEAST_CURVATURE: f64 = 1e-12;
/// Marks a block whose best destination is among its arcs.
const NONE: u16 = u16::MAX;

/// The best arc of a block that has no flow over it yet.
#[derive(Clone, Copy, Debug)]
struct Entering {
    to: u16,
    cost: f64,
    target: f64,
}

/// A pass over a network, which is as large as its arrays.
#[derive(Debug)]
pub(super) struct Pricing<'a> {
    network: &'a Network,
    arcs: &'a Arcs,
    flow: &'a Flow,
    /// How far steps go: 1 is Newton's step for each pair of arcs.
    scale: f64,
    slopes: Vec<Slope>,
    /// Marginal cost of a call by state, as shares are.
    value: Vec<f64>,
    /// Least cost of a call by state.
    least: Vec<f64>,
    /// Curvature along a call by state, where other calls stay.
    curvature: Vec<f64>,
    /// By pool: how far the price has moved through steps of this pass. Steps of further blocks see it (Gauss-Seidel).
    shift: Vec<f64>,
    target: Vec<f64>,
    entering: Vec<Entering>,
    bound: f64,
    row: Row,
}

/// Costs and prices of the destinations of one node, kept to be reused.
#[derive(Debug, Default)]
struct Row {
    costs: Vec<f64>,
    /// Values with the shifts of this pass.
    value: Vec<f64>,
    before: Vec<f64>,
    curvature: Vec<f64>,
}

/// Arcs with the best of each block among them, the shares to go for, and the bound.
#[derive(Debug)]
pub(super) struct Priced {
    pub(super) arcs: Arcs,
    pub(super) target: Vec<f64>,
    pub(super) bound: f64,
}

/// Prices everything.
pub(super) fn price(network: &Network, arcs: &Arcs, flow: &Flow, scale: f64) -> Priced {
    let slopes: Vec<Slope> =
        network.pools.iter().zip(&flow.work).map(|(pool, work)| pool.slope(*work)).collect();
    let least = network.pools.iter().zip(&slopes).map(|(pool, slope)| pool.least_at(slope.price));
    let mut pricing = Pricing {
        network,
        arcs,
        flow,
        scale,
        value: vec![0.0; network.states],
        least: vec![0.0; network.states],
        curvature: vec![0.0; network.states],
        shift: vec![0.0; network.pools.len()],
        target: arcs.share.clone(),
        entering: vec![Entering { to: NONE, cost: 0.0, target: 0.0 }; network.blocks],
        bound: least.sum(),
        slopes,
        row: Row::default(),
    };
    for node in network.nodes.iter().rev() {
        pricing.price_node(node);
    }
    pricing.rebuild()
}

impl Pricing<'_> {
    fn price_node(&mut self, node: &CallNode) {
        let network = self.network;
        let service = &network.services[node.service];
        let (count, work) = (service.placed.len(), node.work);
        self.row.value.clear();
        self.row.curvature.clear();
        for at in 0..count {
            let (state, pool) = (node.first_state + at, service.first_pool + at);
            let slope = self.slopes[pool];
            self.value[state] += node.latency[at] + work * slope.price;
            self.least[state] += node.latency[at] + work * slope.price;
            self.curvature[state] += work * work * slope.curvature;
            self.row.value.push(self.value[state] + work * self.shift[pool]);
            self.row.curvature.push(self.curvature[state] / self.scale);
        }
        self.row.before.clone_from(&self.row.value);
        for edge in &network.edges[node.inbound.clone()] {
            for at in 0..edge.sources.len() {
                let call = self.price_block(node, edge, at);
                self.hand_to_caller(edge, at, call);
            }
        }
        for at in 0..count {
            let moved = self.row.value[at] - self.row.before[at];
            if self.row.curvature[at] > 0.0 && moved != 0.0 {
                let calls = moved / self.row.curvature[at];
                let pool = service.first_pool + at;
                self.shift[pool] += self.slopes[pool].curvature * work * calls;
            }
        }
    }

    fn hand_to_caller(&mut self, edge: &CallEdge, at: usize, call: Call) {
        match edge.caller(self.network, at) {
            Some((state, calls)) => {
                self.value[state] += calls * call.value;
                self.least[state] += calls * call.least;
                self.curvature[state] += calls * calls * call.curvature;
            }
            None => self.bound += self.network.rate(edge, at, &[]) * call.least,
        }
    }

    fn price_block(&mut self, node: &CallNode, edge: &CallEdge, at: usize) -> Call {
        let source = usize::from(edge.sources[at]);
        if let Some(given) = edge.given_row(at) {
            let mut call = Call::default();
            for (to, share) in given {
                let cost = self.network.arc_cost(edge, source, usize::from(*to));
                self.add_to(&mut call, node.first_state + usize::from(*to), (cost, *share));
                call.least += share * (cost + self.least[node.first_state + usize::from(*to)]);
            }
            return call;
        }
        self.network.arc_costs(edge, source, &mut self.row.costs);
        let least = &self.least[node.first_state..node.first_state + self.row.costs.len()];
        let bound = self.row.costs.iter().zip(least).fold(f64::INFINITY, |a, (cost, own)| a.min(cost + own));
        let (best, best_value) = self.row.best();
        let block = edge.first_block + at;
        let mut call = Call { least: bound, ..Call::default() };
        if self.flow.inflow[block] <= NO_RATE {
            for arc in self.arcs.range(block) {
                self.target[arc] = 0.0;
            }
            self.enter(block, best, 1.0);
            call.value = best_value;
            call.curvature = self.curvature[node.first_state + best];
            return call;
        }
        for arc in self.arcs.range(block) {
            let state = node.first_state + usize::from(self.arcs.to[arc]);
            self.add_to(&mut call, state, (self.arcs.cost[arc], self.arcs.share[arc]));
        }
        self.project(block, best);
        call
    }

    fn add_to(&self, call: &mut Call, state: usize, (cost, share): (f64, f64)) {
        call.value += share * (cost + self.value[state]);
        call.curvature += share * share * self.curvature[state];
    }

    /// Moves flow of each arc to the best one, as far as the difference of marginal costs would be gone.
    fn project(&mut self, block: usize, best: usize) {
        let rate = self.flow.inflow[block];
        let mut moved = 0.0;
        for arc in self.arcs.range(block) {
            let (to, share) = (usize::from(self.arcs.to[arc]), self.arcs.share[arc]);
            if to == best || share <= 0.0 {
                continue;
            }
            let row = &mut self.row;
            let excess = self.arcs.cost[arc] + row.value[to] - row.costs[best] - row.value[best];
            if excess <= 0.0 {
                continue;
            }
            let curvature = (row.curvature[to] + row.curvature[best]).max(LEAST_CURVATURE);
            let calls = (excess / curvature).min(share * rate);
            row.value[to] -= row.curvature[to] * calls;
            row.value[best] += row.curvature[best] * calls;
            self.target[arc] = share - calls / rate;
            moved += share - self.target[arc];
        }
        self.enter(block, best, moved);
    }

    /// Adds to the target of a block's best arc.
    fn enter(&mut self, block: usize, best: usize, share: f64) {
        let found = self.arcs.range(block).find(|arc| usize::from(self.arcs.to[*arc]) == best);
        match found {
            Some(arc) => self.target[arc] += share,
            None => {
                let cost = self.row.costs[best];
                self.entering[block] = Entering { to: best as u16, cost, target: share };
            }
        }
    }

    /// Arcs with the entering ones, without negligible ones.
    fn rebuild(self) -> Priced {
        let mut arcs = Arcs { offsets: Vec::with_capacity(self.network.blocks + 1), ..Arcs::default() };
        arcs.offsets.push(0);
        let mut target = Vec::with_capacity(self.target.len());
        for (block, entering) in self.entering.iter().enumerate() {
            let first = target.len();
            let is_dead = self.flow.inflow[block] <= NO_RATE;
            for arc in self.arcs.range(block) {
                let share = if is_dead { self.target[arc] } else { self.arcs.share[arc] };
                if share >= NEGLIGIBLE || self.target[arc] >= NEGLIGIBLE {
                    arcs.push(self.arcs.to[arc], self.arcs.cost[arc], share);
                    target.push(self.target[arc]);
                }
            }
            if entering.to != NONE {
                arcs.push(entering.to, entering.cost, if is_dead { entering.target } else { 0.0 });
                target.push(entering.target);
            }
            normalize(&mut arcs.share[first..]);
            normalize(&mut target[first..]);
            arcs.end_block();
        }
        Priced { arcs, target, bound: self.bound }
    }
}

/// One call over a block.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    value: f64,
    least: f64,
    curvature: f64,
}

impl Row {
    /// The first destination with the least cost, and that cost.
    fn best(&self) -> (usize, f64) {
        let costs = self.costs.iter().zip(&self.value).map(|(cost, value)| cost + value);
        costs
            .enumerate()
            .fold((0, f64::INFINITY), |best, (at, cost)| if cost < best.1 { (at, cost) } else { best })
    }
}

/// Shares sum to 1 again.
fn normalize(shares: &mut [f64]) {
    let sum: f64 = shares.iter().sum();
    if sum > 0.0 {
        shares.iter_mut().for_each(|share| *share /= sum);
    }
}
