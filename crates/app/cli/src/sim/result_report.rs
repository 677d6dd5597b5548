//! Formats the figures of a simulation.

use std::{fmt::Write as _, time::Duration};

use fairmesh_console::output;
use fairmesh_sim::{Latency, Report, Scenario};

/// The figures as a table, and the missed expectations.
pub(crate) fn report(scenario: &Scenario, report: &Report, took: Duration) -> String {
    let rate = report.requests as f64 / took.as_secs_f64().max(1e-9) / 1e6;
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: {} requests in {} simulated, {:.1} s real ({rate:.2} M requests a second), seed {}",
        report.scenario,
        report.requests,
        scenario.duration,
        took.as_secs_f64(),
        report.seed
    );
    text += &output::table(&["FIGURE", "VALUE", "IS"], &rows(report));
    for missed in &report.missed {
        let _ = writeln!(text, "not as expected: {missed}");
    }
    text + "\n"
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![
        row(
            "cv",
            optional(report.cv),
            "variation of utilisation between servers with 1,000 requests a minute",
        ),
        row("mean", percent(report.mean_utilisation), "mean utilisation"),
        row("p99", percent(report.p99_utilisation), "utilisation of the server at the 99th percentile"),
        row(
            "wasted",
            format!("{:.1}", report.wasted_cores),
            "cores idle because of that one: (p99 - mean) x cores",
        ),
        row("imbalance", format!("{:.3}", report.imbalance), "1 + wasted / used cores"),
        row("failed", percent(report.failed), &endings(report)),
    ];
    rows.extend(asked_row(report));
    rows.extend(report.latency.map(|latency| latency_row("latency", &latency, "")));
    let after = " after the first event";
    rows.extend(report.latency_after_event.map(|latency| latency_row("latency after", &latency, after)));
    if let Some(worst) = report.worst_second {
        let about = format!("of its fair share, server {} in second {}", worst.server, worst.second);
        rows.push(row("worst second", format!("{:.2} x", worst.times), &about));
    }
    rows.extend(recovery_row(report));
    for group in report.groups.iter().filter(|group| group.share.is_some()) {
        let share = group.share.unwrap_or_default();
        rows.push(row(
            &format!("share {}", group.name),
            format!("{share:.2} x"),
            "of its fair share since the first event",
        ));
    }
    rows
}

fn asked_row(report: &Report) -> Option<Vec<String>> {
    let of = report.estimates;
    let all = of.cached + of.polled + of.random;
    let share = |count: u64| percent(count as f64 / all.max(1) as f64);
    let about = format!(
        "load polls per call; estimates {} cached, {} polled, {} random",
        share(of.cached),
        share(of.polled),
        share(of.random)
    );
    (all > 0).then(|| row("asked", format!("{:.3}", report.polls_per_call()), &about))
}

fn recovery_row(report: &Report) -> Option<Vec<String>> {
    let took = report.recoveries.iter().map(|one| one.took.unwrap_or(f64::INFINITY)).reduce(f64::max)?;
    let value = if took.is_finite() { format!("{took:.0} s") } else { "never".into() };
    let about = format!("until the slowest of {} servers had 4/5 of its share", report.recoveries.len());
    Some(row("recovery", value, &about))
}

fn endings(report: &Report) -> String {
    let endings = report.outcomes;
    let kinds = [
        ("errors", endings.errors),
        ("busy", endings.busy),
        ("broken", endings.broken),
        ("unreachable", endings.unreachable),
        ("late", endings.timed_out),
        ("nowhere to go", endings.unroutable),
        ("dropped by a table", endings.dropped),
    ];
    let told: Vec<String> =
        kinds.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
    format!("of {} calls: {}", endings.calls, if told.is_empty() { "none".into() } else { told.join(", ") })
}

fn latency_row(name: &str, latency: &Latency, when: &str) -> Vec<String> {
    let about = format!("ms at p99; median {:.1}, p99.9 {:.1}{when}", latency.p50, latency.p999);
    row(name, format!("{:.1}", latency.p99), &about)
}

fn row(name: &str, value: String, about: &str) -> Vec<String> {
    vec![name.to_owned(), value, about.to_owned()]
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.4}"))
}
