//! What a simulation found.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    engine::Engine,
    metrics::{Endings, Estimated, Recovery, Window, Worst},
    scenario::Scenario,
};

/// A simulation that has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The figures.
    pub report: Report,
    /// The course of time, for plots: when each sample ends in seconds, and the utilisation of each server in it, not a
    /// number where it was away.
    pub course: Vec<(f64, Vec<f32>)>,
}

/// The figures of a simulation; the same scenario and seed give the same, to the last bit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Time simulated, in seconds.
    pub seconds: f64,
    /// Requests simulated, warm-up included.
    pub requests: u64,
    /// Mean over the windows of the coefficient of variation of utilisation.
    pub cv: Option<f64>,
    /// Mean over the windows of the mean utilisation.
    pub mean_utilisation: f64,
    /// Mean over the windows of the utilisation of the server at the 99th percentile.
    pub p99_utilisation: f64,
    /// Mean over the windows of the cores that lie idle because of it.
    pub wasted_cores: f64,
    /// 1 + wasted over used cores (Uber, imbalance indicator).
    pub imbalance: f64,
    /// How calls ended.
    pub endings: Endings,
    /// The share of calls that failed.
    pub failed: f64,
    /// Calls that went where nothing should go while anything else is left.
    pub last_resort: u64,
    /// Where estimates of load came from, and how many questions that took.
    pub estimates: Estimated,
    /// Latency of answered calls before the first event, or of all where nothing happens.
    pub latency: Option<Latency>,
    /// The same after the first event.
    pub latency_after_event: Option<Latency>,
    /// The greatest multiple of its fair share that a server got in any second after the first event.
    pub worst_second: Option<Worst>,
    /// How long servers that came back took to four fifths of their fair share.
    pub recoveries: Vec<Recovery>,
    /// Groups of servers, each with the multiple of its fair share that it got after the first event.
    pub groups: Vec<Group>,
    /// The windows.
    pub windows: Vec<Window>,
    /// Expectations that were not met.
    pub missed: Vec<String>,
}

impl Report {
    /// How many questions for load there were for each call, warm-up left out.
    pub fn questions_per_call(&self) -> f64 {
        self.estimates.questions as f64 / self.endings.calls.max(1) as f64
    }
}

/// The share of a group of servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The multiple of its fair share; `None` where nothing would have been fair.
    pub share: Option<f64>,
}

/// Latency in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// How many calls.
    pub calls: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            calls: histogram.len(),
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
        })
    }
}

/// Draws the figures together.
pub(crate) fn outcome(scenario: &Scenario, engine: Engine) -> Outcome {
    let metrics = engine.metrics;
    let estimates = metrics.estimated();
    let windows = metrics.windows.all;
    let mean = |value: fn(&Window) -> f64| mean(windows.iter().map(value)).unwrap_or(0.0);
    let (wasted_cores, used) = (mean(|w| w.wasted_cores), mean(|w| w.used_cores));
    let endings = metrics.endings;
    let groups = metrics.shares.of_groups().into_iter().map(|(name, share)| Group { name, share });
    let mut report = Report {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        seconds: scenario.duration.as_seconds(),
        requests: metrics.all_calls,
        cv: self::mean(windows.iter().filter_map(|window| window.cv)),
        mean_utilisation: mean(|w| w.mean),
        p99_utilisation: mean(|w| w.p99),
        wasted_cores,
        imbalance: if used > 0.0 { 1.0 + wasted_cores / used } else { 1.0 },
        endings,
        failed: endings.failed() as f64 / endings.calls.max(1) as f64,
        last_resort: metrics.last_resort,
        estimates,
        latency: Latency::of(&metrics.before),
        latency_after_event: Latency::of(&metrics.after),
        worst_second: metrics.shares.worst,
        recoveries: metrics.shares.recovered(),
        groups: groups.collect(),
        windows,
        missed: Vec::new(),
    };
    report.missed = scenario.expect.missed(&report);
    let course = metrics.windows.samples.into_iter().map(|(at, sample)| (at as f64 / 1e9, sample)).collect();
    Outcome { report, course }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0_u32), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}
