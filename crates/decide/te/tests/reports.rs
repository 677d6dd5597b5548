//! What the planner makes of reports that are true and misleading, or plausible and wrong.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::World;
use fairmesh_te::{Observation, Plan, WHOLE};

/// A round of a second, of reports that were changed.
fn second(world: &mut World, change: impl FnOnce(&mut Observation)) -> Plan {
    let mut observation = world.observation();
    change(&mut observation);
    let plan = world.plan(&observation);
    world.now_ms -= 4_000;
    assert_eq!(plan.refusal, None);
    plan
}

/// The greatest dropped share of a class.
fn dropped(world: &World, class: usize) -> f64 {
    let of = |source| f64::from(world.state.tables().of(source, class).dropped) / f64::from(WHOLE);
    (0..world.power.len()).map(of).fold(0.0, f64::max)
}

/// Five regions, two of which are lost: the others have room for all calls but a few of the lowest class.
fn after_crashes() -> World {
    let mut world = World::new(vec![100.0; 5], vec![vec![18.5; 3]; 5]);
    (0..20).for_each(|_| drop(second(&mut world, |_| {})));
    (world.power[3], world.power[4]) = (0.0, 0.0);
    (0..20).for_each(|_| drop(second(&mut world, |_| {})));
    assert!(dropped(&world, 2) > 0.0 && dropped(&world, 1) == 0.0, "{:?}", world.state.tables());
    world
}

#[test]
fn backlog_of_a_full_region_makes_no_call_dearer() {
    let mut world = after_crashes();
    let before = dropped(&world, 2);
    // Servers work on the calls that waited for them, and fewer arrive.
    for round in 0..20 {
        let plan = second(&mut world, |observation| {
            let servers = observation.regions[1].servers.as_mut().unwrap();
            servers.received *= 0.65;
            // The last report is of an interval in which the backlog ended.
            servers.load = if round < 19 { 1.0 } else { 0.8 };
        });
        assert!(plan.predicted[1] < 0.91, "{plan:?}");
        assert_eq!(dropped(&world, 1), 0.0, "{:?}", world.state.tables());
        assert!(dropped(&world, 2) <= before + 0.02, "{:?}", world.state.tables());
    }
}

#[test]
fn calls_that_end_in_greater_number_than_they_arrive_are_a_backlog() {
    let mut world = World::new(vec![100.0; 3], vec![vec![60.0]; 3]);
    (0..20).for_each(|_| drop(second(&mut world, |_| {})));
    // Concurrency is what such servers are short of: their CPU is not full while they work on what has waited.
    for _ in 0..10 {
        let plan = second(&mut world, |observation| {
            let servers = observation.regions[1].servers.as_mut().unwrap();
            (servers.load, servers.received, servers.answered) = (0.8, 50.0, 80.0);
        });
        assert_eq!(plan.shifts, [], "{plan:?}");
    }
}

#[test]
fn region_that_stays_full_has_dearer_calls() {
    let mut world = World::new(vec![100.0; 3], vec![vec![60.0]; 3]);
    (0..20).for_each(|_| drop(second(&mut world, |_| {})));
    let mut away = 0;
    // A release makes each call twice as dear in one region.
    for _ in 0..60 {
        second(&mut world, |observation| {
            let servers = observation.regions[1].servers.as_mut().unwrap();
            servers.load = (servers.load * 2.0).min(1.0);
        });
        away = WHOLE - world.state.tables().of(1, 0).shares[1];
    }
    assert!(away > 3_000, "{away}");
}
