//! Parameter sweeps: combinations of constants, or one at a time, on many fleets against one baseline.

use std::{collections::BTreeMap, fmt::Write as _};

use fairmesh_model::{Invalid, spec::BalancingSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Report, Scenario,
    comparison::{Contender, Ratio, ReportPair, Summary, run_all},
    fleets::{Mix, fleet, limit_requests, with_distance, with_rollout},
    plot::forest,
};

/// The parameters of a sweep.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Grid {
    /// Name of the sweep.
    pub name: String,
    /// The generated fleets.
    pub fleets: FleetRange,
    /// The policy with which every combination is compared.
    pub baseline: Contender,
    /// Fields of `balancing` that all combinations share.
    #[serde(default)]
    pub base: Map<String, Value>,
    /// Values of each field of `balancing` (nested fields as `outer.inner`). Every combination is simulated.
    #[serde(default)]
    pub grid: BTreeMap<String, Vec<Value>>,
    /// Values of fields that are varied one at a time, while all others stay as in `base`.
    #[serde(default)]
    pub vary: BTreeMap<String, Vec<Value>>,
    /// Sampling: each combination is simulated on one in this many fleets, in turn. The baseline is simulated on all
    /// fleets.
    #[serde(default = "one")]
    pub one_in: u64,
}

fn one() -> u64 {
    1
}

/// A range of seeds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FleetRange {
    /// The first seed.
    pub from: u64,
    /// Number of seeds.
    pub count: u64,
    /// Requests per minute above which fleets are [scaled down](limit_requests).
    #[serde(default)]
    pub requests: Option<u32>,
    /// Minimum number of servers of a fleet.
    #[serde(default)]
    pub servers: u32,
    /// Whether fleets have a [rollout](with_rollout); latency is then measured from its start.
    #[serde(default)]
    pub deploying: bool,
    /// Whether callers are at [distances](with_distance) related to the request time, rather than near the servers.
    #[serde(default)]
    pub distant: bool,
}

impl FleetRange {
    /// The fleets with their seeds.
    fn all(&self) -> Vec<(u64, Scenario)> {
        let seeds = self.from..self.from + self.count;
        seeds.filter_map(|seed| Some((seed, self.of(seed)?))).collect()
    }

    fn of(&self, seed: u64) -> Option<Scenario> {
        let mut scenario = fleet(seed);
        if let Some(requests) = self.requests {
            scenario = limit_requests(scenario, requests.into());
        }
        let (servers, _) = size(&scenario);
        let scenario = if self.deploying { with_rollout(scenario) } else { scenario };
        let scenario = if self.distant { with_distance(scenario) } else { scenario };
        (servers >= self.servers).then_some(scenario)
    }
}

/// Comparison of each combination of a grid with the baseline.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SweepResult {
    /// Name of the grid.
    pub name: String,
    /// The fleets.
    pub fleets: FleetRange,
    /// Summary of every combination against the baseline; the baseline itself comes first.
    pub summaries: Vec<Summary>,
    /// Numbers of servers and callers in each fleet.
    #[serde(skip)]
    pub sizes: Vec<(u32, u32)>,
    /// Reports by fleet: that of the baseline, and those of the combinations that were simulated on the fleet.
    #[serde(skip)]
    pub reports: Vec<Vec<Option<Report>>>,
}

