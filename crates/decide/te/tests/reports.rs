//! What the planner makes of reports that are true and misleading, or plausible and wrong.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::World;
use fairmesh_te::{Doubt, Observation, Plan, PlannerState, Refusal, Spread, WHOLE};

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
fn backlog_of_full_region_does_not_raise_estimated_cost_per_call() {
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
fn calls_finished_faster_than_they_arrive_count_as_backlog() {
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
fn lasting_full_load_raises_estimated_cost_per_call() {
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

/// A second in which calls of the second region are so many times as dear: its servers answer as many as they can, and the others
/// wait or get no response.
fn dearer_second(world: &mut World, times: f64) {
    second(world, |observation| {
        let power = observation.regions[1].power;
        let servers = observation.regions[1].servers.as_mut().unwrap();
        servers.answered = servers.received.min(power / times);
        servers.failing = 1.0 - servers.answered / servers.received;
        servers.load = (servers.received * times / power).min(1.0);
    });
}

#[test]
fn higher_cost_per_call_is_learned_within_seconds_in_full_region() {
    for times in [1.6, 1.8] {
        let mut world = World::new(vec![100.0; 3], vec![vec![40.0], vec![64.0], vec![40.0]]);
        (0..20).for_each(|_| drop(second(&mut world, |_| {})));
        let load = |world: &World| world.arrivals(world.state.tables())[1] * times / 100.0;
        let (before, seconds) = (load(&world), 8);
        (0..seconds).for_each(|_| dearer_second(&mut world, times));
        assert!(before > 1.0 && load(&world) < 0.95, "{before} to {} of {times}", load(&world));
    }
}

/// A region whose neighbour has too many calls, and three others.
fn beside_an_overloaded_region() -> World {
    let mut world =
        World::new(vec![100.0; 5], vec![vec![95.0], vec![60.0], vec![50.0], vec![50.0], vec![50.0]]);
    (0..30).for_each(|_| drop(second(&mut world, |_| {})));
    world
}

/// The true load of the second region after a minute in which its reports are changed.
fn load_after(world: &mut World, change: impl Fn(&mut Observation)) -> f64 {
    let mut most = 0.0_f64;
    for _ in 0..60 {
        second(world, &change);
        most = most.max(world.loads(world.state.tables())[1]);
    }
    most
}

#[test]
fn region_that_reports_half_its_load_gets_no_more_calls() {
    let mut world = beside_an_overloaded_region();
    let half = |observation: &mut Observation| observation.regions[1].servers.as_mut().unwrap().load /= 2.0;
    let honest = load_after(&mut beside_an_overloaded_region(), |_| {});
    let load = load_after(&mut world, half);
    assert!(load <= honest + 0.01, "{load} instead of {honest}");
    assert_eq!(world.state.doubt(1), Some(Doubt::SeemsCheap));
    // From the start, too.
    let mut world = World { state: PlannerState::new(5, 1), ..world };
    let load = load_after(&mut world, half);
    assert!(load <= honest + 0.01, "{load} instead of {honest}");
    (0..30).for_each(|_| drop(second(&mut world, |_| {})));
    assert_eq!(world.state.doubt(1), None);
}

#[test]
fn low_reported_load_is_believed_if_calls_there_are_faster() {
    let with_time = |of_second: f64| {
        let mut world = beside_an_overloaded_region();
        let load = load_after(&mut world, |observation| {
            for (region, time) in observation.regions.iter_mut().zip([0.1, of_second, 0.1, 0.1, 0.1]) {
                region.servers.as_mut().unwrap().response_time = time;
            }
            observation.regions[1].servers.as_mut().unwrap().load /= 2.0;
        });
        (load, world.state.doubt(1))
    };
    let (load, doubt) = with_time(0.06);
    assert!(load > 0.8 && doubt.is_none(), "{load}");
    let (load, doubt) = with_time(0.1);
    assert!(load < 0.7 && doubt.is_some(), "{load}");
}

/// What callers of a region see that reach only so much of its capacity.
fn reach(observation: &mut Observation, region: usize, reachable: f64) {
    let servers = observation.regions[region].servers.as_mut().unwrap();
    servers.failing = (1.0 - reachable / servers.load).max(0.0);
}

#[test]
fn region_with_many_failed_calls_is_doubted_until_calls_succeed() {
    let mut world = World::new(vec![100.0; 3], vec![vec![55.0], vec![40.0], vec![40.0]]);
    (0..30).for_each(|_| drop(second(&mut world, |_| {})));
    for _ in 0..30 {
        // The regions that its calls would go to are reached as little.
        assert_eq!(second(&mut world, |observation| reach(observation, 0, 0.4)).shifts, []);
    }
    assert_eq!(world.state.doubt(0), Some(Doubt::Fails));
    (0..60).for_each(|_| drop(second(&mut world, |_| {})));
    assert_eq!(world.state.doubt(0), None);
}

#[test]
fn region_without_calls_is_not_doubted_for_failures() {
    let mut world = World::new(vec![100.0; 3], vec![vec![40.0], vec![40.0], vec![0.0]]);
    for _ in 0..10 {
        // Load falls: more calls end than begin.
        second(&mut world, |observation| {
            let others = &mut observation.regions[..2];
            others.iter_mut().for_each(|region| region.servers.as_mut().unwrap().failing = -1.0);
        });
        assert_eq!(world.state.doubt(2), None);
    }
}

#[test]
fn failures_in_all_regions_move_no_calls() {
    let mut world = World::new(vec![100.0; 3], vec![vec![64.0], vec![40.0], vec![40.0]]);
    for _ in 0..60 {
        let plan = second(&mut world, |observation| {
            observation.regions.iter_mut().for_each(|region| region.servers.as_mut().unwrap().failing = 0.3);
        });
        assert_eq!(plan.shifts, []);
    }
}

/// Servers of a region where callers reach this part.
fn reached_in_part(observation: &mut Observation, region: usize, part: f64) {
    let servers = observation.regions[region].servers.as_mut().unwrap();
    servers.spread = Some(Spread { mean: servers.load, p90: (servers.load / part).min(1.0) });
}

#[test]
fn region_reached_in_part_sends_calls_away_below_mean_threshold() {
    let mut world = World::new(vec![100.0; 3], vec![vec![60.0], vec![30.0], vec![30.0]]);
    (0..30).for_each(|_| drop(second(&mut world, |_| {})));
    let mut causes = Vec::new();
    for _ in 0..60 {
        let plan = second(&mut world, |observation| reached_in_part(observation, 0, 0.75));
        causes.extend(plan.shifts.iter().map(|shift| shift.cause.to_string()));
    }
    // 60 calls are 80 % of what callers reach. The aim is 62 %.
    let load = world.loads(world.state.tables())[0];
    assert!((0.44..=0.48).contains(&load), "{load}: at most 65 % of three quarters");
    assert_eq!(causes[0], "the load of its servers that callers reach would be 80.0 %, above 65.0 %");
    assert_eq!(world.state.doubt(0), Some(Doubt::Unreached));
    // Once callers reach all of it, their calls come home at their pace.
    for _ in 0..120 {
        second(&mut world, |observation| reached_in_part(observation, 0, 0.98));
    }
    let load = world.loads(world.state.tables())[0];
    assert!(load > 0.57 && world.state.doubt(0).is_none(), "{load}: up to 7 % below the threshold");
}

#[test]
fn evenly_loaded_and_quiet_regions_are_planned_by_their_mean() {
    let mut world = World::new(vec![100.0; 3], vec![vec![64.0], vec![20.0], vec![30.0]]);
    for _ in 0..60 {
        let plan = second(&mut world, |observation| {
            reached_in_part(observation, 0, 0.9);
            reached_in_part(observation, 1, 0.35);
        });
        assert_eq!(plan.shifts, []);
    }
    assert_eq!((world.state.doubt(0), world.state.doubt(1)), (None, None));
}

#[test]
fn no_call_is_dropped_for_servers_that_callers_do_not_reach() {
    let mut world = World::new(vec![100.0; 3], vec![vec![80.0]; 3]);
    for _ in 0..60 {
        second(&mut world, |observation| (0..3).for_each(|region| reached_in_part(observation, region, 0.8)));
    }
    assert_eq!(world.state.doubt(0), Some(Doubt::Unreached));
    assert!(!world.state.tables().drops(), "{:?}", world.state.tables());
}

#[test]
fn impossible_utilisation_of_single_servers_is_refused() {
    let mut world = World::new(vec![100.0; 3], vec![vec![50.0]; 3]);
    for p90 in [f64::NAN, -1.0, 1.6] {
        let mut observation = world.observation();
        observation.regions[1].servers.as_mut().unwrap().spread = Some(Spread { mean: 0.5, p90 });
        assert_eq!(world.plan(&observation).refusal, Some(Refusal::Absurd(1)));
    }
}
