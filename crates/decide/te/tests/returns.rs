//! What becomes of calls while a drained region gets them back, with thresholds that are close together.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use std::time::Duration;

use common::World;
use fairmesh_model::{Region, Regions, Ring, RoundTrips};
use fairmesh_te::{Cause, LoadRing, Plan, RingMatrix, RingsPolicy, WHOLE, drain};

const EU: usize = 0;
const US: usize = 1;
const AP: usize = 2;

/// Regions eu, us and ap, 20, 60 and 45 ms apart, with thresholds of 10, 11, 12 and 13 %; the demand is in percent of a
/// region's power.
fn world(demand: [f64; 3]) -> World {
    world_with([0.10, 0.11, 0.12, 0.13], demand)
}

fn world_with(thresholds: [f64; 4], demand: [f64; 3]) -> World {
    let mut world = World::new(vec![3_000.0; 3], demand.map(|part| vec![part * 30.0]).into());
    let rings = [Ring::Region, within(35), within(80), Ring::Any].into_iter().zip(thresholds);
    place(&mut world, rings, [(EU, US, 20), (EU, AP, 60), (US, AP, 45)]);
    world
}

fn within(ms: u64) -> Ring {
    Ring::Within(Duration::from_millis(ms))
}

/// Gives the world these rings and distances in ms.
fn place(
    world: &mut World,
    rings: impl IntoIterator<Item = (Ring, f64)>,
    distances: [(usize, usize, u64); 3],
) {
    let rings = rings.into_iter().map(|(ring, load)| LoadRing { ring, load });
    world.policy = RingsPolicy::new(rings.collect(), 1);
    let names = ["eu", "us", "ap"].map(|name| Region::new(name).unwrap());
    let mut trips = RoundTrips::default();
    for (from, to, ms) in distances {
        trips.set(names[from].clone(), names[to].clone(), Duration::from_millis(ms));
    }
    world.rings = RingMatrix::new(&world.policy, &names, &Regions::default(), &trips);
}

/// A round a second after the one before.
fn second(world: &mut World) -> Plan {
    let plan = world.round();
    world.now_ms -= 4_000;
    assert_eq!(plan.refusal, None);
    plan
}

fn seconds(world: &mut World, seconds: usize) {
    (0..seconds).for_each(|_| drop(second(world)));
}

/// A share in percent.
fn share(world: &World, from: usize, to: usize) -> f64 {
    f64::from(world.state.tables().of(from, 0).shares[to]) / f64::from(WHOLE) * 100.0
}

/// The share of all calls that is dropped, in percent.
fn dropped(world: &World) -> f64 {
    let rate = |source: usize| {
        world.demand[source][0] * f64::from(world.state.tables().of(source, 0).dropped) / f64::from(WHOLE)
    };
    (0..3).map(rate).sum::<f64>() / world.demand.iter().flatten().sum::<f64>() * 100.0
}

/// Drains a region, or gives its calls back, as fast as steps may be made; returns the most that was dropped meanwhile.
fn shift(world: &mut World, region: usize, goal: f64) -> f64 {
    let drain = drain::Drain { region, from_ms: world.now_ms, over_ms: 0, keep: world.keep[region], goal };
    (0..90).map(|_| step(world, &drain)).fold(0.0, f64::max)
}

/// A round with what the drain allows by now; returns what is dropped.
fn step(world: &mut World, drain: &drain::Drain) -> f64 {
    let drain = drain::Drain { keep: world.keep[drain.region], ..*drain };
    let observation = world.observation();
    if let drain::Step::Advance(keep) = drain::step(&drain, world.input(&observation), &world.state) {
        world.keep[drain.region] = keep;
    }
    second(world);
    dropped(world)
}

#[test]
fn undrain_of_region_drops_no_call() {
    for eu in 5..=20 {
        for us in [0.5, 1.0, 3.0, 6.0, 9.0] {
            for ap in [1.0, 3.0, 6.0] {
                let mut world = world([f64::from(eu), us, ap]);
                seconds(&mut world, 60);
                assert_eq!(dropped(&world), 0.0, "eu {eu}, us {us}, ap {ap}: at first");
                let by_drain = shift(&mut world, US, 0.0);
                assert_eq!(by_drain, 0.0, "eu {eu}, us {us}, ap {ap}: drained to {}", world.keep[US]);
                let by_return = shift(&mut world, US, 1.0);
                assert_eq!(by_return, 0.0, "eu {eu}, us {us}, ap {ap}");
                assert_eq!(world.keep[US], 1.0);
            }
        }
    }
}

