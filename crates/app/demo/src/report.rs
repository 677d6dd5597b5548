//! Final report of the demo, as text and JSON.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::call_stats::{CallStats, Count, Phase};

/// Figures that do not come from the call statistics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// Number of attempts.
    pub attempts: u64,
    /// Share of attempts that reused a connection, from 0 to 1.
    pub reuse: f64,
    /// Duration of the load, in seconds.
    pub seconds: f64,
}

/// The tables as text.
pub(super) fn text(tally: &CallStats, story: &[(Phase, String)], totals: Totals) -> String {
    let mut out = String::new();
    let total = tally.total();
    // Here and below: writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{} calls in {:.0} s ({} attempts), {} failed, {:.2} % of attempts reused a connection\n",
        total.calls,
        totals.seconds,
        totals.attempts,
        total.failed,
        totals.reuse * 100.0
    );
    let _ = writeln!(out, "{}\n\n{}\n\n{}", calls(tally), regions(tally), events(tally, story));
    let _ = writeln!(out, "* of the failed: in flight to the server that died, and not safe to retry\n");
    for ((phase, call, why), count) in tally.failures() {
        let _ = writeln!(out, "failed during {phase}: {count} × {call}: {why}");
    }
    out
}

/// The report as JSON: `{"calls", "failed", "reuse", "events": [{"name", "calls", "failed"}]}` and further figures.
pub(super) fn json(tally: &CallStats, story: &[(Phase, String)], totals: Totals) -> Value {
    let total = tally.total();
    let events: Vec<Value> =
        story.iter().map(|(phase, what)| event(*phase, what, tally.count(*phase))).collect();
    let by_call: Vec<Value> = tally
        .rows()
        .into_iter()
        .map(|(name, row)| {
            json!({
                "name": name, "calls": row.calls, "failed": row.failed,
                "p50Us": row.latency.value_at_quantile(0.5), "p99Us": row.latency.value_at_quantile(0.99),
            })
        })
        .collect();
    json!({
        "calls": total.calls, "failed": total.failed, "attempts": totals.attempts, "reuse": totals.reuse,
        "events": events, "byCall": by_call,
    })
}

fn event(phase: Phase, what: &str, count: Count) -> Value {
    json!({
        "name": phase.name(), "calls": count.calls, "failed": count.failed,
        "failedInFlight": count.in_flight, "what": what,
    })
}

/// The common table style of the demo.
pub(super) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(head.iter().copied());
    table
}

pub(super) fn align_right(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn calls(tally: &CallStats) -> Table {
    let mut table = table(&["call", "calls", "failed", "p50 ms", "p99 ms"]);
    for (name, row) in tally.rows() {
        let quantile = |q| format!("{:.1}", row.latency.value_at_quantile(q) as f64 / 1000.0);
        let cells = [row.calls.to_string(), row.failed.to_string(), quantile(0.5), quantile(0.99)];
        table.add_row(std::iter::once(name.to_owned()).chain(cells));
    }
    align_right(&mut table, 1..5);
    table
}

fn regions(tally: &CallStats) -> Table {
    let mut table = table(&["call", "from", "answered in"]);
    for (name, row) in tally.rows() {
        for place in super::topology::REGIONS {
            let here = row.regions.iter().filter(|((from, _), _)| from == place.name);
            let total: u64 = here.clone().map(|(_, count)| count).sum();
            let share =
                |(to, count): (&str, u64)| format!("{to} {:.0} %", count as f64 * 100.0 / total as f64);
            let shares: Vec<String> = here.map(|((_, to), count)| share((to, *count))).collect();
            table.add_row([name, place.name, &shares.join(", ")]);
        }
    }
    table
}

fn events(tally: &CallStats, story: &[(Phase, String)]) -> Table {
    let mut table = table(&["event", "what happened", "calls", "failed", "in flight*"]);
    for (phase, what) in story {
        let count = tally.count(*phase);
        table.add_row([
            phase.name(),
            what,
            &count.calls.to_string(),
            &count.failed.to_string(),
            &count.in_flight.to_string(),
        ]);
    }
    align_right(&mut table, 2..5);
    table
}
