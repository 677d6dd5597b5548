//! What the optimizer measured against its model, and did about it: corrections of the model, and changes that it tried out.

use fairmesh_console::output::{self, ago, decimal};
use fairmesh_model::Region;
use fairmesh_wire::v1::{
    LatencyCorrection, ModelCorrection, OptimizerPlan, PlanAttempt, WorkCorrection, model_correction::Of,
    plan_attempt::Outcome,
};
use serde_json::{Value, json};

use super::status::class;

/// Tables of corrections and of attempts; `None` without any. A region is that of the servers of corrections, and of the callers of attempts.
pub(super) fn tables(plan: &OptimizerPlan, region: Option<&Region>) -> Option<String> {
    let is_wanted = |name: &str| region.is_none_or(|region| region.as_str() == name);
    let corrections = plan.corrections.iter().filter(|one| is_wanted(&one.region)).filter_map(correction_row);
    let attempts = plan.attempts.iter().filter(|one| is_wanted(&one.source)).map(attempt_row);
    let head = ["CORRECTED", "REGION", "CLASS", "BY", "MODEL", "MEASURED", "SINCE", "CALLS"];
    let corrections = table(&head, corrections.collect());
    let head = ["TRIED", "CALLERS", "CLASS", "MOVED", "BEFORE", "EFFECT", "OUTCOME"];
    let attempts = table(&head, attempts.collect());
    let tables: Vec<String> = corrections.into_iter().chain(attempts).collect();
    (!tables.is_empty()).then(|| tables.join("\n"))
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> Option<String> {
    (!rows.is_empty()).then(|| output::table(head, &rows))
}

/// `None` for a correction of a kind that this release does not know.
fn correction_row(one: &ModelCorrection) -> Option<Vec<String>> {
    let (what, of_class, by, model, measured) = match one.of.as_ref()? {
        Of::Latency(LatencyCorrection { predicted_ms, measured_ms, error_ms, added_ms, .. }) => (
            "latency",
            class(&one.class),
            format!("{added_ms:+.1} ms"),
            milliseconds(*predicted_ms),
            format!("{} ± {}", milliseconds(*measured_ms), decimal(*error_ms, 1)),
        ),
        Of::Work(WorkCorrection { predicted_cores, measured_cores, factor }) => (
            "work",
            "all".to_owned(),
            format!("× {factor:.2}"),
            format!("{} cores", decimal(*predicted_cores, 2)),
            format!("{} cores", decimal(*measured_cores, 2)),
        ),
    };
    let (since, calls) = (ago(one.began_ago_ms), decimal(one.calls, 0));
    Some(vec![what.to_owned(), one.region.clone(), of_class, by, model, measured, since, calls])
}

fn attempt_row(one: &PlanAttempt) -> Vec<String> {
    let effect = match one.after_ms {
        Some(after_ms) => format!("{:+.1} ms ± {}", after_ms - one.before_ms, decimal(one.error_ms, 1)),
        None => "-".to_owned(),
    };
    vec![
        format!("{} ago", ago(one.began_ago_ms)),
        one.source.clone(),
        class(&one.class),
        format!("{} % from {} to {}", decimal(one.share * 100.0, 0), one.from, one.to),
        milliseconds(one.before_ms),
        effect,
        outcome(one).1.to_owned(),
    ]
}

fn milliseconds(ms: f64) -> String {
    format!("{} ms", decimal(ms, 1))
}

/// In one word, and for people.
fn outcome(one: &PlanAttempt) -> (&'static str, &'static str) {
    match one.outcome() {
        Outcome::Running => ("running", "being measured"),
        Outcome::Kept => ("kept", "kept: calls are faster"),
        Outcome::NotBetter => ("notBetter", "rolled back: calls are not clearly faster"),
        Outcome::Worse => ("worse", "rolled back: calls are slower"),
        Outcome::TooFull => ("tooFull", "rolled back: a pool was too full"),
        Outcome::Replanned => ("replanned", "ended by another plan"),
    }
}

/// A correction as JSON.
pub(super) fn correction_item(one: &ModelCorrection) -> Value {
    let mut item = json!({
        "region": one.region,
        "class": (!one.class.is_empty()).then_some(&one.class),
        "beganAgoMs": one.began_ago_ms,
        "calls": one.calls,
    });
    match &one.of {
        Some(Of::Latency(latency)) => {
            item["latency"] = json!({
                "predictedMs": latency.predicted_ms,
                "measuredMs": latency.measured_ms,
                "errorMs": latency.error_ms,
                "addedMs": latency.added_ms,
                "measuredAgoMs": latency.measured_ago_ms,
            });
        }
        Some(Of::Work(work)) => {
            item["work"] = json!({
                "predictedCores": work.predicted_cores,
                "measuredCores": work.measured_cores,
                "factor": work.factor,
            });
        }
        None => {}
    }
    item
}

/// An attempt as JSON.
pub(super) fn attempt_item(one: &PlanAttempt) -> Value {
    json!({
        "callers": one.source,
        "class": (!one.class.is_empty()).then_some(&one.class),
        "from": one.from,
        "to": one.to,
        "share": one.share,
        "beforeMs": one.before_ms,
        "afterMs": one.after_ms,
        "errorMs": one.error_ms,
        "beganAgoMs": one.began_ago_ms,
        "outcome": outcome(one).0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> OptimizerPlan {
        let latency = LatencyCorrection {
            predicted_ms: 31.8,
            measured_ms: 333.0,
            error_ms: 4.06,
            added_ms: 301.2,
            measured_ago_ms: 2_000,
        };
        let work = WorkCorrection { predicted_cores: 0.9, measured_cores: 1.44, factor: 1.6 };
        let correction = |class: &str, of| ModelCorrection {
            region: "eu".into(),
            class: class.into(),
            began_ago_ms: 35_000,
            calls: 2_100.0,
            of: Some(of),
        };
        let attempt = PlanAttempt {
            source: "eu".into(),
            from: "eu".into(),
            to: "us".into(),
            share: 0.1,
            before_ms: 42.1,
            after_ms: Some(39.0),
            error_ms: 0.4,
            began_ago_ms: 150_000,
            ..PlanAttempt::default()
        };
        let running = PlanAttempt { source: "us".into(), after_ms: None, ..attempt.clone() };
        let kept = PlanAttempt { outcome: Outcome::Kept.into(), ..attempt };
        OptimizerPlan {
            corrections: vec![correction("bulk", Of::Latency(latency)), correction("", Of::Work(work))],
            attempts: vec![running, kept],
            ..OptimizerPlan::default()
        }
    }

    #[test]
    fn tables_say_what_is_corrected_and_how_attempts_ended() {
        let shown = tables(&plan(), None).unwrap();
        let squeezed: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(squeezed[1], "latency eu bulk +301.2 ms 31.8 ms 333.0 ms ± 4.1 35 s 2100");
        assert_eq!(squeezed[2], "work eu all × 1.60 0.90 cores 1.44 cores 35 s 2100");
        assert_eq!(squeezed[5], "2 min ago us - 10 % from eu to us 42.1 ms - being measured");
        assert_eq!(
            squeezed[6],
            "2 min ago eu - 10 % from eu to us 42.1 ms -3.1 ms ± 0.4 kept: calls are faster"
        );
        let us = tables(&plan(), Some(&Region::new("us").unwrap())).unwrap();
        assert!(!us.contains("CORRECTED") && !us.contains("kept"), "{us}");
        assert_eq!(tables(&OptimizerPlan::default(), None), None);
    }

    #[test]
    fn json_has_numbers_and_outcomes_in_one_word() {
        let plan = plan();
        let items: Vec<Value> = plan.corrections.iter().map(correction_item).collect();
        assert_eq!((&items[0]["latency"]["addedMs"], &items[0]["class"]), (&json!(301.2), &json!("bulk")));
        assert_eq!((&items[1]["work"]["factor"], &items[1]["class"]), (&json!(1.6), &Value::Null));
        let items: Vec<Value> = plan.attempts.iter().map(attempt_item).collect();
        assert_eq!((&items[0]["outcome"], &items[0]["afterMs"]), (&json!("running"), &Value::Null));
        assert_eq!((&items[1]["outcome"], &items[1]["afterMs"]), (&json!("kept"), &json!(39.0)));
    }
}
