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
    /// Figures of the simulation.
    pub report: Report,
    /// Time series for plots: the end of each sample in seconds, and the utilisation of each server (NaN while it was
    /// down).
    pub timeline: Vec<(f64, Vec<f32>)>,
}

/// Figures of a simulation. The same scenario and seed give bit-identical figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Simulated time, in seconds.
    pub seconds: f64,
    /// Number of requests simulated, including the warm-up.
    pub requests: u64,
    /// Mean over the windows of the utilisation's coefficient of variation.
    pub cv: Option<f64>,
    /// Mean over the windows of the mean utilisation.
    pub mean_utilisation: f64,
    /// Mean over the windows of p99 utilisation.
    pub p99_utilisation: f64,
    /// Mean over the windows of the cores that stay idle because of the p99 utilisation.
    pub wasted_cores: f64,
    /// Imbalance indicator of Uber: 1 + wasted cores / used cores.
    pub imbalance: f64,
    /// Outcomes of calls.
    pub outcomes: CallOutcomes,
    /// Share of failed calls.
    pub failed: f64,
    /// Number of calls sent to endpoints of last resort.
    pub last_resort: u64,
    /// Sources of load estimates, and the number of polls.
    pub estimates: EstimateCounts,
    /// Latency of successful calls before the first event, or of all successful calls if there are no events.
    pub latency: Option<Latency>,
    /// Latency of successful calls after the first event.
    pub latency_after_event: Option<Latency>,
    /// The greatest multiple of its fair share that a server got in any second after the first event.
    pub worst_second: Option<WorstSecond>,
    /// For each recovered server, the time until it got four fifths of its fair share.
    pub recoveries: Vec<Recovery>,
    /// For each group of servers, its calls after the first event as a multiple of its fair share.
    pub groups: Vec<ServerGroupShare>,
    /// Figures of each window.
    pub windows: Vec<Window>,
    /// Calls across regions, if the scenario has `traffic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficReport>,
    /// Expectations that were not met.
    pub missed: Vec<String>,
}

impl Report {
    /// Number of load polls per call, excluding the warm-up.
    pub fn polls_per_call(&self) -> f64 {
        self.estimates.polls as f64 / self.outcomes.calls.max(1) as f64
    }
}

/// The share of a group of servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerGroupShare {
    /// Name of the group.
    pub name: String,
    /// Multiple of the fair share that the group got; `None` if the fair share is 0.
    pub share: Option<f64>,
}

/// Latency in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// Number of calls.
    pub calls: u64,
    /// Mean latency.
    pub mean: f64,
    /// Median latency.
    pub p50: f64,
    /// 99th percentile of the latency.
    pub p99: f64,
    /// 99.9th percentile of the latency.
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