impl Grid {
    /// Checks that every combination is a valid policy.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.fleets.count == 0 {
            return Err(Invalid::new("fleets.count", "0 fleets show nothing", "write 1 or more"));
        }
        if self.one_in == 0 {
            return Err(Invalid::new("oneIn", "0 selects no fleets", "write 1 for all of them"));
        }
        if self.one_in > self.fleets.count {
            let problem = format!("one in {} of {} fleets may select none", self.one_in, self.fleets.count);
            return Err(Invalid::new("oneIn", problem, "write at most the number of fleets"));
        }
        self.contenders().map(drop)
    }

    /// The baseline, every combination of the grid, and every single variation.
    pub fn contenders(&self) -> Result<Vec<Contender>, Invalid> {
        let mut points = match self.grid.is_empty() {
            true => Vec::new(),
            false => vec![(String::new(), self.base.clone())],
        };
        for (field, values) in &self.grid {
            points = points.iter().flat_map(|point| with_each(point, field, values)).collect();
        }
        let base = (String::new(), self.base.clone());
        points.extend(self.vary.iter().flat_map(|(field, values)| with_each(&base, field, values)));
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

    /// Whether the contender at `position` is simulated on the fleet with this number.
    fn includes(&self, number: usize, position: usize) -> bool {
        position == 0 || ((number + position) as u64).is_multiple_of(self.one_in.max(1))
    }

    /// Number of simulations.
    ///
    /// # Errors
    /// The first combination that is no valid policy.
    pub fn simulations(&self) -> Result<u64, Invalid> {
        let contenders = self.contenders()?.len();
        let on = |number| (0..contenders).filter(|&position| self.includes(number, position)).count() as u64;
        Ok((0..self.fleets.all().len()).map(on).sum())
    }
}

/// Returns the numbers of servers and callers.
fn size(fleet: &Scenario) -> (u32, u32) {
    let servers = fleet.servers.iter().map(|group| group.count).sum();
    (servers, fleet.callers.iter().map(|group| group.count).sum())
}

/// Extends a combination by each value of one more field.
fn with_each<'a>(
    (name, base): &'a (String, Map<String, Value>),
    field: &'a str,
    values: &'a [Value],
) -> impl Iterator<Item = (String, Map<String, Value>)> {
    values.iter().map(move |value| {
        let mut fields = base.clone();
        set(&mut fields, field, value.clone());
        (format!("{name} {field}={value}").trim_start().to_owned(), fields)
    })
}

/// Sets a nested field.
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

/// Simulates the baseline on every fleet, and every combination on its share of the fleets.
///
/// # Errors
/// The first combination that is no valid policy.
pub fn sweep(grid: &Grid, threads: usize, progress: impl Fn() + Sync) -> Result<SweepResult, Invalid> {
    let contenders = grid.contenders()?;
    let fleets = grid.fleets.all();
    let mut jobs = Vec::new();
    for (number, (_, fleet)) in fleets.iter().enumerate() {
        let on = contenders.iter().enumerate().filter(|(position, _)| grid.includes(number, *position));
        jobs.extend(on.map(|(_, contender)| contender.apply_to(fleet)));
    }
    let mut completed = run_all(&jobs, threads, progress)?.into_iter();
    let mut of = |number| -> Vec<Option<Report>> {
        let positions = 0..contenders.len();
        positions
            .map(|position| if grid.includes(number, position) { completed.next() } else { None })
            .collect()
    };
    let reports: Vec<_> = (0..fleets.len()).map(&mut of).collect();
    let mixes: Vec<Mix> = fleets.iter().map(|(seed, _)| Mix::of(*seed)).collect();
    let summary = |(position, contender): (usize, &Contender)| {
        let pair = |(reports, &mix): (&'_ Vec<Option<Report>>, &Mix)| {
            Some((mix, reports[position].clone()?, reports[0].clone()?))
        };
        let found: Vec<_> = reports.iter().zip(&mixes).filter_map(pair).collect();
        let pairs: Vec<_> = found
            .iter()
            .map(|(mix, contender, baseline)| ReportPair { mix: *mix, contender, baseline })
            .collect();
        Summary::of(&contender.name, &pairs)
    };
    let summaries = contenders.iter().enumerate().map(summary).collect();
    let sizes = fleets.iter().map(|(_, fleet)| size(fleet)).collect();
    Ok(SweepResult { name: grid.name.clone(), fleets: grid.fleets, summaries, sizes, reports })
}

