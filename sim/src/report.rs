//! The result of a simulation.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    engine::Engine,
    metrics::{CallOutcomes, EstimateCounts, Recovery, Window, WorstSecond},
    scenario::Scenario,
    traffic::TrafficReport,
};

/// A completed simulation.
#[derive(Clone, Debug)]
pub struct SimulationResult {
    /// The figures.
    pub report: Report,
    /// Time series for plots: end of each sample in seconds, and the utilisation of each server (NaN while it was
    /// down).
    pub timeline: Vec<(f64, Vec<f32>)>,
}

/// Figures of a simulation. The same scenario and seed give bit-identical figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Simulated time, in seconds.
    pub seconds: f64,
    /// Requests simulated, warm-up included.
    pub requests: u64,
    /// Mean over the windows of the utilisation's coefficient of variation.
    pub cv: Option<f64>,
    /// Mean over the windows of mean utilisation.
    pub mean_utilisation: f64,
    /// Mean over the windows of p99 utilisation.
    pub p99_utilisation: f64,
    /// Mean over the windows of the cores that are idle because of p99 utilisation.
    pub wasted_cores: f64,
    /// 1 + wasted cores / used cores (Uber, imbalance indicator).
    pub imbalance: f64,
    /// Outcomes of calls.
    pub outcomes: CallOutcomes,
    /// The share of failed calls.
    pub failed: f64,
    /// Calls sent to endpoints of last resort.
    pub last_resort: u64,
    /// Sources of load estimates, and number of polls.
    pub estimates: EstimateCounts,
    /// Latency of successful calls before the first event; of all successful calls if there are no events.
    pub latency: Option<Latency>,
    /// Latency of successful calls after the first event.
    pub latency_after_event: Option<Latency>,
    /// The greatest multiple of its fair share that a server got in any second after the first event.
    pub worst_second: Option<WorstSecond>,
    /// Time in which recovered servers got four fifths of their fair share.
    pub recoveries: Vec<Recovery>,
    /// For each group of servers, the multiple of its fair share that it got after the first event.
    pub groups: Vec<ServerGroupShare>,
    /// The windows.
    pub windows: Vec<Window>,
    /// Calls across regions, if the scenario has `traffic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficReport>,
    /// Expectations that were not met.
    pub missed: Vec<String>,
}

impl Report {
    /// Polls for load per call, warm-up excluded.
    pub fn polls_per_call(&self) -> f64 {
        self.estimates.polls as f64 / self.outcomes.calls.max(1) as f64
    }
}

/// The share of a group of servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerGroupShare {
    /// Its name.
    pub name: String,
    /// The multiple of its fair share; `None` if the fair share is 0.
    pub share: Option<f64>,
}

/// Latency in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// Number of calls.
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

/// Summarises a simulation.
pub(crate) fn summarize(scenario: &Scenario, engine: Engine) -> SimulationResult {
    let metrics = engine.metrics;
    let estimates = metrics.estimate_counts();
    let windows = metrics.windows.all;
    let mean = |value: fn(&Window) -> f64| mean(windows.iter().map(value)).unwrap_or(0.0);
    let (wasted_cores, used) = (mean(|w| w.wasted_cores), mean(|w| w.used_cores));
    let outcomes = metrics.outcomes;
    let groups =
        metrics.shares.group_shares().into_iter().map(|(name, share)| ServerGroupShare { name, share });
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
        outcomes,
        failed: outcomes.failed() as f64 / outcomes.calls.max(1) as f64,
        last_resort: metrics.last_resort,
        estimates,
        latency: Latency::of(&metrics.latency_before),
        latency_after_event: Latency::of(&metrics.latency_after),
        worst_second: metrics.shares.worst,
        recoveries: metrics.shares.recoveries_and_open(),
        groups: groups.collect(),
        windows,
        traffic: engine.traffic.map(|traffic| traffic.report(scenario.warmup.nanos())),
        missed: Vec::new(),
    };
    report.missed = scenario.expect.missed(&report);
    let timeline =
        metrics.windows.samples.into_iter().map(|(at, sample)| (at as f64 / 1e9, sample)).collect();
    SimulationResult { report, timeline }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0_u32), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}
