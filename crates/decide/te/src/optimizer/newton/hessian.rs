//! Gradient and products with the Hessian, without either matrix.

use super::LEAST_CURVATURE;
use crate::optimizer::{
    arc_flows::{Arcs, Flow},
    compiled_problem::{CallEdge, CallNode, Network},
    pool_cost::Slope,
};

pub(super) struct Hessian<'a> {
    network: &'a Network,
    arcs: &'a Arcs,
    slopes: Vec<Slope>,
    /// By block: its arc with the greatest share.
    basis: Vec<u32>,
    /// By state: changes of arrivals, then of marginal costs.
    states: Vec<f64>,
    /// By pool: changes of work, then of prices.
    pools: Vec<f64>,
}

impl<'a> Hessian<'a> {
    pub(super) fn new(network: &'a Network, arcs: &'a Arcs, flow: &Flow) -> Self {
        let slopes = network.pools.iter().zip(&flow.work).map(|(pool, work)| pool.slope(*work)).collect();
        let greatest = |block| {
            let first = arcs.range(block).start;
            let greater = |best: usize, arc| if arcs.share[arc] > arcs.share[best] { arc } else { best };
            arcs.range(block).fold(first, greater) as u32
        };
        let basis = (0..network.blocks).map(greatest).collect();
        let (states, pools) = (vec![0.0; network.states], vec![0.0; network.pools.len()]);
        Self { network, arcs, slopes, basis, states, pools }
    }

    pub(super) fn basis(&self, block: usize) -> usize {
        self.basis[block] as usize
    }

    /// By arc: the marginal cost above that of the basis arc, and the curvature of both.
    pub(super) fn gradient(&self) -> (Vec<f64>, Vec<f64>) {
        let network = self.network;
        let count = self.arcs.to.len();
        let (mut gradient, mut diagonal) = (vec![0.0; count], vec![LEAST_CURVATURE; count]);
        let (mut value, mut curvature) = (vec![0.0; network.states], vec![0.0; network.states]);
        for node in network.nodes.iter().rev() {
            let service = &network.services[node.service];
            for at in 0..service.placed.len() {
                let slope = self.slopes[service.first_pool + at];
                value[node.first_state + at] += node.latency[at] + node.work * slope.price;
                curvature[node.first_state + at] += node.work * node.work * slope.curvature;
            }
            for edge in &network.edges[node.inbound.clone()] {
                for at in 0..edge.sources.len() {
                    let (mean, bend) = match edge.given_row(at) {
                        Some(given) => self.given_mean(edge, at, (given, &value, &curvature)),
                        None => {
                            self.block_mean((edge, at), (&value, &curvature), (&mut gradient, &mut diagonal))
                        }
                    };
                    if let Some((state, calls)) = edge.caller(network, at) {
                        value[state] += calls * mean;
                        curvature[state] += calls * calls * bend;
                    }
                }
            }
        }
        (gradient, diagonal)
    }

    /// Fills the part of a block, and returns the marginal cost and the curvature of a call over it.
    fn block_mean(
        &self,
        (edge, at): (&CallEdge, usize),
        (value, curvature): (&[f64], &[f64]),
        (gradient, diagonal): (&mut [f64], &mut [f64]),
    ) -> (f64, f64) {
        let first = self.network.nodes[edge.callee].first_state;
        let block = edge.first_block + at;
        let (mut mean, mut bend) = (0.0, 0.0);
        for arc in self.arcs.range(block) {
            let state = first + usize::from(self.arcs.to[arc]);
            let share = self.arcs.share[arc];
            gradient[arc] = self.arcs.cost[arc] + value[state];
            diagonal[arc] = curvature[state];
            mean += share * gradient[arc];
            bend += share * share * curvature[state];
        }
        let (base, own) = (gradient[self.basis(block)], diagonal[self.basis(block)]);
        for arc in self.arcs.range(block) {
            gradient[arc] -= base;
            diagonal[arc] = (diagonal[arc] + own).max(LEAST_CURVATURE);
        }
        (mean, bend)
    }