#[test]
fn calls_moved_far_by_drain_return_to_nearer_region_after_undrain() {
    for eu in [11.0, 12.0, 13.0] {
        let mut world = world([eu, 1.3, 1.3]);
        seconds(&mut world, 60);
        let before = share(&world, EU, US);
        assert!(before > 20.0 && share(&world, EU, AP) == 0.0, "{:?}", world.state.tables());
        shift(&mut world, US, 0.0);
        assert!(share(&world, EU, AP) > 20.0, "{:?}", world.state.tables());
        shift(&mut world, US, 1.0);
        seconds(&mut world, 60);
        let (near, far) = (share(&world, EU, US), share(&world, EU, AP));
        assert!(far < 2.0 && near > 20.0, "{near} % to us, {far} % to ap");
    }
}

#[test]
fn undrain_advances_faster_while_calls_are_dropped() {
    let mut world = world_with([0.75, 0.8, 0.85, 0.9], [60.0, 20.0, 20.0]);
    seconds(&mut world, 30);
    assert_eq!(shift(&mut world, US, 0.0), 0.0);
    assert_eq!(world.keep[US], 0.0);
    // More than the two other regions can serve, and less than all three.
    world.demand[EU] = vec![150.0 * 30.0];
    seconds(&mut world, 20);
    assert!(dropped(&world) > 5.0, "{}", dropped(&world));
    let back = drain::Drain { region: US, from_ms: world.now_ms, over_ms: 3_600_000, keep: 0.0, goal: 1.0 };
    for _ in 0..60 {
        step(&mut world, &back);
    }
    assert_eq!(dropped(&world), 0.0, "{:?}", world.state.tables());
    assert!((0.1..1.0).contains(&world.keep[US]), "then the pace holds again: {}", world.keep[US]);
}

#[test]
fn partly_drained_region_serves_calls_that_would_be_dropped() {
    let mut world = world_with([0.75, 0.8, 0.85, 0.9], [60.0, 20.0, 20.0]);
    seconds(&mut world, 30);
    world.keep[US] = 0.5;
    seconds(&mut world, 30);
    assert!((45.0..55.0).contains(&share(&world, US, US)), "{:?}", world.state.tables());
    world.demand[EU] = vec![155.0 * 30.0];
    let observation = world.observation();
    let drain = drain::Drain { region: US, from_ms: 0, over_ms: 0, keep: 0.5, goal: 0.0 };
    let next = drain::step(&drain, world.input(&observation), &world.state);
    assert!(matches!(next, drain::Step::HoldFor(_) | drain::Step::HoldDropping), "{next:?}");
    for _ in 0..20 {
        second(&mut world);
        assert_eq!(dropped(&world), 0.0, "{:?}", world.state.tables());
    }
    assert!(share(&world, US, US) > 60.0, "{:?}", world.state.tables());
}

/// The same regions, with eu too far from the others for any call to go from there, or to there.
fn world_with_eu_alone(demand: [f64; 3]) -> World {
    let mut world = world_with([0.75, 0.8, 0.85, 0.9], demand);
    let rings = [(Ring::Region, 0.75), (within(35), 0.9)];
    place(&mut world, rings, [(EU, US, 120), (EU, AP, 120), (US, AP, 20)]);
    world
}

#[test]
fn drained_region_takes_back_calls_only_if_full_region_is_relieved() {
    let mut world = world_with_eu_alone([100.0, 30.0, 40.0]);
    world.keep[AP] = 0.5;
    seconds(&mut world, 60);
    assert!(dropped(&world) > 4.0, "{:?}", world.state.tables());
    assert!((48.0..=50.0).contains(&share(&world, AP, AP)), "{:?}", world.state.tables());
}

#[test]
fn undrain_keeps_its_pace_if_it_saves_no_dropped_call() {
    let mut world = world_with_eu_alone([100.0, 30.0, 40.0]);
    world.keep[AP] = 0.5;
    seconds(&mut world, 60);
    assert!(world.state.tables().drops());
    let back = drain::Drain { region: AP, from_ms: world.now_ms, over_ms: 3_600_000, keep: 0.5, goal: 1.0 };
    let observation = world.observation();
    assert_eq!(drain::step(&back, world.input(&observation), &world.state), drain::Step::Wait);
}

#[test]
fn shift_of_calls_to_nearer_region_has_cause_nearer() {
    let mut world = world([12.0, 1.3, 1.3]);
    seconds(&mut world, 60);
    shift(&mut world, US, 0.0);
    let back = drain::Drain { region: US, from_ms: world.now_ms, over_ms: 0, keep: 0.0, goal: 1.0 };
    let mut causes = Vec::new();
    for _ in 0..90 {
        let keep = world.keep[US];
        let before = drain::Drain { keep, ..back };
        let observation = world.observation();
        if let drain::Step::Advance(keep) = drain::step(&before, world.input(&observation), &world.state) {
            world.keep[US] = keep;
        }
        causes.extend(second(&mut world).shifts.into_iter().map(|shift| shift.cause));
    }
    assert!(causes.contains(&Cause::Nearer) && causes.contains(&Cause::Return), "{causes:?}");
    assert!(!causes.contains(&Cause::Drained), "calls come back: {causes:?}");
}
