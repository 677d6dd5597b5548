//! `bench/run te-app`: simulated applications under the optimizer, compared with Waterfall: latency, egress, and
//! servers for the loss of a region.
//!
//! Every request is simulated in the engine of fleets. The optimizer learns its model from reports; Waterfall is given
//! the capacity of each pool.

pub(crate) mod real;

use std::error::Error;

use clap::{Args, ValueEnum};
use fairmesh_sim::application::{Measured, Planner, Scenario, capacity_factor, play};

use crate::{Common, report::Report};

/// Options of `te-app`.
#[derive(Debug, Args)]
pub(crate) struct TeAppArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Simulated applications, or applications as processes.
    #[arg(long, value_enum, default_value_t = Part::Simulated)]
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Simulated,
    Real,
}

/// Goals: mean latency relative to Waterfall's, in the worst scenario and with one region at three times its load; share
/// of calls that are not served, beyond Waterfall's; egress; servers.
const VS_WATERFALL: f64 = 1.02;
const VS_WATERFALL_3X: f64 = 0.7;
const FAILED_BEYOND_WATERFALL: f64 = 0.001;
const EGRESS: f64 = 0.6;
const CAPACITY: f64 = 1.3;
/// The applications of the paper (10, 11 and 20 services), and its cut-point and class cases.
const APPLICATIONS: [&str; 5] = [
    include_str!("../../scenarios/app-hotel.yaml"),
    include_str!("../../scenarios/app-boutique.yaml"),
    include_str!("../../scenarios/app-alibaba.yaml"),
    include_str!("../../scenarios/app-cut-point.yaml"),
    include_str!("../../scenarios/app-classes.yaml"),
];
/// Name of variants in which Oregon has its usual load.
const USUAL: &str = "usual";

/// One scenario under both planners.
struct Pair {
    name: String,
    is_partial: bool,
    has_peak: bool,
    ours: Measured,
    theirs: Measured,
}

impl Pair {
    fn measure(scenario: &Scenario) -> Result<Self, Box<dyn Error>> {
        let regions = scenario.topology.regions.len();
        Ok(Self {
            name: scenario.name.clone(),
            is_partial: scenario.services.iter().any(|service| service.cores.len() < regions),
            has_peak: scenario.clients.iter().any(|clients| !clients.rate_over_time.is_empty()),
            ours: play(scenario, Planner::Optimizer, |_| {})?,
            theirs: play(scenario, Planner::Waterfall, |_| {})?,
        })
    }

    fn latency_ratio(&self) -> f64 {
        self.ours.mean_ms / self.theirs.mean_ms
    }

    /// Share of calls that are not served, less Waterfall's.
    fn failed_beyond(&self) -> f64 {
        let share = |of: &Measured| (of.failed + of.dropped) as f64 / of.calls.max(1) as f64;
        share(&self.ours) - share(&self.theirs)
    }
}

fn scenarios(quick: bool) -> Result<Vec<Scenario>, Box<dyn Error>> {
    let mut all = Vec::new();
    for text in APPLICATIONS {
        let scenario: Scenario = serde_saphyr::from_str(text)?;
        scenario.validate()?;
        let variants = scenario.variants();
        // Variants with events are about faults, which have their own tests.
        let steady =
            variants.into_iter().filter(|one| one.play.events.is_empty() && one.play.faults.is_empty());
        all.extend(if quick { steady.take(1).collect() } else { steady.collect::<Vec<_>>() });
    }
    Ok(all)
}

/// Runs the benchmark.
pub(crate) fn run(args: &TeAppArgs) -> Result<Report, Box<dyn Error>> {
    match args.part {
        Part::Simulated => simulate(args.common.quick),
        Part::Real => real::run(args.common.quick),
    }
}

fn simulate(quick: bool) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new("te-app");
    let pairs: Vec<Pair> = scenarios(quick)?.iter().map(Pair::measure).collect::<Result<_, _>>()?;
    for pair in &pairs {
        let (ours, theirs) = (&pair.ours, &pair.theirs);
        let note = format!(
            "{:.1} ms and {:.1} ms (p99 {:.0} and {:.0}); predicted {:.1} ms; not served {} and {} of {}",
            ours.mean_ms,
            theirs.mean_ms,
            ours.p99_ms,
            theirs.p99_ms,
            ours.predicted_ms,
            ours.failed + ours.dropped,
            theirs.failed + theirs.dropped,
            ours.calls
        );
        report.figure(pair.name.replace('-', "_"), pair.latency_ratio(), None, note);
    }
    let worst = pairs.iter().map(Pair::latency_ratio).fold(0.0, f64::max);
    report.figure("mean_vs_waterfall", worst, Some(VS_WATERFALL), "the worst scenario");
    let failed = pairs.iter().map(Pair::failed_beyond).fold(f64::NEG_INFINITY, f64::max);
    let note = "share of calls that are not served, less Waterfall's; the worst scenario";
    report.figure("failed_vs_waterfall", failed, Some(FAILED_BEYOND_WATERFALL), note);
    let peaks: Vec<f64> = pairs.iter().filter(|pair| pair.has_peak).map(Pair::latency_ratio).collect();
    let mean = (peaks.iter().map(|ratio| ratio.ln()).sum::<f64>() / peaks.len().max(1) as f64).exp();
    let note = format!("geometric mean of {} scenarios with a region at three times its load", peaks.len());
    report.figure("mean_vs_waterfall_3x", mean, Some(VS_WATERFALL_3X), note);
    egress(&mut report, &pairs);
    capacity(&mut report)?;
    Ok(report)
}

fn egress(report: &mut Report, pairs: &[Pair]) {
    let partial = pairs.iter().filter(|pair| pair.is_partial && pair.theirs.egress > 0.0);
    let worst = partial.map(|pair| (pair.ours.egress / pair.theirs.egress, &pair.name));
    match worst.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((ratio, name)) => {
            report.figure(
                "egress_vs_waterfall",
                ratio,
                Some(EGRESS),
                format!("the worst partly replicated scenario, {name}"),
            );
        }
        None => report.unmeasured("egress_vs_waterfall", "no scenario is partly replicated"),
    }
}

fn capacity(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let scenario: Scenario = serde_saphyr::from_str(APPLICATIONS[1])?;
    let usual = scenario.variant(USUAL).ok_or("app-boutique has no variant 'usual'")?;
    let factors = capacity_factor(&usual, false).zip(capacity_factor(&usual, true));
    let (factor, all) = factors.ok_or("no number of servers survives the loss of a region")?;
    let note = format!("app-boutique, calls of lower priorities may be shed; {all:.2} if none may");
    report.figure("capacity_factor", factor, Some(CAPACITY), note);
    Ok(())
}
