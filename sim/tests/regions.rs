//! Calls across regions: properties that the scenarios' expectations cannot express.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::{
    Round, Scenario, TrafficReport, run,
    scenario::{PlannerKind, RegionReportFault, SimTime},
};

fn scenario(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../scenarios/{name}.yaml"));
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn play_scenario(scenario: &Scenario) -> TrafficReport {
    run(scenario, |_| {}).unwrap().report.traffic.unwrap()
}

fn play(name: &str) -> TrafficReport {
    play_scenario(&scenario(name))
}

fn until(report: &TrafficReport, seconds: f64) -> impl Iterator<Item = &Round> {
    report.rounds.iter().filter(move |round| round.at <= seconds)
}

#[test]
fn calls_move_to_other_regions_at_load_threshold() {
    let report = play("region-incident");
    assert!(until(&report, 120.0).all(|round| round.shifts.is_empty() && round.all_local == 1.0));
    let first = report.rounds.iter().find(|round| !round.shifts.is_empty()).unwrap();
    assert!((120.0..=130.0).contains(&first.at) && first.loads[0] > report.threshold, "{first:?}");
    assert!(first.shifts.iter().all(|shift| shift.starts_with("r0 default")), "{:?}", first.shifts);
}

#[test]
fn region_drain_stops_when_other_regions_are_full() {
    let report = play("region-drain-full");
    // The last interval ends with the simulation, before a plan is made from it.
    let last_keep = |report: &TrafficReport| report.rounds.iter().rev().find_map(|round| round.keep);
    let keep = last_keep(&report).unwrap();
    assert!((0.75..0.85).contains(&keep), "{keep}");
    let report = play("region-drain");
    assert_eq!(last_keep(&report), Some(0.0));
    assert!(report.rounds.last().unwrap().local[0] < 0.001);
}

#[test]
fn lack_of_capacity_drops_only_calls_of_lowest_priority_class() {
    let report = play("region-shortage");
    assert_eq!(report.most_dropped[..2], [0.0, 0.0]);
    assert!((0.3..0.7).contains(&report.most_dropped[2]), "{:?}", report.most_dropped);
}

/// The intervals for which the planner got only faulty reports, by the scenario's faults.
fn rounds_within(report: &TrafficReport, from: f64, to: f64) -> impl Iterator<Item = &Round> {
    report.rounds.iter().filter(move |round| from <= round.at && round.at < to)
}

#[test]
fn no_region_table_changes_while_reports_are_wrong() {
    let scenario = scenario("region-lies");
    let faults = scenario.traffic.as_ref().unwrap().faults.clone();
    let report = play_scenario(&scenario);
    assert_eq!(faults.len(), 6);
    for fault in faults {
        let from = fault.at.as_seconds();
        // A missing report is noticed only when the previous one is ten seconds old.
        let noticed = if fault.are == RegionReportFault::Missing { from + 15.0 } else { from };
        let to = from + fault.duration.as_seconds();
        let wrong: Vec<&Round> = rounds_within(&report, noticed, to).collect();
        assert!(wrong.len() >= 3, "{fault:?}");
        for round in &wrong {
            assert!(round.refusal.is_some() && round.shifts.is_empty(), "{fault:?}: {round:?}");
        }
        // According to the previous tables, r1's neighbour gets the same part of r1's calls.
        let locals = || rounds_within(&report, noticed + 5.0, to).map(|round| round.local[0]);
        let (least, most) = (locals().fold(1.0, f64::min), locals().fold(0.0, f64::max));
        assert!(most - least < 0.03 && most < 0.95, "{fault:?}: {least} to {most}");
    }
}

#[test]
fn late_traffic_reports_are_used_until_stale() {
    let scenario = scenario("region-late-reports");
    let [late, stale] = &scenario.traffic.as_ref().unwrap().faults[..] else { panic!("two faults") };
    let report = play_scenario(&scenario);
    let begins = |fault: &fairmesh_sim::scenario::RegionFault| fault.at.as_seconds();
    let ends = |fault: &fairmesh_sim::scenario::RegionFault| begins(fault) + fault.duration.as_seconds();
    assert!(rounds_within(&report, begins(late), ends(late)).all(|round| round.refusal.is_none()));
    // The last report in time is ten seconds old by then, and rounds take two seconds.
    let refused: Vec<_> = rounds_within(&report, begins(stale) + 10.0, ends(stale)).collect();
    assert!(refused.len() > 20);
    assert!(refused.iter().all(|round| round.refusal.is_some() && round.shifts.is_empty()));
    let shifted = |round: &&Round| !round.shifts.is_empty();
    assert!(rounds_within(&report, ends(stale), 600.0).any(|round| shifted(&round)), "it goes on");
}

#[test]
fn calls_of_crashed_region_are_spread_over_all_others() {
    let scenario = scenario("region-crash");
    let of_others = |report: &TrafficReport| {
        let from_crash = rounds_within(report, 61.0, 80.0);
        from_crash.flat_map(|round| round.loads[1..].to_vec()).fold(0.0, f64::max)
    };
    let spread = of_others(&play_scenario(&scenario));
    assert!(spread < 0.8, "{spread}");
    let mut alone = scenario;
    alone.traffic.as_mut().unwrap().planner = PlannerKind::None;
    let filled = of_others(&play_scenario(&alone));
    assert!(filled > 0.95, "{filled}");
}

#[test]
fn zones_are_loaded_equally_and_keep_most_of_their_own_calls() {
    let report = play("region-zones");
    // Of 35 callers the zones have 10, 20 and 5; of 12 servers 6, 3 and 3.
    let (calls, power) = ([10.0, 20.0, 5.0].map(|n| n / 35.0), [0.5, 0.25, 0.25]);
    let most: f64 = calls.iter().zip(power).map(|(calls, power)| f64::min(*calls, 1.1 * power)).sum();
    let settled = report.rounds.iter().filter(|round| round.at > 60.0);
    assert!(settled.clone().count() > 20);
    let mean =
        |of: &dyn Fn(&Round) -> f64| settled.clone().map(of).sum::<f64>() / settled.clone().count() as f64;
    let mean_load = mean(&|round| round.loads.iter().zip(power).map(|(load, power)| load * power).sum());
    for zone in 0..3 {
        let load = mean(&|round| round.loads[zone]);
        assert!(load < 1.1 * mean_load, "zone {zone}: {load} of {mean_load}");
    }
    let stays = mean(&|round| round.all_local);
    assert!(stays > 0.95 * most, "{stays} of {most}");
}

#[test]
fn vanished_region_gets_no_calls_until_it_returns() {
    let report = play("region-dark");
    let dark: Vec<&Round> = rounds_within(&report, 64.0, 161.0).collect();
    assert!(dark.len() > 40);
    for round in dark {
        assert!(round.loads[0] == 0.0 && round.loads[1..].iter().all(|load| *load < 0.85), "{round:?}");
        assert_eq!(round.dropped, [0.0], "{round:?}");
    }
    // Its first calls follow the table made for callers without servers, until the planner has received reports about
    // the servers.
    let returned: Vec<&Round> = rounds_within(&report, 168.0, 361.0).collect();
    assert!(returned.len() > 90);
    for round in returned {
        assert!(round.dropped == [0.0] && round.all_local > 0.99, "{round:?}");
    }
}

#[test]
fn one_second_planning_rounds_rarely_rewrite_tables_and_drop_no_more() {
    // Load changes once, or three times and back.
    let scenarios = [
        ("region-domino", 5, 0.0),
        ("region-crash", 15, 0.0),
        ("region-shortage", 5, 0.5),
        ("region-incident", 40, 0.0),
    ];
    for (name, most, dropped) in scenarios {
        let mut scenario = scenario(name);
        scenario.traffic.as_mut().unwrap().every = SimTime::seconds(1);
        let report = play_scenario(&scenario);
        assert!(report.changed <= most, "{name}: {} rounds change tables", report.changed);
        assert!(
            report.most_dropped.iter().all(|share| *share <= dropped),
            "{name}: {:?}",
            report.most_dropped
        );
    }
}

#[test]
fn calls_of_few_callers_succeed_while_planner_widens_their_subsets() {
    let few = scenario("region-few-callers");
    // The calls double after the warm-up, so that the calls until the growth are measured.
    let doubled = 61.0;
    assert!(few.warmup < SimTime::seconds(60));
    let planned = run(&few, |_| {}).unwrap().report;
    assert_eq!(planned.outcomes.failed(), 0, "{:?}", planned.outcomes);
    let rounds = planned.traffic.unwrap().rounds;
    let growth = |shift: &String| shift.contains("callers use 40 instead of 20 of the 64 endpoints of r1");
    let grown = rounds.iter().find(|round| round.shifts.iter().any(growth)).unwrap();
    // Servers average their utilisation over ten seconds, and three reports have to be uneven.
    assert!((doubled..=doubled + 15.0).contains(&grown.at), "{grown:?}");
    assert!(rounds.last().unwrap().all_local > 0.95, "calls come home up to 7 % below the threshold");
    let mut alone = few;
    alone.traffic.as_mut().unwrap().planner = PlannerKind::None;
    let alone = run(&alone, |_| {}).unwrap().report;
    assert!(alone.failed > 0.02, "{}", alone.failed);
}
