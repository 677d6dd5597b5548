//! Tables rest while nothing changes but the noise of reports, in rounds of one second as in production.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::{Noise, World, noisy_second as second, planned_seconds, poisson};
use fairmesh_te::{LoadRing, WHOLE};

/// Loads of the first of five regions: from one that nothing leaves to one that several regions help.
const LOADS: [f64; 8] = [0.5, 0.56, 0.6, 0.7, 0.75, 0.8, 0.95, 1.1];
/// The default thresholds, and those that keep calls away most of the time.
const DEFAULT: [f64; 4] = [0.75, 0.8, 0.85, 0.9];
const LOW: [f64; 4] = [0.55, 0.65, 0.65, 0.8];

/// Five regions of a power, the first with this load, and thresholds for the own region, 25 ms, 50 ms and all.
fn world(thresholds: [f64; 4], power: f64, load: f64) -> World {
    let demand = [load, 0.4, 0.3, 0.45, 0.2].map(|load| vec![load * power]);
    let mut world = World::new(vec![power; 5], demand.to_vec());
    for (ring, load) in world.policy.rings.iter_mut().zip(thresholds) {
        *ring = LoadRing { load, ..*ring };
    }
    world
}

/// Noise of 20 %.
fn twenty_percent(rate: f64, random: &mut Noise) -> f64 {
    rate * (1.0 + 0.2 * random.uniform())
}

/// In how many of these rounds tables change, after a first minute; the most of three seeds. Rounds that are refused do not count.
fn rewrites(world: &World, rounds: usize, noise: fn(f64, &mut Noise) -> f64) -> usize {
    let of_seed = |seed: u64| {
        let (mut world, mut random) = (world.clone(), Noise::new(seed));
        planned_seconds(&mut world, 60, noise, &mut random);
        planned_seconds(&mut world, rounds, noise, &mut random)
    };
    (1..=3).map(of_seed).max().unwrap()
}

#[test]
fn constant_demand_changes_region_tables_at_most_5_times_in_180_seconds() {
    let mut many = Vec::new();
    for (thresholds, power) in [(DEFAULT, 100.0), (DEFAULT, 2_000.0), (LOW, 400.0), (LOW, 2_000.0)] {
        for load in LOADS {
            let changes = rewrites(&world(thresholds, power, load), 180, poisson);
            // Few calls are the noisiest.
            if changes > if power < 400.0 { 7 } else { 5 } {
                many.push(format!("{changes} at {thresholds:?}, {load} of {power}"));
            }
        }
    }
    assert!(many.is_empty(), "{many:#?}");
}

/// Five regions of a power, all about as loaded as this.
fn full_world(power: f64, load: f64) -> World {
    let demand = [1.0, 0.98, 1.02, 0.99, 1.01].map(|part| vec![load * part * power]);
    let mut world = world(DEFAULT, power, load);
    world.demand = demand.to_vec();
    world
}

#[test]
fn constant_demand_of_full_regions_changes_tables_at_most_5_times_in_180_seconds() {
    for load in [0.84, 0.86, 0.88, 0.9, 0.92, 0.95, 1.0, 1.1] {
        let changes = rewrites(&full_world(2_000.0, load), 180, poisson);
        assert!(changes <= 5, "{changes} at {load}");
    }
}

#[test]
fn dropped_calls_are_served_again_up_to_aim_below_last_threshold() {
    for load in [0.97, 1.0, 1.1, 1.3] {
        let (mut world, mut random) = (full_world(2_000.0, load), Noise::new(1));
        planned_seconds(&mut world, 180, poisson, &mut random);
        let loads = world.loads(world.state.tables());
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        // A shortage aims 3 % below 90 %, and dropped calls return from about 1 % less on.
        assert!((0.855..0.9).contains(&mean), "{mean} at {load}");
    }
}

#[test]
fn noise_of_20_percent_changes_tables_at_most_16_times_in_300_seconds() {
    let mut many = Vec::new();
    for thresholds in [DEFAULT, LOW] {
        for power in [100.0, 2_000.0] {
            for load in LOADS {
                let changes = rewrites(&world(thresholds, power, load), 300, twenty_percent);
                if changes > 16 {
                    many.push(format!("{changes} at {thresholds:?}, {load} of {power}"));
                }
            }
        }
    }
    assert!(many.is_empty(), "{many:#?}");
}

#[test]
fn tables_of_calls_moved_from_lost_region_rarely_change() {
    let mut world = World::new(vec![480.0; 6], vec![vec![288.0]; 6]);
    let mut random = Noise::new(1);
    (0..60).for_each(|_| drop(second(&mut world, poisson, &mut random)));
    world.power[0] = 0.0;
    let changes = rewrites(&world, 180, poisson);
    assert!(changes <= 5, "{changes}");
}

#[test]
fn tables_of_calls_moved_from_drained_region_rarely_change() {
    for keep in [0.0, 0.4] {
        let mut world = world(DEFAULT, 700.0, 0.5);
        world.keep[1] = keep;
        let changes = rewrites(&world, 180, poisson);
        assert!(changes <= 5, "{changes} while the region keeps {keep}");
    }
}

#[test]
fn demand_spike_beyond_noise_moves_calls_in_its_first_round() {
    for noise in [poisson, twenty_percent] {
        let (mut world, mut random) = (world(DEFAULT, 2_000.0, 0.5), Noise::new(1));
        (0..60).for_each(|_| drop(second(&mut world, noise, &mut random)));
        assert_eq!(world.state.tables().of(0, 0).shares[0], WHOLE);
        world.demand[0][0] = 2_000.0;
        second(&mut world, noise, &mut random);
        assert!(world.state.tables().of(0, 0).shares[0] < 8_500, "{:?}", world.state.tables());
    }
}

#[test]
fn calls_moved_from_full_region_return_at_usual_pace() {
    let mut world = world(DEFAULT, 2_000.0, 1.0);
    let mut random = Noise::new(1);
    let exact: fn(f64, &mut Noise) -> f64 = |rate, _| rate;
    (0..30).for_each(|_| drop(second(&mut world, exact, &mut random)));
    let home = |world: &World| world.state.tables().of(0, 0).shares[0];
    assert!(home(&world) < 8_500, "{:?}", world.state.tables());
    // The region that got its calls needs its room, while there is less to serve at home.
    (world.demand[0][0], world.demand[1][0]) = (1_500.0, 1_250.0);
    for _ in 0..60 {
        let before = home(&world);
        second(&mut world, exact, &mut random);
        // At least 2 %, so that the last part is not spread over many tables.
        assert!(home(&world) <= before + 200, "{before} to {}", home(&world));
    }
    assert!(home(&world) > 8_500, "{:?}", world.state.tables());
}
