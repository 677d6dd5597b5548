//! Grids of constants: every combination on many fleets, against one baseline.

use std::{collections::BTreeMap, fmt::Write as _};

use fairmesh_model::{Invalid, spec::BalancingSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Report,
    contest::{Contender, Summary, compare},
    fleets::{Mix, fleet},
    plot::Plot,
};

/// What to sweep over.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Grid {
    /// What it is called.
    pub name: String,
    /// Which generated fleets.
    pub fleets: Fleets,
    /// What every combination is compared with.
    pub baseline: Contender,
    /// What all combinations have in common: fields of `balancing`.
    #[serde(default)]
    pub base: Map<String, Value>,
    /// The values of each field of `balancing`, one within another as `outer.inner`.
    pub grid: BTreeMap<String, Vec<Value>>,
}

/// A range of seeds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fleets {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub count: u64,
}

/// What a sweep found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Swept {
    /// The grid.
    pub name: String,
    /// The fleets.
    pub fleets: Fleets,
    /// Every combination against the baseline, which comes first.
    pub summaries: Vec<Summary>,
    /// By fleet, what the baseline and every combination came to.
    #[serde(skip)]
    pub found: Vec<Vec<Report>>,
}

impl Grid {
    /// Checks that every combination is a policy.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.contenders().map(drop)
    }

    /// The baseline and every combination.
    pub fn contenders(&self) -> Result<Vec<Contender>, Invalid> {
        let mut points = vec![(String::new(), self.base.clone())];
        for (field, values) in &self.grid {
            let with = |(name, base): &(String, Map<String, Value>), value: &Value| {
                let mut fields = base.clone();
                set(&mut fields, field, value.clone());
                (format!("{name} {field}={value}").trim_start().to_owned(), fields)
            };
            points = points.iter().flat_map(|point| values.iter().map(|value| with(point, value))).collect();
        }
        let mut contenders = vec![self.baseline.clone()];
        for (name, fields) in points {
            let balancing: BalancingSpec =
                serde_json::from_value(Value::Object(fields)).map_err(|error| {
                    Invalid::new("grid", format!("{name}: {error}"), "name fields of 'balancing'")
                })?;
            contenders.push(Contender { name, balancing, ..Contender::default() });
        }
        Ok(contenders)
    }

    /// How many simulations it takes.
    pub fn simulations(&self) -> u64 {
        let points: usize = self.grid.values().map(Vec::len).product();
        self.fleets.count * (points as u64 + 1)
    }
}

/// Sets a field of a field of a field.
fn set(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(fields.insert(path.to_owned(), value)),
        Some((outer, inner)) => {
            let entry = fields.entry(outer).or_insert_with(|| Value::Object(Map::new()));
            if !entry.is_object() {
                *entry = Value::Object(Map::new());
            }
            if let Value::Object(within) = entry {
                set(within, inner, value);
            }
        }
    }
}

/// Plays every combination on every fleet.
///
/// # Errors
/// The first combination that is no policy.
pub fn sweep(grid: &Grid, threads: usize, progress: impl Fn() + Sync) -> Result<Swept, Invalid> {
    let contenders = grid.contenders()?;
    let seeds = grid.fleets.from..grid.fleets.from + grid.fleets.count;
    let fleets: Vec<_> = seeds.clone().map(fleet).collect();
    let mixes: Vec<Mix> = seeds.map(Mix::of).collect();
    let found = compare(&fleets, &contenders, threads, progress)?;
    let summary =
        |(place, contender): (usize, &Contender)| Summary::of(&contender.name, &found, &mixes, place, 0);
    let summaries = contenders.iter().enumerate().map(summary).collect();
    Ok(Swept { name: grid.name.clone(), fleets: grid.fleets, summaries, found })
}

impl Swept {
    /// One line a fleet and contender, for spreadsheets.
    pub fn csv(&self) -> String {
        let mut text = "fleet,contender,cv,mean,p99,wasted_cores,p99_latency_ms,failed\n".to_owned();
        for reports in &self.found {
            for (report, summary) in reports.iter().zip(&self.summaries) {
                let cv = report.cv.map_or_else(String::new, |cv| cv.to_string());
                let latency = report.latency.map_or_else(String::new, |latency| latency.p99.to_string());
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "{},\"{}\",{cv},{},{},{},{latency},{}",
                    report.scenario,
                    summary.name.replace('"', "'"),
                    report.mean_utilisation,
                    report.p99_utilisation,
                    report.wasted_cores,
                    report.failed
                );
            }
        }
        text
    }

    /// A dot a combination: how far the p99 utilisation falls below the baseline's, against how even servers are.
    pub fn plot(&self) -> String {
        let dots =
            || self.summaries.iter().filter(|summary| summary.p99.is_finite() && summary.cv.is_finite());
        let most = |value: fn(&Summary) -> f64| dots().map(value).fold(0.0, f64::max) * 1.1;
        let (right, top) = (most(|summary| summary.cv), most(|summary| summary.p99));
        let title = format!("{}: {} fleets from seed {}", self.name, self.fleets.count, self.fleets.from);
        let y_label = "p99 utilisation as a part of the baseline's, mean over fleets";
        let x_label = "variation of utilisation, median over fleets";
        let mut plot = Plot::new(&title, (0.0, right, x_label), (0.0, top, y_label));
        for (n, summary) in dots().enumerate() {
            plot.dot(summary.cv, summary.p99, if n == 0 { "#aa0000" } else { Plot::colour(0) });
        }
        let baseline = self.summaries.first().map_or_else(String::new, |summary| summary.name.clone());
        plot.legend(&[
            (format!("baseline: {baseline}"), "#aa0000"),
            ("combinations".into(), Plot::colour(0)),
        ]);
        plot.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_every_combination_and_the_baseline() {
        let grid: Grid = serde_json::from_value(serde_json::json!({
            "name": "subsets",
            "fleets": {"from": 0, "count": 2},
            "baseline": {"name": "all", "balancing": {"subset": 0}},
            "grid": {"subset": [2, 5, 10]},
        }))
        .unwrap();
        let contenders = grid.contenders().unwrap();
        let names: Vec<&str> = contenders.iter().map(|contender| contender.name.as_str()).collect();
        assert_eq!(names, ["all", "subset=2", "subset=5", "subset=10"]);
        assert_eq!(contenders[2].balancing.subset, Some(5));
        assert_eq!(grid.simulations(), 8);
    }

    #[test]
    fn a_field_that_is_not_there_is_refused() {
        let grid = serde_json::json!({
            "name": "slip", "fleets": {"from": 0, "count": 1}, "baseline": {"name": "b"},
            "grid": {"sbset": [2]},
        });
        let grid: Grid = serde_json::from_value(grid).unwrap();
        assert!(grid.validate().unwrap_err().problem.contains("sbset"));
    }
}
