//! `te-app --part real`, with times in which little is learnt: all processes work together.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, process::Command};

use serde_json::Value;

#[test]
fn real_application_serves_clients_under_waterfall_and_optimizer() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("figures.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_fairmesh-bench"));
    bench.args(["te-app", "--part", "real", "--quick", "--json"]).arg(&json);
    // It exits with 1 where the optimizer has not learnt enough for a prediction.
    let said = bench.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    let text = fs::read(&json).unwrap_or_else(|_| panic!("there are no figures: {said}"));
    let report: Value = serde_json::from_slice(&text).unwrap();
    for phase in ["usual", "peak"] {
        let ratio = &report["figures"][format!("real_app_classes_{phase}")];
        assert!(ratio.as_f64().is_some_and(|ratio| ratio > 0.0 && ratio.is_finite()), "{report}");
    }
    assert_eq!(said.matches("calls, 0 failed)").count(), 4, "{said}");
    let left = &report["figures"]["real_left_to_rings"];
    assert!(left.as_f64().is_some_and(|left| left <= 1.0), "{report}");
    assert!(!said.contains("has no planner"), "{said}");
}
