//! The part of a plan that concerns one service.

use fairmesh_model::ServiceName;
use fairmesh_te::optimizer::Plan;

use super::{GraphProblem, HOUR};
use crate::{
    model_adjustment::Adjustments,
    optimizer::{Expectation, ServicePlan, service_model::ServiceModel},
};

/// Bytes that a price of egress is of.
const PRICED_BYTES: f64 = 1e9;

impl GraphProblem {
    /// The tables of a service, and what the plan expects of its calls. The gap is that of the plan itself.
    pub(in crate::optimizer) fn service_plan(
        &self,
        plan: &Plan,
        (service, model): (&ServiceName, &ServiceModel),
        number: u64,
        now_ms: u64,
    ) -> ServicePlan {
        let nodes = self.nodes_of(service, &model.classes);
        let count = self.regions.len();
        let at = self.services.binary_search(service).unwrap_or_default();
        let expected =
            (0..count).map(|source| nodes.iter().map(|node| self.expected(plan, source, *node)).collect());
        ServicePlan {
            number,
            regions: self.regions.clone(),
            classes: model.classes.clone(),
            tables: self.movable(plan).tables(&self.problem, &nodes),
            loads: plan.loads[at * count..(at + 1) * count].to_vec(),
            expected: expected.collect(),
            gap: plan.gap(),
            planned_at_ms: now_ms,
            model_at_ms: model.at_ms,
            model_error: model.error,
            adjustments: Adjustments::default(),
        }
    }

    /// The plan without calls from outside of the mesh: no table moves or drops them.
    fn movable(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        for edge in &self.outside {
            plan.admitted[*edge] = 1.0;
            plan.calls[edge * self.regions.len()..(edge + 1) * self.regions.len()].fill(0.0);
        }
        plan
    }

    /// What calls of a region to a node take and cost.
    fn expected(&self, plan: &Plan, source: usize, callee: usize) -> Expectation {
        let (count, node) = (self.regions.len(), &self.problem.nodes[callee]);
        let mut sums = Expectation::default();
        let edges = self.problem.edges.iter().enumerate();
        for (number, edge) in
            edges.filter(|(number, edge)| edge.callee == callee && !self.outside.contains(number))
        {
            let calls = plan.calls[number * count + source];
            sums.calls += calls;
            for (to, share) in plan.shares.row(number, source) {
                let to = usize::from(*to);
                let calls = calls * share;
                let waiting = node.work * plan.work_latencies[node.service * count + to];
                sums.latency_ms += calls
                    * (self.problem.round_trips[source * count + to]
                        + self.problem.latency(callee, to)
                        + waiting);
                let dollars = edge.request_bytes * self.problem.egress_prices[source * count + to]
                    + edge.response_bytes * self.problem.egress_prices[to * count + source];
                sums.egress += calls * dollars / PRICED_BYTES * HOUR;
            }
        }
        if sums.calls > 0.0 {
            sums.latency_ms /= sums.calls;
        }
        sums
    }
}
