//! Applications of several services: reads a file, simulates it with each planner, and prints client latency and cost.

use std::path::Path;

use fairmesh_console::{failure::Failure, output};
use fairmesh_sim::{
    application::{
        EgressFigures, Figures, Measured, MeasuredClass, MeasuredPool, Planner, Report, Scenario, plan,
        play as simulate,
    },
    plot,
};

use super::{Loaded, RunArgs, picture_path, progress, write_file};
use crate::manifests;

/// Seconds per hour.
const HOUR: f64 = 3600.0;
/// Nanoseconds per second.
const NANOS: u64 = 1_000_000_000;

/// The application in a file, and its variants.
pub(super) fn load(file: &Path, args: &RunArgs) -> Result<Vec<Loaded>, Failure> {
    let mut scenario: Scenario = manifests::load_one(file, Scenario::validate)?;
    scenario.play.seed = args.seed.unwrap_or(scenario.play.seed);
    let variants = scenario.variants().into_iter();
    Ok(variants.map(|variant| Loaded::Application(Box::new(variant))).collect())
}

/// Figures as JSON; `of` is the number of scenarios of the command.
pub(super) fn play(
    scenario: &Scenario,
    args: &RunArgs,
    of: usize,
) -> Result<(serde_json::Value, bool), Failure> {
    let mut report = plan(scenario).map_err(Failure::failed)?;
    for planner in Planner::ALL {
        let bar = progress(&format!("{} {}", scenario.name, planner.name()), scenario.play.duration);
        report.measured.push(simulate(scenario, planner, |now| bar.set_position(now.nanos() / NANOS))?);
        bar.finish_and_clear();
    }
    if args.output_args.is_table() {
        output::write(&show(&report))?;
    }
    if let Some(path) = &args.svg {
        let picture = plot::latency_over_time(&report.scenario, &report.measured);
        write_file(&picture_path(path, &scenario.name, of), &picture)?;
    }
    Ok((serde_json::to_value(&report).map_err(Failure::failed)?, false))
}

fn show(report: &Report) -> String {
    let measured = report.measured.iter().map(measured_row).collect::<Vec<_>>();
    let head = ["MEASURED", "MEAN MS", "PREDICTED", "P50", "P99", "FAILED", "EGRESS $/H", "GREATEST LOAD"];
    let mut text = format!("{}\n\n{}", report.scenario, output::table(&head, &measured));
    let names: Vec<String> = report.measured.iter().map(|one| one.planner.to_uppercase()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let classes = |one: &Measured| -> Vec<(String, String)> {
        let cell = |class: &MeasuredClass| (class.to.clone(), format!("{:.1}", class.mean_ms));
        one.classes.iter().map(cell).collect()
    };
    let pairs = |one: &Measured| -> Vec<(String, String)> {
        let pair = |pair: &EgressFigures| {
            (format!("{} → {}", pair.from, pair.to), format!("{:.2}", pair.dollars * HOUR))
        };
        one.pairs.iter().map(pair).collect()
    };
    let pools = |one: &Measured| -> Vec<(String, String)> {
        let pool = |pool: &MeasuredPool| {
            (format!("{} {}", pool.service, pool.region), format!("{:.0} %", pool.load * 100.0))
        };
        one.pools.iter().map(pool).collect()
    };
    text += &compare("MS TO", &names, &report.measured, classes);
    text += &compare("EGRESS $/H", &names, &report.measured, pairs);
    text += &compare("LOAD OF", &names, &report.measured, pools);
    let predicted = report.planners.iter().map(summary).collect::<Vec<_>>();
    let head = ["IN A STEADY STATE", "MEAN MS", "EGRESS $/H", "GREATEST LOAD", "GAP"];
    text + &format!("\n{}\n", output::table(&head, &predicted))
}

fn measured_row(one: &Measured) -> Vec<String> {
    let failed = (one.failed + one.dropped) as f64 / one.calls.max(1) as f64;
    vec![
        one.planner.clone(),
        format!("{:.1}", one.mean_ms),
        format!("{:.1}", one.predicted_ms),
        format!("{:.1}", one.p50_ms),
        format!("{:.1}", one.p99_ms),
        format!("{:.2} %", failed * 100.0),
        format!("{:.2}", one.egress * HOUR),
        format!("{:.0} %", one.greatest_load * 100.0),
    ]
}

fn summary(one: &Figures) -> Vec<String> {
    vec![
        one.planner.clone(),
        format!("{:.1}", one.mean_ms),
        format!("{:.2}", one.egress * HOUR),
        format!("{:.0} %", one.greatest_load * 100.0),
        one.gap.map_or_else(|| "-".to_owned(), |gap| format!("{:.2} %", gap * 100.0)),
    ]
}

/// A table with one row per figure that any planner has, and one column per planner.
fn compare(
    what: &str,
    names: &[&str],
    measured: &[Measured],
    cells: impl Fn(&Measured) -> Vec<(String, String)>,
) -> String {
    let columns: Vec<Vec<(String, String)>> = measured.iter().map(cells).collect();
    let mut keys: Vec<&String> = Vec::new();
    for (key, _) in columns.iter().flatten() {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    if keys.is_empty() {
        return String::new();
    }
    let cell = |column: &Vec<(String, String)>, key: &String| {
        column.iter().find(|(other, _)| other == key).map_or_else(|| "-".to_owned(), |(_, cell)| cell.clone())
    };
    let row = |key: &&String| {
        let cells = columns.iter().map(|column| cell(column, key));
        std::iter::once((*key).clone()).chain(cells).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
    let head: Vec<&str> = std::iter::once(what).chain(names.iter().copied()).collect();
    format!("\n{}", output::table(&head, &rows))
}
