//! What the optimizer does where its model is wrong.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::application::{Measured, Planner, Scenario, play};

fn scenario(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../scenarios/{name}.yaml"));
    let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    scenario.validate().unwrap();
    scenario
}

fn measure(scenario: &Scenario, planner: Planner) -> Measured {
    play(scenario, planner, |_| {}).unwrap()
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    let faults = scenario("app-faults");
    let mut all = faults.variants();
    all.push(scenario("app-cache"));
    all.push(scenario("app-contention"));
    let only = std::env::var("ONLY").unwrap_or_default();
    for scenario in all.iter().filter(|one| one.name.contains(&only)) {
        for planner in [Planner::Rings, Planner::Optimizer, Planner::Oracle] {
            let at = std::time::Instant::now();
            let one = measure(scenario, planner);
            let windows: Vec<String> =
                one.windows.iter().map(|window| format!("{:.0}", window.mean_ms)).collect();
            println!(
                "{} {planner:?}: {:.2} ms, failed {} of {} ({:.1} s) | {}",
                scenario.name,
                one.mean_ms,
                one.failed + one.dropped,
                one.calls,
                at.elapsed().as_secs_f64(),
                windows.join(" ")
            );
            for change in one.tables.iter().rev().take(6).filter(|_| std::env::var("TABLES").is_ok()) {
                println!("   {:.0} {} {} {:?}", change.at, change.service, change.from, change.shares);
            }
        }
    }
}
