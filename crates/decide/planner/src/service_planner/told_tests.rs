//! What the planner tells of its rounds: why it keeps tables, and what it changed.

use fairmesh_model::{CallPath, CallRates, LoadMetric, ServerRates, ServiceName, Traffic, TrafficPlanner};

use super::*;
use crate::facts::{RegionEndpoints, StoredTable};

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

/// A service with four servers at a tenth of their CPU in `eu`, which report no metric, and calls to them.
fn facts() -> ServiceFacts {
    let mut facts = ServiceFacts {
        traffic: Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() },
        ..ServiceFacts::default()
    };
    let mut endpoints = RegionEndpoints::default();
    (0..4).for_each(|_| endpoints.add(None, Some(1_000)));
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
        parent: None,
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
        let mut facts = facts.clone();
        facts.reports.at_ms = now.ms;
        planner.round(&facts, &TopologyFacts::default(), now);
    }
    (planner, now)
}

#[test]
fn missing_load_metric_is_named_and_not_replaced_by_cpu() {
    let mut facts = facts();
    let (mut planner, now) = planner(&facts);
    assert_eq!(planner.refused, None);
    facts.traffic.load = Some(LoadMetric { name: "queue".to_owned(), full_scale: 100 });
    facts.reports.at_ms = now.ms + 1_000;
    planner.round(&facts, &TopologyFacts::default(), Now { ms: now.ms + 1_000, ..now });
    let refused = planner.refused.unwrap();
    assert_eq!(refused.text, "0 of 4 servers of region eu report the metric 'queue' (traffic.load)");
    assert_eq!(refused.reason, "servers_missing");
}

#[test]
fn planning_round_within_second_is_due_only_on_growth_and_records() {
    let (topology, facts) = (TopologyFacts::default(), facts());
    let (planner, now) = planner(&facts);
    let later = |ms| Now { ms: now.ms + ms, ..now };
    // The last round had the reports of its own time.
    let with = |calls: u64, change: &dyn Fn(&mut ServiceFacts)| {
        let mut facts = ServiceFacts { version: facts.version + 1, ..facts.clone() };
        facts.reports.at_ms = now.ms + 500;
        facts.reports.calls[0].1.offered = calls;
        change(&mut facts);
        facts
    };
    let reported = with(105_000, &|_| ());
    assert!(!planner.is_due(&reported, &topology, later(500)), "five percent more calls");
    assert!(planner.is_due(&reported, &topology, later(USUAL_INTERVAL_MS)));
    assert!(planner.is_due(&with(150_000, &|_| ()), &topology, later(500)), "half as many calls again");
    let lost = with(100_000, &|facts| facts.endpoints.clear());
    assert!(planner.is_due(&lost, &topology, later(500)), "no endpoint is left");
    let edited = with(100_000, &|facts| facts.reports.at_ms = now.ms);
    assert!(planner.is_due(&edited, &topology, later(500)), "only records have changed");
    let farther = TopologyFacts { version: 1, ..TopologyFacts::default() };
    assert!(planner.is_due(&reported, &farther, later(500)));
}

#[test]
fn planning_round_is_due_on_changed_facts_moving_calls_and_timeout() {
    let topology = TopologyFacts::default();
    let mut facts = facts();
    let (mut planner, mut now) = planner(&facts);
    let written = |planner: &mut ServicePlanner, facts: &mut ServiceFacts, now: &mut Now| {
        now.ms += 1_000;
        facts.reports.at_ms = now.ms;
        let writes = planner.round(facts, &topology, *now);
        for write in &writes {
            let stored = StoredTable { table: write.table.clone().unwrap(), revision: 1 };
            facts.tables.insert(write.from.clone(), stored);
        }
        planner.written(facts, &writes, *now);
    };
    written(&mut planner, &mut facts, &mut now);
    let later = |ms| Now { ms: now.ms + ms, ..now };
    assert!(planner.is_due(&facts, &topology, later(1_000)), "the last round has written tables");
    written(&mut planner, &mut facts, &mut now);
    let later = |ms| Now { ms: now.ms + ms, ..now };
    assert!(!planner.is_due(&facts, &topology, later(1_000)));
    assert!(!planner.is_due(&facts, &topology, later(QUIET_INTERVAL_MS - 1)));
    assert!(planner.is_due(&facts, &topology, later(QUIET_INTERVAL_MS)), "reports may have stopped");
    let changed = ServiceFacts { version: facts.version + 1, ..facts.clone() };
    assert!(planner.is_due(&changed, &topology, later(1_000)));
    let farther = TopologyFacts { version: 1, ..TopologyFacts::default() };
    assert!(planner.is_due(&facts, &farther, later(1_000)));
}

#[test]
fn latest_shift_notes_of_region_survive_many_elsewhere() {
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
