//! Properties of a simulation under any policy: it is repeatable, fair without disturbances, and agrees with queueing
//! theory.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use fairmesh_sim::{Scenario, SimulationResult, run};

fn scenario(text: &str) -> Scenario {
    serde_saphyr::from_str(text).unwrap()
}

fn play(scenario: &Scenario) -> SimulationResult {
    run(scenario, |_| {}).unwrap()
}

fn small() -> Scenario {
    scenario(
        "
name: small
duration: 20s
warmup: 5s
window: 5s
servers:
  - {name: a, count: 10, cores: 2, drift: [0.8, 1.2], neighbours: {share: 0.3, noisy: 2s, quiet: 5s}}
callers:
  - {name: web, count: 20, rate: 40, burst: 2, requests: [{cpu: {lognormal: {mean: 10ms, sigma: 1}}}]}
events:
  - {at: 10s, to: a, action: {rollout: {batch: 2, every: 1s, drain: 500ms}}}
",
    )
}

#[test]
fn results_depend_only_on_the_seed() {
    let json = |scenario: &Scenario| serde_json::to_string(&play(scenario).report).unwrap();
    let mut scenario = small();
    let first = json(&scenario);
    assert_eq!(first, json(&scenario));
    scenario.seed = 2;
    assert_ne!(first, json(&scenario));
}

#[test]
fn simulated_arrivals_are_independent_of_policy() {
    let mut narrow = small();
    narrow.policy.balancing.subset = Some(2);
    let (wide, narrow) = (play(&small()).report, play(&narrow).report);
    assert_ne!(wide.latency, narrow.latency);
    let sum = |report: &fairmesh_sim::Report| report.requests;
    // Only the calls in flight at the end differ.
    assert!(sum(&wide).abs_diff(sum(&narrow)) < 50, "{} and {}", sum(&wide), sum(&narrow));
}

#[test]
fn only_near_servers_are_polled_for_load_in_simulation() {
    let mut scenario = small();
    scenario.events.clear();
    let near = play(&scenario).report;
    let share = near.polls_per_call();
    assert!((0.05..=0.1).contains(&share), "one for ten calls at most: {share}");
    assert!(near.estimates.polled >= near.estimates.polls && near.estimates.cached > 0);
    scenario.network.within = fairmesh_sim::scenario::SimTime::micros(30_000);
    let far = play(&scenario).report;
    assert!(far.polls_per_call() < share / 2.0, "only to find out how far they are: {:?}", far.estimates);
    scenario.policy.balancing = serde_json::from_str(r#"{"score": {"poll": false}}"#).unwrap();
    assert_eq!(play(&scenario).report.estimates, fairmesh_sim::EstimateCounts::default());
}

/// One server with one core and Poisson arrivals: under processor sharing the mean sojourn time is `service / (1 -
/// load)` for every distribution of service times.
#[test]
fn single_server_agrees_with_queueing_theory() {
    for cpu in ["{fixed: 10ms}", "{exponential: 10ms}", "{bimodal: {usual: 5ms, rare: 55ms, share: 0.1}}"] {
        let scenario = scenario(&format!(
            "
name: single
duration: 1000s
warmup: 10s
servers: [{{name: a, count: 1}}]
network: {{within: 0s}}
callers: [{{name: web, count: 1, rate: 60, requests: [{{cpu: {cpu}}}]}}]
"
        ));
        let report = play(&scenario).report;
        let latency = report.latency.unwrap();
        assert!((report.mean_utilisation - 0.6).abs() < 0.01, "{}", report.mean_utilisation);
        assert!((latency.mean / 25.0 - 1.0).abs() < 0.05, "{cpu}: {}", latency.mean);
    }
}

#[test]
fn simulated_waiting_requests_use_no_core() {
    let scenario = scenario(
        "
name: waiting
duration: 60s
warmup: 10s
window: 10s
servers: [{name: a, count: 1}]
network: {within: 2ms}
callers: [{name: web, count: 1, rate: 20, requests: [{cpu: {fixed: 1ms}, wait: {fixed: 500ms}}]}]
",
    );
    let report = play(&scenario).report;
    assert!((report.mean_utilisation - 0.02).abs() < 0.002, "{}", report.mean_utilisation);
    let latency = report.latency.unwrap();
    assert!((503.0..504.0).contains(&latency.p50), "{latency:?}");
}

#[test]
fn slow_calls_time_out_and_full_servers_respond_503() {
    let overloaded = scenario(
        "
name: overloaded
duration: 30s
warmup: 10s
policy: {timeout: 1s}
servers: [{name: a, count: 1}]
callers: [{name: web, count: 1, rate: 200, requests: [{cpu: {fixed: 10ms}}]}]
",
    );
    let report = play(&overloaded).report;
    assert!(report.outcomes.timed_out > 1000, "{:?}", report.outcomes);
    let mut limited = overloaded;
    limited.servers[0].limit = serde_saphyr::from_str("{concurrent: 4, queue: 4}").unwrap();
    let report = play(&limited).report;
    assert_eq!(report.outcomes.timed_out, 0);
    let half = report.failed;
    assert!((0.45..0.55).contains(&half), "half of the calls cannot be served: {half}");
}

#[test]
fn simulated_crash_fails_calls_and_servers_recover() {
    let scenario = scenario(
        "
name: crash
duration: 60s
warmup: 5s
servers: [{name: a, count: 10, startsIn: 1s}]
callers: [{name: web, count: 20, rate: 50, requests: [{cpu: {exponential: 5ms}}]}]
events: [{at: 20s, to: a, count: 3, action: {crash: {back: 5s}}}]
expect: {recoveredWithin: 20s, errorsBelow: 0.01}
",
    );
    let report = play(&scenario).report;
    assert!(report.outcomes.broken > 0, "{:?}", report.outcomes);
    assert_eq!(report.recoveries.len(), 3);
    assert_eq!(report.missed, Vec::<String>::new());
}

#[test]
fn unmet_scenario_expectations_are_reported() {
    let mut scenario = small();
    scenario.expect = serde_saphyr::from_str("{cvBelow: 0.000001, recoveredWithin: 10s}").unwrap();
    let missed = play(&scenario).report.missed;
    assert!(missed[0].starts_with("the variation of utilisation is 0."), "{missed:?}");
    scenario.window = serde_saphyr::from_str("5m").unwrap();
    scenario.expect = serde_saphyr::from_str("{p99UtilisationBelow: 0.5}").unwrap();
    let missed = play(&scenario).report.missed;
    assert!(missed[0].ends_with("nothing was measured"), "no window is whole: {missed:?}");
}

#[test]
fn invalid_scenario_is_rejected_with_field() {
    type Spoil = fn(&mut Scenario);
    let cases: [(&str, Spoil); 4] = [
        ("servers[0].host", |s| s.servers[0].host = Some("nowhere".into())),
        ("callers[0].rate", |s| s.callers[0].rate = 0.0),
        ("events[0].to", |s| s.events[0].to = Some("b".into())),
        ("duration", |s| s.duration = s.warmup),
    ];
    for (field, spoil) in cases {
        let mut scenario = small();
        spoil(&mut scenario);
        let refusal = run(&scenario, |_| {}).unwrap_err();
        assert_eq!(refusal.field, field);
    }
}
