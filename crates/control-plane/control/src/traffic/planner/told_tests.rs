//! What the planner tells of its rounds: why it keeps tables, and what it changed.

use fairmesh_model::{CallPath, CallRates, LoadMetric, ServerRates, ServiceName, Traffic, TrafficPlanner};

use super::*;
use crate::traffic::facts::RegionEndpoints;

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

/// A service with four servers at a tenth of their CPU in `eu`, which report no metric, and calls to them.
fn facts() -> ServiceFacts {
    let mut facts = ServiceFacts {
        traffic: Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() },
        ..ServiceFacts::default()
    };
    let endpoints = RegionEndpoints { serving: 4, power: 4.0, ..RegionEndpoints::default() };
    facts.endpoints.insert(region("eu"), endpoints);
    facts.reports.heard.insert(region("eu"));
    let servers = ServerRates {
        servers: 4,
        counting: 4,
        measured: 4,
        received: 100_000,
        cpu_millicores: 400,
        limit_millicores: 4_000,
        ..ServerRates::default()
    };
    facts.reports.servers.insert(region("eu"), servers);
    let path = CallPath {
        service: ServiceName::new("shop/cart").unwrap(),
        from: region("eu"),
        to: Some(region("eu")),
        class: None,
        caller: None,
        from_zone: None,
        to_zone: None,
    };
    let calls = CallRates { offered: 100_000, attempts: 100_000, ..CallRates::default() };
    facts.reports.calls.push((path, calls));
    facts
}

/// A planner that has made a round each second of some.
fn planner(facts: &ServiceFacts) -> (ServicePlanner, Now) {
    let mut planner = ServicePlanner::new();
    let mut now = Now { ms: 20_000, started_ms: 0, wall_ms: 1_000_000 };
    for _ in 0..5 {
        now = Now { ms: now.ms + 1_000, wall_ms: now.wall_ms + 1_000, ..now };
        planner.round(facts, &TopologyFacts::default(), now);
    }
    (planner, now)
}

#[test]
fn a_metric_that_no_server_reports_is_named_and_cpu_is_not_taken_for_it() {
    let mut facts = facts();
    let (mut planner, now) = planner(&facts);
    assert_eq!(planner.refused, None);
    facts.traffic.load = Some(LoadMetric { name: "queue".to_owned(), full_scale: 100 });
    planner.round(&facts, &TopologyFacts::default(), Now { ms: now.ms + 1_000, ..now });
    let refused = planner.refused.unwrap();
    assert_eq!(refused.text, "0 of 4 servers of region eu report the metric 'queue' (traffic.load)");
    assert_eq!(refused.reason, "servers_missing");
}

#[test]
fn the_last_changes_of_a_region_outlive_many_of_another() {
    let (mut planner, _) = planner(&facts());
    let note = |from: &str, at_ms| ShiftNote { at_ms, from: region(from), class: None, text: String::new() };
    planner.shifts = (0..20).map(|at| note("eu", at)).collect();
    for at in 0..200 {
        planner.shifts.push_front(note("us", at));
        planner.forget_shifts();
    }
    let of = |from: &str| planner.shifts.iter().filter(|shift| shift.from == region(from)).count();
    assert_eq!((of("eu"), of("us")), (MIN_SHIFTS, MAX_SHIFTS));
}
