//! What the optimizer says of services, for operators.

use fairmesh_model::TrafficPlanner;
use fairmesh_planner::{ServiceFacts, ServicePlan, ServicePlanner, Verdict};
use fairmesh_wire::v1::{self, traffic::Planner};

use super::{TrafficPlanning, adjustments};

impl TrafficPlanning {
    /// Services whose programs pass no trace context on.
    pub(super) fn without_trace_context(&self) -> Vec<v1::MissingTraceContext> {
        let plans = self.plans.read();
        let missing = plans.without_trace_context.iter();
        missing
            .map(|(service, share)| v1::MissingTraceContext { service: service.to_string(), share: *share })
            .collect()
    }
}

/// The planner that the policy asks for.
pub(super) fn planner(facts: &ServiceFacts) -> Planner {
    match facts.traffic.planner {
        None => Planner::None,
        Some(TrafficPlanner::Rings) => Planner::Rings,
        Some(TrafficPlanner::Optimizer) => Planner::Optimizer,
    }
}

/// The plan of the optimizer, if it plans the service.
pub(super) fn optimized(planner: &ServicePlanner, now_ms: u64) -> Option<v1::OptimizerPlan> {
    let Some(Verdict::Optimized(plan)) = &planner.verdict else { return None };
    let ago = |at_ms: u64| now_ms.saturating_sub(at_ms);
    Some(v1::OptimizerPlan {
        number: plan.number,
        gap: plan.gap,
        planned_ago_ms: ago(plan.planned_at_ms),
        model_age_ms: ago(plan.model_at_ms),
        model_error: plan.model_error,
        expected: expected(plan),
        corrections: adjustments::corrections(&plan.adjustments, now_ms),
        attempts: adjustments::attempts(&plan.adjustments, now_ms),
    })
}

/// Why rings plan a service that asks for the optimizer; empty if they do not.
pub(super) fn why_rings(planner: &ServicePlanner) -> String {
    match &planner.verdict {
        Some(Verdict::Rings(fallback)) => fallback.text.clone(),
        Some(Verdict::Optimized(_)) | None => String::new(),
    }
}

/// Regions and classes with calls.
pub(super) fn expected(plan: &ServicePlan) -> Vec<v1::ExpectedCalls> {
    let classes = || std::iter::once(String::new()).chain(plan.classes.iter().map(ToString::to_string));
    let of_region = plan.regions.iter().zip(&plan.expected);
    let rows = of_region
        .flat_map(|(from, row)| classes().zip(row).map(move |(class, expected)| (from, class, expected)));
    let row = |(from, class, expected): (&fairmesh_model::Region, String, &fairmesh_planner::Expectation)| {
        v1::ExpectedCalls {
            from: from.to_string(),
            class,
            calls_per_second: expected.calls,
            latency_ms: expected.latency_ms,
            egress: expected.egress,
        }
    };
    rows.map(row).filter(|row| row.calls_per_second > 0.0).collect()
}
