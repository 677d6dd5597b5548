//! Plays applications by each planner with only the crates that decide: quick to build while those are being changed.

#![allow(clippy::disallowed_methods, reason = "it tells how fast it is")]

use std::time::Instant;

use fairmesh_sim::application::{Planner, Scenario, plan, play};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let scenario: Scenario = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
        let predicted = plan(&scenario)?;
        for one in &predicted.planners {
            println!(
                "{:15} predicted {:8.1} ms egress {:.4} load {:.2}",
                one.planner,
                one.mean_ms,
                one.egress * 3600.0,
                one.greatest_load
            );
        }
        for planner in Planner::ALL {
            let began = Instant::now();
            let one = play(&scenario, planner, |_| {})?;
            println!(
                "{:15} mean {:8.1} p50 {:8.1} p99 {:8.1} egress {:.4} load {:.2} calls {} failed {} dropped {} tables {} {:.1} s",
                one.planner,
                one.mean_ms,
                one.p50_ms,
                one.p99_ms,
                one.egress * 3600.0,
                one.greatest_load,
                one.calls,
                one.failed,
                one.dropped,
                one.tables.len(),
                began.elapsed().as_secs_f64()
            );
            let windows: Vec<String> = one.windows.iter().map(|w| format!("{:.0}", w.mean_ms)).collect();
            println!("    {}", windows.join(" "));
            if std::env::var("TABLES").is_ok() {
                for t in one.tables.iter().rev().take(40) {
                    println!("    {t:?}");
                }
            }
        }
    }
    Ok(())
}
