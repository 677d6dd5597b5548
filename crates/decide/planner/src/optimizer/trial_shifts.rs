//! Changes of a plan that are tried out beside the optimizer.

use fairmesh_model::CallNode;
use fairmesh_te::optimizer::{Plan, ProblemError, Shares};

use super::graph_problem::GraphProblem;
use crate::model_adjustment::Shift;

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

    fn shift(
        &self,
        row: &mut Vec<(u16, f64)>,
        (edge, source): (usize, usize),
        Shift { of, share, .. }: &Shift,
    ) {
        let node = CallNode { service: of.service.clone(), class: of.class.clone() };
        if self.regions[source] != of.source || self.nodes[self.problem.edges[edge].callee] != node {
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
