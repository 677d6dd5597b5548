//! Runs scenarios using only the decision crates, which are quick to build while they are being changed.

#![allow(clippy::disallowed_methods, reason = "it tells how fast it is")]

use std::time::Instant;

use fairmesh_sim::{Scenario, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let scenario: Scenario = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
        let began = Instant::now();
        let report = run(&scenario, |_| {})?.report;
        let rate = report.requests as f64 / began.elapsed().as_secs_f64();
        println!("{path}: {rate:.0} requests per second of wall time");
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(())
}
