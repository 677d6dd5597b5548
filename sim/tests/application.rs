//! Comparison of application planners.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::application::{Figures, Report, Scenario, plan, waterfall_tables};

fn scenario(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../scenarios/{name}.yaml"));
    let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    scenario.validate().unwrap();
    scenario
}

fn of<'a>(report: &'a Report, planner: &str) -> &'a Figures {
    report.planners.iter().find(|figures| figures.planner == planner).unwrap()
}

/// Makes the load equal everywhere; in the file, Oregon has three times the load of the others.
fn even(mut scenario: Scenario) -> Scenario {
    for clients in &mut scenario.clients {
        let rate = clients.rates["ut"];
        clients.rates.insert("or".into(), rate);
    }
    scenario
}

#[test]
fn optimizer_is_no_slower_than_waterfall_at_equal_load() {
    let report = plan(&even(scenario("app-boutique"))).unwrap();
    let (ours, theirs) = (of(&report, "optimizer"), of(&report, "waterfall"));
    assert!(ours.mean_ms <= 1.02 * theirs.mean_ms, "{} against {}", ours.mean_ms, theirs.mean_ms);
}

#[test]
fn optimizer_is_no_slower_than_waterfall_at_any_threshold_under_peak() {
    // The best threshold depends on load, and an operator would have to find it.
    for threshold in [0.8, 0.9, 0.95] {
        let report = plan(&Scenario { waterfall: threshold, ..scenario("app-boutique") }).unwrap();
        let (ours, theirs) = (of(&report, "optimizer"), of(&report, "waterfall"));
        assert!(
            ours.mean_ms <= 1.02 * theirs.mean_ms,
            "{threshold}: {} and {}",
            ours.mean_ms,
            theirs.mean_ms
        );
        assert!(ours.greatest_load <= 0.9 + 1e-3, "{}", ours.greatest_load);
        assert!(ours.gap.unwrap() <= 1e-3, "{:?}", ours.gap);
    }
}

#[test]
fn mean_latency_of_optimizer_never_exceeds_rings_or_criticality() {
    for report in [plan(&scenario("app-boutique")).unwrap(), plan(&even(scenario("app-boutique"))).unwrap()] {
        let ours = of(&report, "optimizer").mean_ms;
        for planner in ["rings", "criticality"] {
            let theirs = of(&report, planner).mean_ms;
            assert!(ours <= 1.02 * theirs, "{ours} against {theirs} of {planner}");
        }
    }
}

#[test]
fn optimizer_pays_less_egress_under_partial_replication() {
    let report = plan(&scenario("app-cut-point")).unwrap();
    let (ours, theirs) = (of(&report, "optimizer"), of(&report, "waterfall"));
    assert!(ours.egress <= 0.6 * theirs.egress, "{} against {}", ours.egress, theirs.egress);
    let pairs: Vec<_> = ours.pairs.iter().map(|pair| (pair.from.as_str(), pair.to.as_str())).collect();
    assert_eq!(pairs, [("west", "east"), ("east", "west")]);
    let sum: f64 = ours.pairs.iter().map(|pair| pair.dollars).sum();
    assert!((sum - ours.egress).abs() < 1e-9 * ours.egress, "{sum} instead of {}", ours.egress);
}

#[test]
fn optimizer_keeps_simulated_application_within_egress_cap() {
    let mut capped = scenario("app-cut-point");
    // With latency as the only objective, half of the calls cross regions where responses are large.
    capped.topology.egress.as_mut().unwrap().dollars_per_ms = None;
    let free = of(&plan(&capped).unwrap(), "optimizer").egress;
    capped.topology.egress.as_mut().unwrap().cap = Some(format!("{:.12}", free / 2.0 * 3_600.0));
    let report = plan(&capped).unwrap();
    let ours = of(&report, "optimizer");
    assert!(ours.egress <= free / 2.0 * 1.000_001, "{} of {free}", ours.egress);
}

#[test]
fn simulated_parallel_calls_take_as_long_as_slowest() {
    let mut parallel = scenario("app-cut-point");
    let process = parallel.operations[0].calls[0][0].clone();
    parallel.operations[0].calls = vec![vec![process.clone(), process.clone()]];
    let mut sequential = parallel.clone();
    sequential.operations[0].calls = vec![vec![process.clone()], vec![process]];
    for clients in parallel.clients.iter_mut().chain(&mut sequential.clients) {
        clients.rates.values_mut().for_each(|rate| *rate /= 2.0);
    }
    let of_optimizer = |scenario: &Scenario| of(&plan(scenario).unwrap(), "optimizer").classes[0].mean_ms;
    let (short, long) = (of_optimizer(&parallel), of_optimizer(&sequential));
    assert!(long > 1.8 * short && long < 2.0 * short, "{short} and {long}");
}

#[test]
fn invalid_application_is_refused_with_field() {
    let calling = scenario("app-boutique").operations[5].calls.clone();
    let field = |change: &dyn Fn(&mut Scenario)| {
        let mut changed = scenario("app-boutique");
        change(&mut changed);
        changed.validate().unwrap_err().field
    };
    assert_eq!(field(&|s| s.operations[0].calls[0][1].to = "gone".into()), "operations[0].calls[0][1].to");
    assert_eq!(field(&|s| s.services[2].cores.clear()), "services[2].cores");
    assert_eq!(field(&|s| s.clients[0].to = "gone".into()), "clients[0].to");
    assert_eq!(field(&|s| s.operations[3].service = "gone".into()), "operations[3].service");
    assert_eq!(field(&|s| s.operations[6].calls.clone_from(&calling)), "operations[6].calls");
    assert_eq!(field(&|s| s.rings.remove(0).load = 0.0), "rings[0]");
}

#[test]
fn waterfall_tables_of_service_without_servers_are_an_error() {
    let mut scenario = scenario("app-boutique");
    assert!(!waterfall_tables(&scenario).unwrap().is_empty());
    scenario.services[1].cores.clear();
    let refused = waterfall_tables(&scenario).unwrap_err();
    assert!(refused.to_string().contains("has servers in no region"), "{refused}");
}
