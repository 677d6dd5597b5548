//! A damped Newton step on the arcs in use: conjugate gradients with an active set (Bertsekas and Gafni 1983, "Projected Newton methods and
//! optimization of multicommodity flows").
//!
//! Each block has a basis arc, the one with the greatest share. The other arcs change freely and the basis takes the rest. Products with the
//! Hessian take one pass from callers to callees and one back, so that it is never stored. Damping (Levenberg and Marquardt) is needed because
//! cycles of flow between sources have no curvature.

mod hessian;

use super::{
    arc_flows::{Arcs, Flow, NO_RATE},
    compiled_problem::Network,
};
use hessian::Hessian;

/// Products of the first round of conjugate gradients, and of each further one.
const FIRST_PRODUCTS: usize = 8;
const FURTHER_PRODUCTS: usize = 4;
/// Rounds that fix arcs which would become negative. One alone stalls.
const ROUNDS: usize = 4;
/// Conjugate gradients end when this part of the residual is left.
const RESIDUAL: f64 = 1e-3;
const LEAST_CURVATURE: f64 = 1e-12;

/// The shares that a Newton step aims at.
pub(super) fn newton_target(network: &Network, arcs: &Arcs, flow: &Flow, damping: f64) -> Vec<f64> {
    let mut newton = Newton::new(network, arcs, flow, damping);
    for round in 0..ROUNDS {
        let products = if round == 0 { FIRST_PRODUCTS } else { FURTHER_PRODUCTS };
        let is_moving = newton.conjugate_gradients(products, round == 0);
        if !is_moving || (round + 1 < ROUNDS && !newton.fix_negative()) {
            break;
        }
    }
    newton.target()
}

struct Newton<'a> {
    arcs: &'a Arcs,
    flow: &'a Flow,
    hessian: Hessian<'a>,
    damping: f64,
    /// By arc: marginal cost above that of the basis.
    gradient: Vec<f64>,
    /// By arc: curvature with the basis, other arcs kept.
    diagonal: Vec<f64>,
    /// Arcs that do not change: bases, arcs at 0, and blocks without calls.
    is_fixed: Vec<bool>,
    /// By arc: change of calls per second.
    change: Vec<f64>,
}

impl<'a> Newton<'a> {
    fn new(network: &'a Network, arcs: &'a Arcs, flow: &'a Flow, damping: f64) -> Self {
        let hessian = Hessian::new(network, arcs, flow);
        let (gradient, diagonal) = hessian.gradient();
        let mut is_fixed = vec![false; arcs.to.len()];
        for block in 0..network.blocks {
            let is_dead = flow.inflow[block] <= NO_RATE;
            for arc in arcs.range(block) {
                is_fixed[arc] = is_dead || arc == hessian.basis(block);
            }
        }
        let change = vec![0.0; arcs.to.len()];
        Self { arcs, flow, hessian, damping, gradient, diagonal, is_fixed, change }
    }

    /// Improves the change by so many products. Returns whether there was anything to improve.
    fn conjugate_gradients(&mut self, products: usize, is_first: bool) -> bool {
        let count = self.change.len();
        let mut product = vec![0.0; count];
        if !is_first {
            self.hessian.product(&self.change, &mut product);
        }
        let scale = 1.0 / (1.0 + self.damping);
        let mut residual = vec![0.0; count];
        for arc in (0..count).filter(|arc| !self.is_fixed[*arc]) {
            let damped = self.damping * self.change[arc] * self.diagonal[arc];
            residual[arc] = -self.gradient[arc] - product[arc] - damped;
        }
        let mut direction: Vec<f64> =
            residual.iter().zip(&self.diagonal).map(|(rest, own)| rest / own * scale).collect();
        let mut norm = dot(&residual, &direction);
        let first_norm = norm;
        if first_norm <= 0.0 || first_norm.is_nan() {
            return false;
        }
        for _ in 0..products {
            self.hessian.product(&direction, &mut product);
            for arc in 0..count {
                product[arc] = match self.is_fixed[arc] {
                    true => 0.0,
                    false => product[arc] + self.damping * direction[arc] * self.diagonal[arc],
                };
            }
            let curvature = dot(&direction, &product);
            if curvature <= 0.0 {
                break;
            }
            let length = norm / curvature;
            let mut next = 0.0;
            for arc in 0..count {
                self.change[arc] += length * direction[arc];
                residual[arc] -= length * product[arc];
                next += residual[arc] * residual[arc] / self.diagonal[arc] * scale;
            }
            if next < RESIDUAL * first_norm {
                break;
            }
            let turn = next / norm;
            norm = next;
            for arc in 0..count {
                direction[arc] = residual[arc] / self.diagonal[arc] * scale + turn * direction[arc];
            }
        }
        true
    }

    /// Fixes arcs that would become negative at no flow. Returns whether there were any.
    fn fix_negative(&mut self) -> bool {
        let mut is_found = false;
        for block in 0..self.flow.inflow.len() {
            let rate = self.flow.inflow[block];
            for arc in self.arcs.range(block) {
                let flow = rate * self.arcs.share[arc];
                if !self.is_fixed[arc] && flow + self.change[arc] < 0.0 {
                    self.is_fixed[arc] = true;
                    self.change[arc] = -flow;
                    is_found = true;
                }
            }
        }
        is_found
    }

    fn target(self) -> Vec<f64> {
        let mut target = self.arcs.share.clone();
        for block in 0..self.flow.inflow.len() {
            let (range, rate) = (self.arcs.range(block), self.flow.inflow[block]);
            if range.len() < 2 || rate <= NO_RATE {
                continue;
            }
            let basis = self.hessian.basis(block);
            let mut moved = 0.0;
            for arc in range.clone().filter(|arc| *arc != basis) {
                let flow = rate * self.arcs.share[arc];
                target[arc] = (flow + self.change[arc]).max(0.0);
                moved += target[arc] - flow;
            }
            target[basis] = (rate * self.arcs.share[basis] - moved).max(0.0);
            let sum: f64 = target[range.clone()].iter().sum();
            target[range].iter_mut().for_each(|share| *share /= sum);
        }
        target
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
