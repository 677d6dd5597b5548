//! Calls across regions: what the scenarios' expectations cannot say.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{fs, path::Path};

use fairmesh_sim::{Round, Scenario, TrafficReport, run};

fn play(name: &str) -> TrafficReport {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../scenarios/{name}.yaml"));
    let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    run(&scenario, |_| {}).unwrap().report.traffic.unwrap()
}

fn until(report: &TrafficReport, seconds: f64) -> impl Iterator<Item = &Round> {
    report.rounds.iter().filter(move |round| round.at <= seconds)
}

#[test]
fn shifts_begin_at_the_threshold() {
    let report = play("region-incident");
    assert!(until(&report, 120.0).all(|round| round.shifts.is_empty() && round.all_local == 1.0));
    let first = report.rounds.iter().find(|round| !round.shifts.is_empty()).unwrap();
    assert!((120.0..=130.0).contains(&first.at) && first.loads[0] > report.threshold, "{first:?}");
    assert!(first.shifts.iter().all(|shift| shift.starts_with("r0 default")), "{:?}", first.shifts);
}

#[test]
fn a_drain_ends_where_the_others_have_no_room() {
    let report = play("region-drain-full");
    // The end of the last interval is that of the simulation, before anything is planned from it.
    let last_keep = |report: &TrafficReport| report.rounds.iter().rev().find_map(|round| round.keep);
    let keep = last_keep(&report).unwrap();
    assert!((0.75..0.85).contains(&keep), "{keep}");
    let report = play("region-drain");
    assert_eq!(last_keep(&report), Some(0.0));
    assert!(report.rounds.last().unwrap().local[0] < 0.001);
}

#[test]
fn a_lack_of_capacity_drops_the_lowest_class_alone() {
    let report = play("region-shortage");
    assert_eq!(report.most_dropped[..2], [0.0, 0.0]);
    assert!((0.3..0.7).contains(&report.most_dropped[2]), "{:?}", report.most_dropped);
}

#[test]
fn no_table_changes_while_reports_are_wrong() {
    let report = play("region-lies");
    let wrong = report.rounds.iter().filter(|round| round.refusal.is_some());
    assert!(wrong.clone().count() > 25);
    assert!(wrong.clone().all(|round| round.shifts.is_empty()));
}

#[test]
fn no_zone_is_loaded_above_the_others_and_as_many_calls_stay_as_that_allows() {
    let report = play("region-zones");
    // Of 35 callers 10, 20 and 5; of 12 servers 6, 3 and 3.
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