    fn given_mean(
        &self,
        edge: &CallEdge,
        at: usize,
        (given, value, curvature): (&[(u16, f64)], &[f64], &[f64]),
    ) -> (f64, f64) {
        let first = self.network.nodes[edge.callee].first_state;
        let source = usize::from(edge.sources[at]);
        given.iter().fold((0.0, 0.0), |(mean, bend), (to, share)| {
            let (cost, state) =
                (self.network.arc_cost(edge, source, usize::from(*to)), first + usize::from(*to));
            (mean + share * (cost + value[state]), bend + share * share * curvature[state])
        })
    }

    /// The product with a change of calls per second by arc. Bases take what the other arcs of their block lose.
    pub(super) fn product(&mut self, direction: &[f64], product: &mut [f64]) {
        self.forward(direction);
        for (change, slope) in self.pools.iter_mut().zip(&self.slopes) {
            *change *= slope.curvature;
        }
        self.backward(product);
    }

    /// Changes of arrivals and work.
    fn forward(&mut self, direction: &[f64]) {
        self.states.fill(0.0);
        self.pools.fill(0.0);
        let network = self.network;
        for node in &network.nodes {
            for edge in &network.edges[node.inbound.clone()] {
                for at in 0..edge.sources.len() {
                    let calling = edge.caller(network, at);
                    let change = calling.map_or(0.0, |(state, calls)| calls * self.states[state]);
                    self.spread(node, (edge, at), change, direction);
                }
            }
            let service = &network.services[node.service];
            for at in 0..service.placed.len() {
                self.pools[service.first_pool + at] += node.work * self.states[node.first_state + at];
            }
        }
    }

    fn spread(&mut self, node: &CallNode, (edge, at): (&CallEdge, usize), change: f64, direction: &[f64]) {
        let arrivals = &mut self.states[node.first_state..];
        if let Some(given) = edge.given_row(at) {
            given.iter().for_each(|(to, share)| arrivals[usize::from(*to)] += share * change);
            return;
        }
        let block = edge.first_block + at;
        let basis = self.basis[block] as usize;
        let mut moved = 0.0;
        for arc in self.arcs.range(block) {
            let own = if arc == basis { 0.0 } else { direction[arc] };
            moved += own;
            arrivals[usize::from(self.arcs.to[arc])] += own + self.arcs.share[arc] * change;
        }
        arrivals[usize::from(self.arcs.to[basis])] -= moved;
    }

    /// Changes of marginal costs, from changes of prices.
    fn backward(&mut self, product: &mut [f64]) {
        self.states.fill(0.0);
        let network = self.network;
        for node in network.nodes.iter().rev() {
            let service = &network.services[node.service];
            for at in 0..service.placed.len() {
                self.states[node.first_state + at] += node.work * self.pools[service.first_pool + at];
            }
            for edge in &network.edges[node.inbound.clone()] {
                for at in 0..edge.sources.len() {
                    let mean = self.collect(node, (edge, at), product);
                    if let Some((state, calls)) = edge.caller(network, at) {
                        self.states[state] += calls * mean;
                    }
                }
            }
        }
    }

    fn collect(&self, node: &CallNode, (edge, at): (&CallEdge, usize), product: &mut [f64]) -> f64 {
        let values = &self.states[node.first_state..];
        if let Some(given) = edge.given_row(at) {
            return given.iter().map(|(to, share)| share * values[usize::from(*to)]).sum();
        }
        let block = edge.first_block + at;
        let base = values[usize::from(self.arcs.to[self.basis(block)])];
        let mut mean = 0.0;
        for arc in self.arcs.range(block) {
            let value = values[usize::from(self.arcs.to[arc])];
            product[arc] = value - base;
            mean += self.arcs.share[arc] * value;
        }
        mean
    }
}
