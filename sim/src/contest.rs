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
    let reports = in_parallel(&jobs, threads, |scenario| {
        let report = run(scenario, |_| {}).map(|outcome| outcome.report);
        progress();
        report
    });
    let reports = reports.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(reports.chunks(contenders.len().max(1)).map(<[Report]>::to_vec).collect())
}

/// One contender against another over all fleets.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The contender.
    pub name: String,
    /// The median over the fleets of the variation of utilisation.
    pub cv: f64,
    /// The mean of its p99 utilisation as a part of the other's.
    pub p99: f64,
    /// The same over the fleets whose hardware is mixed worst; `None` where there is none.
    pub p99_worst_mixes: Option<f64>,
    /// The same at the fleet where it gains most, and where it gains least.
    pub p99_range: (f64, f64),
    /// The mean of its p99 latency as a part of the other's.
    pub p99_latency: f64,
    /// The mean of its wasted cores as a part of the other's, all fleets added up.
    pub wasted: f64,
}

impl Summary {
    /// The contender at `place` against the one at `other`, from what [`compare`] found on the fleets of these mixes.
    pub fn of(name: &str, found: &[Vec<Report>], mixes: &[Mix], place: usize, other: usize) -> Self {
        let pairs = || found.iter().map(|reports| (&reports[place], &reports[other]));
        let ratio = |(ours, theirs): (&Report, &Report)| ours.p99_utilisation / theirs.p99_utilisation;
        let mut ratios: Vec<f64> = pairs().map(ratio).collect();
        let worst = ratios.iter().zip(mixes).filter(|(_, mix)| **mix == Mix::Worst).map(|(ratio, _)| *ratio);
        let p99_worst_mixes = mean(worst);
        let p99 = mean(ratios.iter().copied()).unwrap_or(f64::NAN);
        ratios.sort_by(f64::total_cmp);
        let range = ratios.first().copied().zip(ratios.last().copied());
        let latency = |report: &Report| report.latency.map_or(f64::NAN, |latency| latency.p99);
        let latencies = pairs().map(|(ours, theirs)| latency(ours) / latency(theirs));
        let wasted = |pick: fn((&Report, &Report)) -> f64| pairs().map(pick).sum::<f64>();
        Self {
            name: name.to_owned(),
            cv: median(pairs().filter_map(|(ours, _)| ours.cv).collect()),
            p99,
            p99_worst_mixes,
            p99_range: range.unwrap_or((f64::NAN, f64::NAN)),
            p99_latency: mean(latencies.filter(|ratio| ratio.is_finite())).unwrap_or(f64::NAN),
            wasted: wasted(|(ours, _)| ours.wasted_cores) / wasted(|(_, theirs)| theirs.wasted_cores),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0_u32), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
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
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        assert_eq!(in_parallel(&jobs, 4, |job| job * 2), (0..100).map(|n| n * 2).collect::<Vec<_>>());
    }
}
