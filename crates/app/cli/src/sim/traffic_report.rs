//! Shows how calls were shared among regions over time.

use std::fmt::Write as _;

use fairmesh_console::output;
use fairmesh_sim::{Round, TrafficReport};

/// Maximum distance between shown rounds without an event, in seconds.
const QUIET_INTERVAL: f64 = 60.0;
/// Maximum number of reasons shown for one round; JSON has them all.
const MAX_REASONS: usize = 4;

/// The loads and shares of regions over time, with the reasons of each change.
pub(crate) fn traffic(report: &TrafficReport) -> String {
    let mut text = String::new();
    let dropped = report.classes.iter().zip(&report.most_dropped);
    let dropped: Vec<String> = dropped.map(|(class, share)| format!("{class} {}", percent(*share))).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "greatest load {}, at most {} rounds above {}, {} local at the end, dropped at most: {}; {} rounds changed shares, \
         {} were refused",
        percent(report.greatest_load),
        report.longest_above,
        percent(report.threshold),
        percent(report.local_at_end),
        dropped.join(", "),
        report.changed,
        report.refused
    );
    let mut head = vec!["AT".to_owned()];
    head.extend(report.regions.iter().map(|region| format!("{} LOAD/LOCAL", region.to_uppercase())));
    head.extend(["DROPPED".to_owned(), "PLANNED".to_owned()]);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut shown = f64::NEG_INFINITY;
    let mut rows = Vec::new();
    for round in &report.rounds {
        let is_quiet = round.shifts.is_empty() && round.refusal.is_none();
        if !is_quiet || round.at - shown >= QUIET_INTERVAL {
            rows.push(row(round));
            shown = round.at;
        }
    }
    text + &output::table(&head, &rows) + "\n"
}

fn row(round: &Round) -> Vec<String> {
    let regions = round.loads.iter().zip(&round.local);
    let mut row = vec![format!("{:.0} s", round.at)];
    row.extend(regions.map(|(load, local)| format!("{:.0}/{:.0}", load * 100.0, local * 100.0)));
    row.push(round.dropped.iter().map(|share| percent(*share)).collect::<Vec<_>>().join(" "));
    row.push(planned(round));
    row
}

fn planned(round: &Round) -> String {
    if let Some(refusal) = &round.refusal {
        return format!("kept: {refusal}");
    }
    let mut reasons: Vec<String> = round.shifts.iter().take(MAX_REASONS).cloned().collect();
    if round.shifts.len() > MAX_REASONS {
        reasons.push(format!("and {} more", round.shifts.len() - MAX_REASONS));
    }
    reasons.extend(round.keep.map(|keep| format!("drained to {}", percent(keep))));
    reasons.join("\n")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
