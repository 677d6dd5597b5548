//! Policies side by side on the same fleets: the same machines, callers, arrivals and demands; only decisions differ.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use fairmesh_model::{Invalid, spec::BalancingSpec};
use serde::{Deserialize, Serialize};

use crate::{Report, Scenario, fleets::Mix, run};

/// A policy in a comparison.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Contender {
    /// What tables call it.
    pub name: String,
    /// How it chooses; the fleet's subset stays where it names none.
    #[serde(default)]
    pub balancing: BalancingSpec,
    /// Whether it is not told how fast hosts are.
    #[serde(default)]
    pub blind: bool,
    /// Another number makes other random choices on the same fleet under the same load: what two of them differ in is
    /// noise.
    #[serde(default)]
    pub salt: u64,
}

impl Contender {
    /// The fleet under this policy.
    pub fn on(&self, fleet: &Scenario) -> Scenario {
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

/// Plays every contender on every fleet, on this many threads: a list of reports by fleet, each in the order of the
/// contenders. `progress` hears of every simulation that ends.
///
/// # Errors
/// The first policy or fleet that is not valid.
pub fn compare(
    fleets: &[Scenario],
    contenders: &[Contender],
    threads: usize,
    progress: impl Fn() + Sync,
) -> Result<Vec<Vec<Report>>, Invalid> {
    let jobs: Vec<Scenario> =
        fleets.iter().flat_map(|fleet| contenders.iter().map(|contender| contender.on(fleet))).collect();
    let reports = play(&jobs, threads, progress)?;
    Ok(reports.chunks(contenders.len().max(1)).map(<[Report]>::to_vec).collect())
}

/// Plays scenarios, whose reports come in their order.
pub(crate) fn play(
    jobs: &[Scenario],
    threads: usize,
    progress: impl Fn() + Sync,
) -> Result<Vec<Report>, Invalid> {
    let reports = in_parallel(jobs, threads, |scenario| {
        let report = run(scenario, |_| {}).map(|outcome| outcome.report);
        progress();
        report
    });
    reports.into_iter().collect()
}

/// What two contenders came to on the same fleet.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// How the fleet's hardware is mixed.
    pub mix: Mix,
    /// The one that is judged.
    pub ours: &'a Report,
    /// The one that it is measured against.
    pub theirs: &'a Report,
}

/// One contender against another over all fleets that both played.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The contender.
    pub name: String,
    /// On how many fleets.
    pub fleets: usize,
    /// The median over the fleets of the variation of utilisation.
    pub cv: f64,
    /// The same of the other.
    pub cv_other: f64,
    /// Its p99 utilisation as a part of the other's.
    pub p99: Ratio,
    /// The same over the fleets whose hardware is mixed worst; `None` where there is none.
    pub p99_worst_mixes: Option<f64>,
    /// The same at the fleet where it gains most, and where it gains least.
    pub p99_range: (f64, f64),
    /// Its p99 latency as a part of the other's; in fleets to which something happens, the latency from then on.
    pub p99_latency: Ratio,
    /// The mean of its wasted cores as a part of the other's, all fleets added up.
    pub wasted: f64,
    /// The mean over the fleets of its questions for load, for each call.
    pub questions: f64,
}

/// The mean over the fleets of a figure of one contender as a part of the other's on the same fleet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ratio {
    /// The mean.
    pub mean: f64,
    /// Its standard error: what is less than twice this from 1 may be chance.
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
    /// The contender of this name over these fleets.
    pub fn of(name: &str, pairs: &[Pair<'_>]) -> Self {
        let ratio = |pair: &Pair<'_>| pair.ours.p99_utilisation / pair.theirs.p99_utilisation;
        let worst: Vec<f64> = pairs.iter().filter(|pair| pair.mix == Mix::Worst).map(ratio).collect();
        let ratios = || pairs.iter().map(ratio);
        let latency = |report: &Report| {
            let latency = report.latency_after_event.or(report.latency);
            latency.map_or(f64::NAN, |latency| latency.p99)
        };
        let wasted = |of: fn(&Pair<'_>) -> f64| pairs.iter().map(of).sum::<f64>();
        Self {
            name: name.to_owned(),
            fleets: pairs.len(),
            cv: median(pairs.iter().filter_map(|pair| pair.ours.cv).collect()),
            cv_other: median(pairs.iter().filter_map(|pair| pair.theirs.cv).collect()),
            p99: Ratio::of(ratios()),
            p99_worst_mixes: (!worst.is_empty()).then(|| worst.iter().sum::<f64>() / worst.len() as f64),
            p99_range: (ratios().fold(f64::NAN, f64::min), ratios().fold(f64::NAN, f64::max)),
            p99_latency: Ratio::of(pairs.iter().map(|pair| latency(pair.ours) / latency(pair.theirs))),
            questions: pairs.iter().map(|pair| pair.ours.questions_per_call()).sum::<f64>()
                / pairs.len() as f64,
            wasted: wasted(|pair| pair.ours.wasted_cores) / wasted(|pair| pair.theirs.wasted_cores),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Does `work` on each job; the results come in the order of the jobs, whichever thread did them.
fn in_parallel<J: Sync, R: Send>(jobs: &[J], threads: usize, work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(jobs.len()));
    let labour = || {
        while let Some((number, job)) = {
            let number = next.fetch_add(1, Relaxed);
            jobs.get(number).map(|job| (number, job))
        } {
            let result = work(job);
            // Another thread that panicked ends the whole scope; what it left here is not looked at.
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(labour);
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
    fn a_ratio_is_a_mean_with_what_chance_makes_of_it() {
        let ratio = Ratio::of([0.9, 1.1, f64::NAN, 1.0, 1.0].into_iter());
        assert!((ratio.mean - 1.0).abs() < 1e-12);
        // A variance of 0.02 / 3 over four values.
        assert!((ratio.error - (0.02_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        assert_eq!(in_parallel(&jobs, 4, |job| job * 2), (0..100).map(|n| n * 2).collect::<Vec<_>>());
    }
}
