//! `bench/run te`: the optimizer of call graphs by size: SLATE's largest application, and one of 100 regions, 8 classes
//! and 500 services.
//!
//! Runs only the planner: problems are built beforehand, and plans are not applied. Times are thread CPU times.

use std::error::Error;

use fairmesh_sim::application::RandomApplication;
use fairmesh_te::optimizer::{Caller, Effort, Plan, Problem, optimize};

use crate::{process_usage::own_cpu, report::Report};

/// Time of SLATE's solver for 10 regions, 8 classes and 10 services, from its authors' scalability results.
const SLATE_SECONDS: f64 = 7.052;
/// Goals: ratio to SLATE's time; seconds; relative gap of the objective.
const VS_SLATE: f64 = 0.01;
const COLD_SECONDS: f64 = 10.0;
const RESOLVE_SECONDS: f64 = 2.0;
const GAP: f64 = 0.01;
/// Maximum relative change of each region's demand before the next plan.
const CHANGE: f64 = 0.1;
/// Number of plans. The median is reported.
const RUNS: usize = 5;

/// SLATE's scalability graph: a service calls three others, and the first of them calls three more.
fn slate() -> RandomApplication {
    RandomApplication {
        regions: 10,
        services: 10,
        classes: 8,
        roots: 1,
        layers: 0,
        placed: 0.9,
        load: 0.55,
        given: 0.0,
        kinks: Vec::new(),
    }
}

fn large(quick: bool) -> RandomApplication {
    let (regions, services) = if quick { (30, 100) } else { (100, 500) };
    RandomApplication { regions, services, roots: services / 25, layers: 5, placed: 0.3, ..slate() }
}

/// Plans, and returns the time in seconds with the plan.
fn timed(problem: &Problem, last: Option<&Plan>) -> Result<(f64, Plan), Box<dyn Error>> {
    let before = own_cpu();
    let plan = optimize(problem, last, Effort { gap: GAP, ..Effort::default() }, &mut |_| true)?;
    let seconds = (own_cpu() - before).as_secs_f64();
    match plan.is_usable(problem.preferences.ceiling) {
        true => Ok((seconds, plan)),
        false => Err(format!("a plan loads a pool to {:.4}", plan.greatest_load()).into()),
    }
}

/// Scales the demand of each region by a factor that depends on region and run.
fn change(problem: &mut Problem, run: usize) {
    for edge in &mut problem.edges {
        let Caller::Clients { demand, .. } = &mut edge.caller else { continue };
        for (region, rate) in demand.iter_mut().enumerate() {
            let wave = ((region * 37 + run * 101) % 21) as f64 / 10.0 - 1.0;
            *rate *= 1.0 + CHANGE * wave;
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the benchmark.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new("te");
    let seeds = 1..=RUNS as u64;
    let small: Vec<(f64, Plan)> =
        seeds.map(|seed| timed(&slate().problem(seed), None)).collect::<Result<_, _>>()?;
    let seconds = median(small.iter().map(|(seconds, _)| *seconds).collect());
    let note = format!(
        "of {SLATE_SECONDS} s, which is by its authors on another machine, with linear latencies; {:.1} ms to a gap of 1 %",
        seconds * 1e3
    );
    report.figure("solve_vs_slate", seconds / SLATE_SECONDS, Some(VS_SLATE), note);

    let shape = large(quick);
    let mut problem = shape.problem(1);
    let (cold, mut plan) = timed(&problem, None)?;
    let mut gap = small.iter().map(|(_, plan)| plan.gap()).fold(plan.gap(), f64::max);
    let mut resolves = Vec::new();
    for run in 0..RUNS {
        change(&mut problem, run);
        let (seconds, next) = timed(&problem, Some(&plan))?;
        resolves.push(seconds);
        gap = gap.max(next.gap());
        plan = next;
    }
    let size = format!("{} regions × {} services × {} classes", shape.regions, shape.services, shape.classes);
    let scaled = if quick { "; --quick takes a smaller application, so that goals say little" } else { "" };
    let note = format!("s, from nothing; {size}, 30 % placed{scaled}");
    report.figure("cold_s_100x500x8", cold, Some(COLD_SECONDS), note);
    let note = format!("s, median, after ±10 % of demand by region; {size}{scaled}");
    report.figure("resolve_s_100x500x8", median(resolves), Some(RESOLVE_SECONDS), note);
    report.figure(
        "gap",
        gap,
        Some(GAP),
        "part of the objective that is not certain, the greatest of all plans",
    );
    Ok(report)
}
