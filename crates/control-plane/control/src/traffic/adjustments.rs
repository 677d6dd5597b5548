//! What the optimizer measures against its model, and does about it, for operators.

use fairmesh_model::Label;
use fairmesh_planner::{Adjustments, Attempt, LatencyCorrection, Outcome, WorkCorrection};
use fairmesh_wire::v1::{self, model_correction::Of, plan_attempt};

/// Corrections of latency and of work.
pub(super) fn corrections(adjustments: &Adjustments, now_ms: u64) -> Vec<v1::ModelCorrection> {
    let ago = |at_ms: u64| now_ms.saturating_sub(at_ms);
    let latency = |one: &LatencyCorrection| v1::ModelCorrection {
        region: one.region.to_string(),
        class: name(one.class.as_ref()),
        began_ago_ms: ago(one.since_ms),
        calls: one.calls,
        of: Some(Of::Latency(v1::LatencyCorrection {
            predicted_ms: one.predicted_ms,
            measured_ms: one.measured_ms,
            error_ms: one.error_ms,
            added_ms: one.ms,
            measured_ago_ms: ago(one.at_ms),
        })),
    };
    let work = |one: &WorkCorrection| v1::ModelCorrection {
        region: one.region.to_string(),
        class: String::new(),
        began_ago_ms: ago(one.at_ms),
        calls: one.calls,
        of: Some(Of::Work(v1::WorkCorrection {
            predicted_cores: one.predicted_cores,
            measured_cores: one.measured_cores,
            factor: one.factor,
        })),
    };
    adjustments.latency.iter().map(latency).chain(adjustments.work.iter().rev().map(work)).collect()
}

/// Attempts, the newest first.
pub(super) fn attempts(adjustments: &Adjustments, now_ms: u64) -> Vec<v1::PlanAttempt> {
    let attempt = |one: &Attempt| v1::PlanAttempt {
        source: one.source.to_string(),
        class: name(one.class.as_ref()),
        from: one.from.to_string(),
        to: one.to.to_string(),
        share: one.share,
        before_ms: one.before_ms,
        after_ms: one.after_ms,
        error_ms: one.error_ms,
        began_ago_ms: now_ms.saturating_sub(one.began_ms),
        outcome: outcome(one.outcome).into(),
    };
    adjustments.attempts.iter().rev().map(attempt).collect()
}

fn outcome(outcome: Outcome) -> plan_attempt::Outcome {
    match outcome {
        Outcome::Running => plan_attempt::Outcome::Running,
        Outcome::Kept => plan_attempt::Outcome::Kept,
        Outcome::NotBetter => plan_attempt::Outcome::NotBetter,
        Outcome::Worse => plan_attempt::Outcome::Worse,
        Outcome::HeadRoom => plan_attempt::Outcome::TooFull,
        Outcome::Replanned => plan_attempt::Outcome::Replanned,
    }
}

fn name(class: Option<&Label>) -> String {
    class.map(ToString::to_string).unwrap_or_default()
}
