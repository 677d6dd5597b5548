//! Output of `fairmesh traffic` about the optimizer.

use fairmesh_console::output::{self, ago, decimal};
use fairmesh_model::Region;
use fairmesh_wire::v1::{self, traffic::Planner};
use serde_json::{Value, json};

use super::{adjustments, status::class};

/// Warns about a program that does not propagate trace context.
pub(super) fn warn_of_missing_context(missing: &v1::MissingTraceContext) {
    let (service, percent) = (&missing.service, missing.share * 100.0);
    output::warn(format!(
        "{percent:.0} % of the calls of {service} name no call that they are made for: its programs do not pass on the trace context, \
         and calls behind it are planned hop by hop (see docs/regions-graph.md)"
    ));
}

/// Name of the planner that the policy asks for.
pub(super) fn planner(service: &v1::ServiceTraffic) -> &'static str {
    match service.planner() {
        Planner::Optimizer => "optimizer",
        Planner::Rings | Planner::None => "rings",
    }
}

/// Line that names the planner in use if the policy asks for the optimizer: the optimizer with its plan, or rings
/// with the reason.
pub(super) fn headline(service: &v1::ServiceTraffic) -> String {
    match (&service.optimized, service.why_rings.as_str()) {
        (Some(plan), _) => format!(
            "\noptimizer: plan {}, {} old, at most {:.1} % above the least cost; its model is {} old and off by {:.0} %",
            plan.number,
            ago(plan.planned_ago_ms),
            plan.gap * 100.0,
            ago(plan.model_age_ms),
            plan.model_error * 100.0
        ),
        (None, "") => String::new(),
        (None, why) => format!("\noptimizer: rings plan, since {why}"),
    }
}

/// The plan's expectations for calls to the service, as a table. `None` if the optimizer does not plan the service.
pub(super) fn expected_table(service: &v1::ServiceTraffic, region: Option<&Region>) -> Option<String> {
    let plan = service.optimized.as_ref()?;
    let rows = plan.expected.iter().filter(|row| region.is_none_or(|region| row.from == region.as_str()));
    let row = |row: &v1::ExpectedCalls| {
        vec![
            row.from.clone(),
            class(&row.class),
            decimal(row.calls_per_second, 1),
            format!("{} ms", decimal(row.latency_ms, 1)),
            format!("${}", decimal(row.egress, 2)),
        ]
    };
    let rows: Vec<Vec<String>> = rows.map(row).collect();
    let head = ["CALLERS", "CLASS", "CALLS/S", "EXPECTED TIME", "EGRESS/H"];
    (!rows.is_empty()).then(|| output::table(&head, &rows))
}

/// The plan as JSON.
pub(super) fn item(plan: &v1::OptimizerPlan) -> Value {
    let expected = |row: &v1::ExpectedCalls| {
        json!({
            "from": row.from,
            "class": (!row.class.is_empty()).then_some(&row.class),
            "callsPerSecond": row.calls_per_second,
            "expectedMs": row.latency_ms,
            "egressDollarsPerHour": row.egress,
        })
    };
    json!({
        "plan": plan.number,
        "gap": plan.gap,
        "plannedAgoMs": plan.planned_ago_ms,
        "modelAgeMs": plan.model_age_ms,
        "modelError": plan.model_error,
        "expected": plan.expected.iter().map(expected).collect::<Vec<_>>(),
        "corrections": plan.corrections.iter().map(adjustments::correction_item).collect::<Vec<_>>(),
        "attempts": plan.attempts.iter().map(adjustments::attempt_item).collect::<Vec<_>>(),
    })
}
