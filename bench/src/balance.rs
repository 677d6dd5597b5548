//! Server utilisation under the default policy, compared with the least-pending policy that Uber used before, on
//! held-out fleets.
//!
//! Fleets are simulated, since no machine holds three thousand servers, but the production crates make the decisions.
//! In addition three real servers, one of them throttled, check what the simulator's model of processors and reports
//! cannot.

mod cgroups;
mod throttled_server;

use std::{error::Error, thread};

use clap::{Args, ValueEnum};
use fairmesh_model::spec::BalancingSpec;
use fairmesh_sim::{
    Contender, Report as Simulated, ReportPair, Scenario, Summary, compare,
    fleets::{HELD_OUT, Mix, fleet},
};
use tokio::time::Instant;

use crate::{Common, report::Report};

/// Options of `balance`.
#[derive(Debug, Args)]
pub(crate) struct BalanceArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only this part [default: both].
    #[arg(long)]
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Held-out fleets in the simulator.
    Simulated,
    /// Three processes, one with half of the others' CPU.
    Real,
}

/// Goals.
const CV: f64 = 0.10;
const P99_MEAN: f64 = 0.88;
const P99_WORST_MIXES: f64 = 0.70;
/// Maximum ratio by which a fleet may be worse off, beyond noise.
const NO_WORSE: f64 = 1.02;
/// Minimum number of simulated requests per second of wall time.
const SIMULATED_RATE: f64 = 1e6;

/// Indices of the contenders.
const OURS: usize = 0;
const LEAST_PENDING: usize = 1;
const LEAST_PENDING_AGAIN: usize = 2;
const UNTOLD: usize = 3;
const LEAST_PENDING_TOLD: usize = 4;

/// Runs the requested parts.
pub(crate) fn run(args: &BalanceArgs) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new("balance");
    if args.part != Some(Part::Real) {
        simulate(args.common.quick, &mut report)?;
    }
    if args.part != Some(Part::Simulated) {
        throttled_server::run(args.common.quick, &mut report)?;
    }
    Ok(report)
}

/// Runs the simulations; `quick` uses a twentieth of the fleets.
fn simulate(quick: bool, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let seeds: Vec<u64> = HELD_OUT.step_by(if quick { 20 } else { 1 }).collect();
    let fleets: Vec<_> = seeds.iter().map(|&seed| fleet(seed)).collect();
    let mixes: Vec<Mix> = seeds.iter().map(|&seed| Mix::of(seed)).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let found = compare(&fleets, &contenders(), threads, || {})?;
    figures(&found, &mixes, report);
    speed(&fleets[..fleets.len().min(10)], report)
}

/// Measures the speed of the simulator on one core.
fn speed(fleets: &[Scenario], report: &mut Report) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let played = compare(fleets, &[Contender::default()], 1, || {})?;
    let requests: u64 = played.iter().flatten().map(|report| report.requests).sum();
    let rate = requests as f64 / began.elapsed().as_secs_f64();
    let note = format!("simulated a second of wall time on one core, over {} of the fleets", fleets.len());
    report.figure_at_least("sim_requests_per_second", rate, SIMULATED_RATE, note);
    Ok(())
}

/// The default policy as released, and least pending twice with different random choices: the difference between these
/// two is noise. Then both with the host table swapped (the default without host types, least pending with them), to
/// separate the effect of the policy from that of the host table.
fn contenders() -> [Contender; 5] {
    let least_request = BalancingSpec { policy: Some("leastRequest".into()), ..BalancingSpec::default() };
    let least_pending = |salt| {
        let balancing = least_request.clone();
        Contender { name: "least pending".into(), balancing, blind: true, salt }
    };
    let ours = Contender { name: "default".into(), ..Contender::default() };
    let untold = Contender { name: "default, not told".into(), blind: true, ..Contender::default() };
    let told = Contender { name: "least pending, told".into(), blind: false, ..least_pending(0) };
    [ours, least_pending(0), least_pending(1), untold, told]
}

fn figures(found: &[Vec<Simulated>], mixes: &[Mix], report: &mut Report) {
    let n = found.len();
    let pairs: Vec<ReportPair<'_>> = found
        .iter()
        .zip(mixes)
        .map(|(reports, mix)| ReportPair {
            mix: *mix,
            contender: &reports[OURS],
            baseline: &reports[LEAST_PENDING],
        })
        .collect();
    let ours = Summary::of("default", &pairs);
    let note = format!("median over {n} held-out fleets; least pending {:.3}", ours.baseline_cv);
    report.figure("cv_unsharded", ours.cv, Some(CV), note);
    let (best, worst) = ours.p99_range;
    let note = format!("p99 utilisation, ours / theirs, mean over {n} fleets; {best:.3} to {worst:.3}");
    report.figure("p99_vs_least_pending_mean", ours.p99.mean, Some(P99_MEAN), note);
    let worst_mixes = ours.p99_worst_mixes.unwrap_or(f64::NAN);
    let count = mixes.iter().filter(|mix| **mix == Mix::Worst).count();
    let note =
        format!("the same over the {count} fleets of the worst mix, half of the machines twice as fast");
    report.figure("p99_vs_least_pending_best", worst_mixes, Some(P99_WORST_MIXES), note);
    let (beyond, fleet, noise) = beyond_noise(found);
    let note = format!("{fleet}, which gains least, its noise taken off; noise is up to {noise:.3}");
    report.figure("p99_vs_least_pending_worst", beyond, Some(NO_WORSE), note);
    for (name, ours, theirs, note) in [
        ("p99_not_told", UNTOLD, LEAST_PENDING, "the mean with neither told of host types"),
        ("p99_both_told", OURS, LEAST_PENDING_TOLD, "the mean with both told of host types"),
    ] {
        let pairs = found.iter().zip(mixes).map(|(reports, mix)| ReportPair {
            mix: *mix,
            contender: &reports[ours],
            baseline: &reports[theirs],
        });
        let summary = Summary::of(name, &pairs.collect::<Vec<_>>());
        report.figure(name, summary.p99.mean, None, note);
    }
    report.figure("wasted_vs_least_pending", ours.wasted, None, "wasted cores, all fleets added up");
    report.figure(
        "latency_vs_least_pending",
        ours.p99_latency.mean,
        None,
        "p99 latency, mean over the fleets",
    );
    report.peer("least pending", "simulated with the same crates, not told of host types");
}

/// The greatest ratio beyond noise, its fleet, and the greatest noise. Noise is the difference between the two runs of
/// least pending on the same fleet.
fn beyond_noise(found: &[Vec<Simulated>]) -> (f64, &str, f64) {
    let noise = |reports: &Vec<Simulated>| {
        (reports[LEAST_PENDING_AGAIN].p99_utilisation / reports[LEAST_PENDING].p99_utilisation - 1.0).abs()
    };
    let beyond = |reports: &Vec<Simulated>| {
        reports[OURS].p99_utilisation / reports[LEAST_PENDING].p99_utilisation - noise(reports)
    };
    let each = found.iter().map(|reports| (beyond(reports), reports[OURS].scenario.as_str()));
    let (most, fleet) =
        each.fold((f64::NEG_INFINITY, ""), |worst, one| if one.0 > worst.0 { one } else { worst });
    (most, fleet, found.iter().map(noise).fold(0.0, f64::max))
}
