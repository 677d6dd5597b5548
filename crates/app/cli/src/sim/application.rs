//! Applications of several services: reads a file, plans it by each planner, and prints what each is predicted to cause.

use std::path::Path;

use fairmesh_console::{failure::Failure, output};
use fairmesh_sim::application::{EgressFigures, Figures, PoolFigures, Report, Scenario, plan};

use super::{Loaded, RunArgs};
use crate::manifests;

/// Seconds of an hour.
const HOUR: f64 = 3600.0;

pub(super) fn load(file: &Path) -> Result<Loaded, Failure> {
    Ok(Loaded::Application(Box::new(manifests::load_one(file, Scenario::validate)?)))
}

/// Figures as JSON.
pub(super) fn play(scenario: &Scenario, args: &RunArgs) -> Result<(serde_json::Value, bool), Failure> {
    let report = plan(scenario).map_err(Failure::failed)?;
    if args.output_args.is_table() {
        output::write(&show(&report))?;
    }
    if args.svg.is_some() {
        output::note(format!(
            "{} is an application and is not drawn; --report has its figures",
            scenario.name
        ));
    }
    Ok((serde_json::to_value(&report).map_err(Failure::failed)?, false))
}

fn show(report: &Report) -> String {
    let summary = report.planners.iter().map(summary).collect::<Vec<_>>();
    let head = ["PLANNER", "MEAN MS", "EGRESS $/H", "GREATEST LOAD", "GAP"];
    let mut text = format!("{}\n\n{}", report.scenario, output::table(&head, &summary));
    let names: Vec<String> = report.planners.iter().map(|one| one.planner.to_uppercase()).collect();
    let classes = |one: &Figures| -> Vec<(String, String)> {
        let cell = |ms: f64, admitted: f64| match admitted < 1.0 {
            true => format!("{ms:.1} of {:.0} %", admitted * 100.0),
            false => format!("{ms:.1}"),
        };
        one.classes.iter().map(|class| (class.to.clone(), cell(class.mean_ms, class.admitted))).collect()
    };
    let pairs = |one: &Figures| -> Vec<(String, String)> {
        let pair = |pair: &EgressFigures| {
            (format!("{} → {}", pair.from, pair.to), format!("{:.2}", pair.dollars * HOUR))
        };
        one.pairs.iter().map(pair).collect()
    };
    let pools = |one: &Figures| -> Vec<(String, String)> {
        let pool = |pool: &PoolFigures| {
            (format!("{} {}", pool.service, pool.region), format!("{:.0} %", pool.load * 100.0))
        };
        one.pools.iter().map(pool).collect()
    };
    text += &compare("MS TO", &names, report, classes);
    text += &compare("EGRESS $/H", &names, report, pairs);
    text += &compare("LOAD OF", &names, report, pools);
    text + "\n"
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

/// A table with a row for each thing that any planner has figures of, and a column for each planner.
fn compare(
    what: &str,
    names: &[String],
    report: &Report,
    cells: impl Fn(&Figures) -> Vec<(String, String)>,
) -> String {
    let columns: Vec<Vec<(String, String)>> = report.planners.iter().map(cells).collect();
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
    let head: Vec<&str> = std::iter::once(what).chain(names.iter().map(String::as_str)).collect();
    format!("\n{}", output::table(&head, &rows))
}
