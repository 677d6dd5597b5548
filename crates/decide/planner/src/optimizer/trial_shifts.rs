//! Changes of a plan that are tried out beside the optimizer.

use fairmesh_model::{Region, ServiceName};
use fairmesh_te::optimizer::{Plan, ProblemError, Shares};

use super::graph_problem::GraphProblem;
use crate::model_adjustment::{Move, Shift};

/// More calls per second that arrive at a pool are no rounding from this part of them on.
const MORE: f64 = 1e-4;

impl GraphProblem {
    /// A plan with these changes; calls from outside of the mesh stay.
    pub(super) fn shifted(&self, plan: &Plan, shifts: &[Shift]) -> Result<Plan, ProblemError> {
        if shifts.is_empty() {
            return Ok(plan.clone());
        }
        let count = self.regions.len();
        let places = (0..self.problem.edges.len()).flat_map(|edge| (0..count).map(move |at| (edge, at)));
        let rows = places.map(|(edge, source)| {
            let mut row = plan.shares.row(edge, source).to_vec();
            if !self.outside.contains(&edge) {
                shifts.iter().for_each(|shift| self.shift(&mut row, (edge, source), shift));
            }
            row
        });
        let shares = Shares::new(count, rows);
        let mut shifted = Plan::evaluate(&self.problem, &shares, &plan.admitted)?;
        shifted.bound = plan.bound;
        Ok(shifted)
    }

    /// The pools at which more calls arrive by the second plan, by service × regions + region. Calls count, and not work, because the work
    /// of services that another planner plans is not known.
    pub(super) fn fuller_pools(&self, before: &Plan, after: &Plan) -> Vec<usize> {
        let arrivals = self.arrivals(before).into_iter().zip(self.arrivals(after));
        let more = arrivals.enumerate().filter(|(_, (before, after))| *after > before * (1.0 + MORE) + MORE);
        more.map(|(at, _)| at).collect()
    }

    /// The service and the region of a pool.
    pub(super) fn pool(&self, at: usize) -> (ServiceName, Region) {
        let count = self.regions.len();
        (self.services[at / count].clone(), self.regions[at % count].clone())
    }

    /// Calls per second that arrive at each pool.
    fn arrivals(&self, plan: &Plan) -> Vec<f64> {
        let count = self.regions.len();
        let mut arrivals = vec![0.0; self.services.len() * count];
        for (number, edge) in self.problem.edges.iter().enumerate() {
            let service = self.problem.nodes[edge.callee].service;
            for source in 0..count {
                for (to, share) in plan.shares.row(number, source) {
                    let calls = plan.calls[number * count + source] * share;
                    arrivals[service * count + usize::from(*to)] += calls;
                }
            }
        }
        arrivals
    }

    /// The share of the calls of a move that goes to a region; `None` without such calls.
    pub(super) fn share_to(&self, plan: &Plan, of: &Move, to: &Region) -> Option<f64> {
        let is_of = |edge: &usize| !self.outside.contains(edge) && self.is_callee(*edge, of);
        let edge = (0..self.problem.edges.len()).find(is_of)?;
        let position = |region| self.regions.binary_search(region).ok();
        let (source, to) = position(&of.source).zip(position(to))?;
        let row = plan.shares.row(edge, source);
        Some(row.iter().filter(|(at, _)| usize::from(*at) == to).map(|(_, share)| share).sum())
    }

    /// Whether a move is about the calls of an edge.
    fn is_callee(&self, edge: usize, of: &Move) -> bool {
        let node = &self.nodes[self.problem.edges[edge].callee];
        node.service == of.service && node.class == of.class
    }

    fn shift(
        &self,
        row: &mut Vec<(u16, f64)>,
        (edge, source): (usize, usize),
        Shift { of, share, .. }: &Shift,
    ) {
        if self.regions[source] != of.source || !self.is_callee(edge, of) {
            return;
        }
        let position = |region| self.regions.binary_search(region).ok().and_then(|at| u16::try_from(at).ok());
        let Some((from, to)) = position(&of.from).zip(position(&of.to)) else { return };
        let Some(entry) = row.iter_mut().find(|(at, _)| *at == from) else { return };
        let moved = entry.1.min(*share);
        entry.1 -= moved;
        match row.iter_mut().find(|(at, _)| *at == to) {
            Some(entry) => entry.1 += moved,
            None => row.push((to, moved)),
        }
        row.retain(|(_, share)| *share > 0.0);
        row.sort_by_key(|(at, _)| *at);
    }
}
