//! `fairmesh control status`.

use std::time::Duration;

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{Listing, ago},
};
use fairmesh_wire::v1::{
    ControllerStatus, ListControllersRequest,
    controller_status::{Refusal, Round, State},
};
use serde_json::{Value, json};

/// Arguments of `fairmesh control status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Columns of the tables below the list of controllers.
const REFUSED: &[&str] = &["CONTROLLER", "LEAVES", "SINCE"];
const PROBLEMS: &[&str] = &["CONTROLLER", "PROBLEM OF THE LAST ROUND"];
const SHADOWED: &[&str] = &["CONTROLLER", "WOULD"];

/// Prints the controllers of the control plane.
pub(super) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let listed = connection.admin().list_controllers(ListControllersRequest {}).await?.into_inner();
    let head =
        ["NAME", "STATE", "LAST", "TOOK", "WRITES", "EFFECTS", "REFUSED", "CHANGED", "NEXT", "FAILURES"];
    let mut listing = Listing::new(&head);
    let (mut refused, mut problems, mut shadowed) = (Vec::new(), Vec::new(), Vec::new());
    for status in &listed.controllers {
        listing.add(row(status), item(status));
        let Some(last) = &status.last else { continue };
        let name = || status.name.clone();
        let of_refusal = |one: &Refusal| vec![name(), one.subject.clone(), one.reason.clone()];
        refused.extend(last.refused.iter().map(of_refusal));
        if !last.problem.is_empty() {
            problems.push(vec![name(), last.problem.clone()]);
        }
        if status.shadow {
            shadowed.extend(last.decided.iter().map(|decided| vec![name(), decided.clone()]));
        }
    }
    listing.further = vec![(PROBLEMS, problems), (REFUSED, refused), (SHADOWED, shadowed)];
    listing.print(args.output.format())
}

fn state(status: &ControllerStatus) -> &'static str {
    match status.state() {
        State::Waiting => "waiting",
        State::Running => "running",
        State::BackingOff => "backing off",
        State::WithoutLease => "without lease",
    }
}

fn row(status: &ControllerStatus) -> Vec<String> {
    let last = status.last.as_ref();
    let of_last = |show: fn(&Round) -> String| last.map_or_else(|| "-".to_owned(), show);
    let shadow = if status.shadow { ", shadow" } else { "" };
    vec![
        status.name.clone(),
        format!("{}{shadow}", state(status)),
        of_last(|round| ago(round.ago_ms)),
        of_last(|round| took(round.took_us)),
        of_last(|round| round.writes.to_string()),
        of_last(|round| round.effects.to_string()),
        of_last(|round| round.refused_total.to_string()),
        status.changed_ago_ms.map_or_else(|| "never".into(), ago),
        status.next_in_ms.map_or_else(|| "on change".into(), ago),
        status.failures.to_string(),
    ]
}

fn took(micros: u64) -> String {
    let time = Duration::from_micros(micros);
    match time.as_secs() {
        0 => format!("{:.1} ms", time.as_secs_f64() * 1_000.0),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn item(status: &ControllerStatus) -> Value {
    json!({
        "name": status.name,
        "state": state(status),
        "shadow": status.shadow,
        "lastRound": status.last.as_ref().map(round_item),
        "changedAgoMs": status.changed_ago_ms,
        "nextInMs": status.next_in_ms,
        "consecutiveFailures": status.failures,
        "rounds": status.rounds,
        "writes": status.writes,
    })
}

fn round_item(round: &Round) -> Value {
    let refusal = |one: &Refusal| json!({ "subject": one.subject, "reason": one.reason });
    json!({
        "agoMs": round.ago_ms,
        "tookUs": round.took_us,
        "writes": round.writes,
        "effects": round.effects,
        "decided": round.decided,
        "decidedTotal": round.decided_total,
        "refused": round.refused.iter().map(refusal).collect::<Vec<_>>(),
        "refusedTotal": round.refused_total,
        "problem": (!round.problem.is_empty()).then_some(&round.problem),
    })
}
