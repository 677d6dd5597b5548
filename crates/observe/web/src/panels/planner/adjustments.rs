//! What the optimizer measured against its model, and did about it, like `fairmesh traffic explain`.

use fairmesh_wire::v1::{self, model_correction::Of, plan_attempt::Outcome};
use serde_json::{Value, json};

use crate::{command_queries::coarse, panels::given};

/// Corrections of the model. A correction of a kind that this release does not know has no row.
pub(super) fn corrections(plan: &v1::OptimizerPlan) -> Vec<Value> {
    plan.corrections.iter().filter_map(correction).collect()
}

fn correction(one: &v1::ModelCorrection) -> Option<Value> {
    let (kind, model, measured, error, by) = match one.of.as_ref()? {
        Of::Latency(of) => ("latency", of.predicted_ms, of.measured_ms, Some(of.error_ms), of.added_ms),
        Of::Work(of) => ("work", of.predicted_cores, of.measured_cores, None, of.factor),
    };
    Some(json!({
        "kind": kind,
        "region": one.region,
        "class": given(&one.class),
        "model": model,
        "measured": measured,
        "error": error,
        "by": by,
        "beganAgoMs": coarse(one.began_ago_ms),
        "calls": one.calls.round(),
    }))
}

/// Changes of the plan that were tried out, the newest first.
pub(super) fn attempts(plan: &v1::OptimizerPlan) -> Vec<Value> {
    plan.attempts.iter().map(attempt).collect()
}

fn attempt(one: &v1::PlanAttempt) -> Value {
    json!({
        "callers": one.source,
        "class": given(&one.class),
        "from": one.from,
        "to": one.to,
        "share": one.share,
        "beforeMs": one.before_ms,
        "afterMs": one.after_ms,
        "errorMs": one.error_ms,
        "beganAgoMs": coarse(one.began_ago_ms),
        "outcome": match one.outcome() {
            Outcome::Running => "running",
            Outcome::Kept => "kept",
            Outcome::NotBetter => "notBetter",
            Outcome::Worse => "worse",
            Outcome::TooFull => "tooFull",
            Outcome::Replanned => "replanned",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_have_model_and_measurement_and_attempts_their_outcome() {
        let latency = v1::LatencyCorrection {
            predicted_ms: 31.8,
            measured_ms: 333.0,
            added_ms: 301.2,
            ..v1::LatencyCorrection::default()
        };
        let work = v1::WorkCorrection { predicted_cores: 0.9, measured_cores: 1.44, factor: 1.6 };
        let of = |of| v1::ModelCorrection { region: "eu".into(), of, ..v1::ModelCorrection::default() };
        let kept = v1::PlanAttempt { outcome: Outcome::Kept.into(), ..v1::PlanAttempt::default() };
        let plan = v1::OptimizerPlan {
            corrections: vec![of(Some(Of::Latency(latency))), of(Some(Of::Work(work))), of(None)],
            attempts: vec![kept, v1::PlanAttempt::default()],
            ..v1::OptimizerPlan::default()
        };
        let shown = corrections(&plan);
        assert_eq!(shown.len(), 2, "an unknown kind has no row: {shown:?}");
        assert_eq!((&shown[0]["model"], &shown[0]["by"]), (&json!(31.8), &json!(301.2)));
        assert_eq!((&shown[1]["measured"], &shown[1]["by"]), (&json!(1.44), &json!(1.6)));
        let tried = attempts(&plan);
        assert_eq!((&tried[0]["outcome"], &tried[0]["afterMs"]), (&json!("kept"), &Value::Null));
        assert_eq!(tried[1]["outcome"], "running");
    }
}
