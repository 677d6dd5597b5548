//! Compares policies on the same fleets: machines, callers, arrivals and demands are equal, only decisions differ.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use fairmesh_model::{Invalid, spec::BalancingSpec};
use serde::{Deserialize, Serialize};

use crate::{Report, Scenario, fleets::Mix, run};

/// A policy in the comparison.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Contender {
    /// Name in tables.
    pub name: String,
    /// The balancing policy. The fleet's subset size applies unless the policy sets one.
    #[serde(default)]
    pub balancing: BalancingSpec,
    /// Whether the policy ignores host speeds.
    #[serde(default)]
    pub blind: bool,
    /// Salt of random choices. With another salt, the same fleet under the same load makes other random choices; the
    /// difference between such runs is noise.
    #[serde(default)]
    pub salt: u64,
}

impl Contender {
    /// The fleet under this policy.
    pub fn apply_to(&self, fleet: &Scenario) -> Scenario {
        let mut fleet = fleet.clone();
        let subset = fleet.policy.balancing.subset;
        fleet.policy.balancing = self.balancing.clone();
        fleet.policy.balancing.subset = self.balancing.subset.or(subset);
        fleet.salt = self.salt;
        if self.blind {
            fleet.hosts.values_mut().for_each(|host| host.weight = Some(1000));
        }
        fleet
    }
}

/// Simulates every contender on every fleet with this many threads. Returns a list of reports per fleet, in the order
/// of the contenders. Calls `progress` at the end of every simulation.
///
/// # Errors
/// The first policy or fleet that is not valid.
pub fn compare(
    fleets: &[Scenario],
    contenders: &[Contender],
    threads: usize,
    progress: impl Fn() + Sync,
) -> Result<Vec<Vec<Report>>, Invalid> {
    let jobs: Vec<Scenario> = fleets
        .iter()
        .flat_map(|fleet| contenders.iter().map(|contender| contender.apply_to(fleet)))
        .collect();
    let reports = run_all(&jobs, threads, progress)?;
    Ok(reports.chunks(contenders.len().max(1)).map(<[Report]>::to_vec).collect())
}

/// Simulates scenarios; reports are in the same order.
pub(crate) fn run_all(
    jobs: &[Scenario],
    threads: usize,
    progress: impl Fn() + Sync,
) -> Result<Vec<Report>, Invalid> {
    let reports = in_parallel(jobs, threads, |scenario| {
        let report = run(scenario, |_| {}).map(|result| result.report);
        progress();
        report
    });
    reports.into_iter().collect()
}

/// The reports of two contenders on the same fleet.
#[derive(Clone, Copy, Debug)]
pub struct ReportPair<'a> {
    /// Hardware mix of the fleet.
    pub mix: Mix,
    /// The contender under test.
    pub contender: &'a Report,
    /// The contender for comparison.
    pub baseline: &'a Report,
}

/// One contender against the baseline, over all fleets on which both were simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Name of the contender.
    pub name: String,
    /// Number of fleets.
    pub fleets: usize,
    /// Median over the fleets of the utilisation's coefficient of variation.
    pub cv: f64,
    /// The same median for the baseline.
    pub baseline_cv: f64,
    /// p99 utilisation relative to the baseline's.
    pub p99: Ratio,
    /// p99 utilisation relative to the baseline's, over the fleets with the worst hardware mix; `None` without such
    /// fleets.
    pub p99_worst_mixes: Option<f64>,
    /// p99 utilisation relative to the baseline's, in the fleets with the greatest and with the smallest gain.
    pub p99_range: (f64, f64),
    /// p99 latency relative to the baseline's. In fleets with events, latency after the first event.
    pub p99_latency: Ratio,
    /// Wasted cores relative to the baseline's, summed over all fleets.
    pub wasted: f64,
    /// Mean over the fleets of polls for load per call.
    pub polls_per_call: f64,
}

/// Mean over the fleets of a contender's figure divided by the baseline's figure on the same fleet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ratio {
    /// Mean of the ratios.
    pub mean: f64,
    /// Standard error of the mean. If the mean differs from 1 by less than twice this, the difference may be chance.
    pub error: f64,
}

impl Ratio {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Self { mean, error: (squares / (n - 1.0) / n).sqrt() }
    }
}

impl Summary {
    /// Summarises the contender of this name over these fleets.
    pub fn of(name: &str, pairs: &[ReportPair<'_>]) -> Self {
        let ratio = |pair: &ReportPair<'_>| pair.contender.p99_utilisation / pair.baseline.p99_utilisation;
        let worst: Vec<f64> = pairs.iter().filter(|pair| pair.mix == Mix::Worst).map(ratio).collect();
        let ratios = || pairs.iter().map(ratio);
        let latency = |report: &Report| {
            let latency = report.latency_after_event.or(report.latency);
            latency.map_or(f64::NAN, |latency| latency.p99)
        };
        let wasted = |of: fn(&ReportPair<'_>) -> f64| pairs.iter().map(of).sum::<f64>();
        Self {
            name: name.to_owned(),
            fleets: pairs.len(),
            cv: median(pairs.iter().filter_map(|pair| pair.contender.cv).collect()),
            baseline_cv: median(pairs.iter().filter_map(|pair| pair.baseline.cv).collect()),
            p99: Ratio::of(ratios()),
            p99_worst_mixes: (!worst.is_empty()).then(|| worst.iter().sum::<f64>() / worst.len() as f64),
            p99_range: (ratios().fold(f64::NAN, f64::min), ratios().fold(f64::NAN, f64::max)),
            p99_latency: Ratio::of(pairs.iter().map(|pair| latency(pair.contender) / latency(pair.baseline))),
            polls_per_call: pairs.iter().map(|pair| pair.contender.polls_per_call()).sum::<f64>()
                / pairs.len() as f64,
            wasted: wasted(|pair| pair.contender.wasted_cores) / wasted(|pair| pair.baseline.wasted_cores),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `work` on each job in several threads. Results are in the order of the jobs.
fn in_parallel<J: Sync, R: Send>(jobs: &[J], threads: usize, work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(jobs.len()));
    let worker = || {
        while let Some((number, job)) = {
            let number = next.fetch_add(1, Relaxed);
            jobs.get(number).map(|job| (number, job))
        } {
            let result = work(job);
            // If another thread panics, the whole scope ends and its results are discarded.
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_ratio_is_mean_with_standard_error() {
        let ratio = Ratio::of([0.9, 1.1, f64::NAN, 1.0, 1.0].into_iter());
        assert!((ratio.mean - 1.0).abs() < 1e-12);
        // A variance of 0.02 / 3 over four values.
        assert!((ratio.error - (0.02_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn parallel_simulation_results_keep_job_order() {
        let jobs: Vec<u64> = (0..100).collect();
        assert_eq!(in_parallel(&jobs, 4, |job| job * 2), (0..100).map(|n| n * 2).collect::<Vec<_>>());
    }
}