impl SweepResult {
    /// Formats the results as CSV, with one line per fleet and contender.
    pub fn csv(&self) -> String {
        let mut text =
            "fleet,servers,callers,contender,cv,mean,p99,wasted_cores,p99_latency_ms,failed,polls_per_call\n"
                .to_owned();
        for (reports, (servers, callers)) in self.reports.iter().zip(&self.sizes) {
            for (report, summary) in reports.iter().zip(&self.summaries) {
                let Some(report) = report else { continue };
                let cv = report.cv.map_or_else(String::new, |cv| format!("{cv:.5}"));
                let latency = report.latency_after_event.or(report.latency);
                let latency = latency.map_or_else(String::new, |latency| latency.p99.to_string());
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "{},{servers},{callers},\"{}\",{cv},{:.5},{:.5},{:.3},{latency},{:.6},{:.5}",
                    report.scenario,
                    summary.name.replace('"', "'"),
                    report.mean_utilisation,
                    report.p99_utilisation,
                    report.wasted_cores,
                    report.failed,
                    report.polls_per_call()
                );
            }
        }
        text
    }

    /// Plots one row per combination: its p99 utilisation and p99 latency relative to the baseline's, with confidence
    /// intervals.
    pub fn plot(&self) -> String {
        let title = format!("{}: {} fleets", self.name, self.reports.len());
        let interval = |ratio: Ratio| (ratio.mean, 2.0 * ratio.error);
        let row = |summary: &Summary| {
            (summary.name.clone(), [interval(summary.p99), interval(summary.p99_latency)])
        };
        let rows: Vec<_> = self.summaries.iter().skip(1).map(row).collect();
        let baseline = self.summaries.first().map_or_else(String::new, |summary| summary.name.clone());
        let heads = ["p99 utilisation", "p99 latency"].map(|head| format!("{head} / that of {baseline}"));
        forest(&title, &heads, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_grid_has_every_combination_and_baseline() {
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
        assert_eq!(grid.simulations().unwrap(), 8);
    }

    #[test]
    fn single_variations_run_on_their_share_of_fleets() {
        let grid: Grid = serde_json::from_value(serde_json::json!({
            "name": "constants",
            "fleets": {"from": 0, "count": 6, "requests": 3000},
            "baseline": {"name": "default"},
            "vary": {"score.gain": [0, 20], "score.smoothing": [5]},
            "oneIn": 3,
        }))
        .unwrap();
        let names: Vec<String> = grid.contenders().unwrap().into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["default", "score.gain=0", "score.gain=20", "score.smoothing=5"]);
        assert_eq!(grid.simulations().unwrap(), 6 + 3 * 2);
        let result = sweep(&grid, 1, || {}).unwrap();
        let counts: Vec<usize> = result.summaries.iter().map(|summary| summary.fleets).collect();
        assert_eq!(counts, [6, 2, 2, 2]);
        let lines: Vec<String> = result.csv().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 1 + 12);
        assert!(
            lines.iter().any(|line| line.starts_with("fleet-2,") && line.contains(",\"score.gain=0\",")),
            "{lines:?}"
        );
        assert!(
            !lines.iter().any(|line| line.starts_with("fleet-1,") && line.contains(",\"score.gain=0\",")),
            "{lines:?}"
        );
        let same = &result.summaries[0];
        assert!(same.p99.mean == 1.0 && same.p99.error == 0.0, "{same:?}");
        assert!(result.plot().contains("score.gain=20"));
    }

    #[test]
    fn unknown_sweep_field_is_rejected() {
        let grid = serde_json::json!({
            "name": "slip", "fleets": {"from": 0, "count": 1}, "baseline": {"name": "b"},
            "grid": {"sbset": [2]},
        });
        let grid: Grid = serde_json::from_value(grid).unwrap();
        assert!(grid.validate().unwrap_err().problem.contains("sbset"));
    }
}
