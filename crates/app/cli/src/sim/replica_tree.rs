//! Simulated trees of replicas: reads a file, plays it, and prints its figures as tables.

use std::{fmt::Write as _, path::Path, time::Duration};

use fairmesh_console::{failure::Failure, output};
use fairmesh_sim::{
    plot,
    replica_tree::{Layer, Propagation, Report, Scenario, run},
};
use tokio::time::Instant;

use super::{Loaded, RunArgs, picture_path, progress, write_file};
use crate::manifests;

/// Propagation delay to ServiceRouter's clients, in milliseconds (ServiceRouter §4.1).
const PUBLISHED: &str = "400 / 900 / 1300";

pub(super) fn load(file: &Path, args: &RunArgs) -> Result<Loaded, Failure> {
    let mut scenario: Scenario = manifests::load_one(file, Scenario::validate)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    scenario.scale(args.factor.unwrap_or(1.0));
    Ok(Loaded::Tree(Box::new(scenario)))
}

/// Simulates a tree. Returns figures as JSON, and whether expectations are missed.
pub(super) fn play(scenario: &Scenario, args: &RunArgs) -> Result<(serde_json::Value, bool), Failure> {
    let bar = progress(&scenario.name, scenario.duration);
    let began = Instant::now();
    let report = run(scenario, |now| bar.set_position(now.nanos() / 1_000_000_000))?;
    bar.finish_and_clear();
    if args.output_args.is_table() {
        output::write(&show(&report, began.elapsed()))?;
    }
    if let Some(path) = &args.svg {
        write_file(&picture_path(path, &scenario.name, args.files.len()), &plot::propagation(&report))?;
    }
    let missed = !report.missed.is_empty();
    Ok((serde_json::to_value(&report).map_err(Failure::failed)?, missed))
}

fn show(report: &Report, took: Duration) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: {} routers ({} simulated), {} services, {} servers, {} records of {:.0} MB; {:.0} s simulated, {:.1} s real, seed {}",
        report.scenario,
        report.routers,
        report.routers_simulated,
        report.services,
        report.servers,
        report.records,
        report.megabytes,
        report.seconds,
        took.as_secs_f64(),
        report.seed
    );
    let writes = &report.writes;
    let _ = writeln!(
        text,
        "written: {} batches, {} records, {:.1} MB a second; {} batches refused\n",
        writes.batches, writes.records, writes.megabytes_per_second, writes.refused
    );
    text + &tables(report) + &rest(report) + "\n"
}

fn tables(report: &Report) -> String {
    let mut text = String::new();
    let head = [
        "LAYER",
        "PROCESSES",
        "IN MB/S",
        "PEAK",
        "OUT MB/S",
        "PEAK",
        "ALL GB/S",
        "MESSAGES/S",
        "CPU",
        "PEAK",
    ];
    text += &output::table(&head, &report.layers.iter().map(traffic).collect::<Vec<_>>());
    text.push('\n');
    let head = [
        "LAYER",
        "TABLE MB",
        "WATCHERS MB",
        "P50 MS",
        "P95",
        "P99",
        "MAX",
        "P50 LATER",
        "P99 LATER",
        "MAX LATER",
    ];
    text += &output::table(&head, &report.layers.iter().map(times).collect::<Vec<_>>());
    text
}

fn rest(report: &Report) -> String {
    let mut text = String::new();
    if let Some(end) = report.layers.last().and_then(|layer| layer.propagation) {
        let Propagation { p50_ms, p95_ms, p99_ms, .. } = end;
        let _ = writeln!(
            text,
            "\nto programs {p50_ms:.1} / {p95_ms:.1} / {p99_ms:.1} ms at p50 / p95 / p99; ServiceRouter {PUBLISHED}"
        );
    }
    if let Some(acknowledged) = report.acknowledged {
        let Propagation { p50_ms, p99_ms, .. } = acknowledged;
        let _ = writeln!(
            text,
            "acknowledged everywhere, as known at the root, after {p50_ms:.0} ms at p50, {p99_ms:.0} at p99"
        );
    }
    if !report.recoveries.is_empty() {
        let head = ["EVENT", "LOST CONNECTIONS", "ALL BACK AFTER", "SNAPSHOTS", "OF GB"];
        text += &format!("\n{}", output::table(&head, &recoveries(report)));
    }
    if let Some(different) = report.different {
        let _ = writeln!(text, "\n{different} records differ from the root's at the end");
    }
    for missed in &report.missed {
        let _ = writeln!(text, "not as expected: {missed}");
    }
    text
}

fn traffic(layer: &Layer) -> Vec<String> {
    let one = |value: f64| format!("{value:.2}");
    vec![
        layer.name.clone(),
        layer.processes.to_string(),
        one(layer.received.mean),
        one(layer.received.peak),
        one(layer.sent.mean),
        one(layer.sent.peak),
        one(layer.all_sent / 1e3),
        format!("{:.0}", layer.messages),
        format!("{:.1} %", layer.busy * 100.0),
        format!("{:.1} %", layer.busiest * 100.0),
    ]
}

fn times(layer: &Layer) -> Vec<String> {
    let of = |propagation: &Option<Propagation>, value: fn(&Propagation) -> f64| {
        propagation.as_ref().map_or_else(|| "-".into(), |propagation| format!("{:.1}", value(propagation)))
    };
    let (calm, later) = (&layer.propagation, &layer.propagation_later);
    vec![
        layer.name.clone(),
        format!("{:.1}", layer.table_megabytes),
        format!("{:.1}", layer.watchers_megabytes),
        of(calm, |p| p.p50_ms),
        of(calm, |p| p.p95_ms),
        of(calm, |p| p.p99_ms),
        of(calm, |p| p.max_ms),
        of(later, |p| p.p50_ms),
        of(later, |p| p.p99_ms),
        of(later, |p| p.max_ms),
    ]
}

fn recoveries(report: &Report) -> Vec<Vec<String>> {
    let row = |one: &fairmesh_sim::replica_tree::Recovery| {
        let back = match one.seconds {
            _ if one.lost == 0 => "-".into(),
            Some(seconds) => format!("{seconds:.1} s"),
            None => "never".into(),
        };
        let gigabytes = format!("{:.1}", one.snapshot_megabytes / 1e3);
        vec![one.event.clone(), one.lost.to_string(), back, one.snapshots.to_string(), gigabytes]
    };
    report.recoveries.iter().map(row).collect()
}
