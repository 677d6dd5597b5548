//! The score policy equalises utilisation: for any hardware, it must do so better than least request without knowledge
//! of hosts.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use fairmesh_model::spec::BalancingSpec;
use fairmesh_sim::{Contender, Scenario, compare};

/// A fleet at half load in which a quarter of the machines are twice as fast as the others.
fn fleet(name: &str, weight: &str, wait: &str) -> Scenario {
    let text = format!(
        "
name: {name}
duration: 60s
warmup: 30s
window: 30s
policy: {{balancing: {{subset: 20}}}}
hosts:
  slow: {{speed: 1.0}}
  fast: {{speed: 2.0{weight}}}
servers:
  - {{name: fast, count: 10, cores: 2, host: fast}}
  - {{name: slow, count: 30, cores: 2, host: slow}}
callers:
  - {{name: web, count: 30, rate: 166, requests: [{{cpu: {{exponential: 10ms}}{wait}}}]}}
"
    );
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn score_policy_equalises_utilisation_of_different_machines() {
    let fleets = [
        fleet("two-speeds", "", ""),
        fleet("unknown-and-waiting", ", weight: 1000", ", wait: {exponential: 100ms}"),
    ];
    let least_request = BalancingSpec { policy: Some("leastRequest".into()), ..BalancingSpec::default() };
    let contenders = [
        Contender { name: "default".into(), ..Contender::default() },
        Contender {
            name: "least request".into(),
            balancing: least_request,
            blind: true,
            ..Contender::default()
        },
    ];
    for reports in compare(&fleets, &contenders, 2, || {}).unwrap() {
        let (ours, theirs) = (&reports[0], &reports[1]);
        let (cv, p99, other) = (ours.cv.unwrap(), ours.p99_utilisation, theirs.p99_utilisation);
        assert!(
            cv < 0.1 && p99 < 0.75 * other,
            "{}: variation {cv}, p99 {p99} against {other}",
            ours.scenario
        );
    }
}
