//! What the optimizer does where its model is wrong: it corrects the model, solves again, and is compared with the optimizer that knows the fault.
//!
//! `FAIRMESH_SEEDS=10` plays more seeds than the usual three.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::{
    application::{Measured, Planner, Scenario, play},
    scenario::{RegionFault, RegionReportFault, SimTime},
};

/// When faults begin.
const FAULT: f64 = 120.0;

fn scenario(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../scenarios/{name}.yaml"));
    let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    scenario.validate().unwrap();
    scenario
}

fn measure(scenario: &Scenario, planner: Planner) -> Measured {
    play(scenario, planner, |_| {}).unwrap()
}

fn seeds() -> u64 {
    std::env::var("FAIRMESH_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

/// A scenario with each of the seeds.
fn seeded(scenario: &Scenario) -> impl Iterator<Item = Scenario> + '_ {
    (1..=seeds()).map(|seed| {
        let mut scenario = scenario.clone();
        scenario.play.seed = seed;
        scenario
    })
}

/// Mean milliseconds of calls that ended within these seconds.
fn mean(one: &Measured, from: f64, to: f64) -> f64 {
    let windows = || one.windows.iter().filter(|window| window.at > from && window.at <= to);
    let calls: u64 = windows().map(|window| window.calls).sum();
    windows().map(|window| window.mean_ms * window.calls as f64).sum::<f64>() / calls as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The same without reports after the fault, so that the tables stay.
fn frozen(scenario: &Scenario) -> Scenario {
    let mut frozen = scenario.clone();
    let silent = |region: &str| RegionFault {
        at: SimTime::seconds(FAULT as u64),
        region: region.to_owned(),
        are: RegionReportFault::Missing,
        by: None,
        duration: SimTime::seconds(600),
    };
    frozen.play.faults = scenario.topology.regions.iter().map(|region| silent(&region.name)).collect();
    frozen
}

/// After two minutes, the optimizer is about as fast as the one that knows the fault, and has gained most of what can be gained.
fn assert_recovers(variant: &str) {
    let scenario = scenario("app-faults").variant(variant).unwrap();
    let (mut ratios, mut gains) = (Vec::new(), Vec::new());
    for scenario in seeded(&scenario) {
        let [ours, best] = [Planner::Optimizer, Planner::Oracle].map(|planner| measure(&scenario, planner));
        let stale = measure(&frozen(&scenario), Planner::Optimizer);
        ratios.push(mean(&ours, 180.0, 300.0) / mean(&best, 180.0, 300.0));
        let [ours, best, stale] = [ours, best, stale].map(|one| mean(&one, FAULT + 90.0, FAULT + 120.0));
        gains.push((stale - ours) / (stale - best));
        assert!(stale > 1.1 * best, "{variant}: the fault costs nothing: {stale} and {best}");
    }
    println!("{variant}: ratios {ratios:.3?}, gains {gains:.2?}");
    assert!(ratios.iter().all(|ratio| *ratio <= 1.25), "{variant}: {ratios:?}");
    assert!(median(ratios.clone()) <= 1.1, "{variant}: {ratios:?}");
    assert!(median(gains.clone()) >= 0.8, "{variant}: {gains:?}");
}

#[test]
fn optimizer_recovers_after_calls_take_twice_the_cpu() {
    assert_recovers("stale");
}

#[test]
fn optimizer_recovers_after_cores_are_taken_away() {
    assert_recovers("cut");
}

#[test]
fn optimizer_recovers_after_calls_take_300_ms_more() {
    assert_recovers("delay");
}

#[test]
fn corrections_of_accurate_model_do_not_raise_latency() {
    let mut ratios = Vec::new();
    for scenario in seeded(&scenario("app-faults")) {
        let [ours, alone] =
            [Planner::Optimizer, Planner::OptimizerAlone].map(|planner| measure(&scenario, planner));
        ratios.push(mean(&ours, 120.0, 300.0) / mean(&alone, 120.0, 300.0));
    }
    println!("nothing wrong: {ratios:.3?}");
    assert!(median(ratios.clone()) <= 1.02, "{ratios:?}");
}

/// The ratio to the optimizer that corrects nothing.
fn ratios_to_alone(name: &str) -> Vec<f64> {
    let ratio = |scenario: Scenario| {
        let [ours, alone] =
            [Planner::Optimizer, Planner::OptimizerAlone].map(|planner| measure(&scenario, planner));
        ours.mean_ms / alone.mean_ms
    };
    let ratios: Vec<f64> = seeded(&scenario(name)).map(ratio).collect();
    println!("{name}: {ratios:.3?}");
    ratios
}

#[test]
fn optimizer_sends_calls_where_cache_has_their_records() {
    let ratios = ratios_to_alone("app-cache");
    assert!(median(ratios.clone()) < 0.95, "{ratios:?}");
}

#[test]
fn calls_avoid_region_where_another_class_fills_cache() {
    let ratios = ratios_to_alone("app-contention");
    assert!(median(ratios.clone()) < 0.98, "{ratios:?}");
}
