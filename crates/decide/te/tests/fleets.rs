//! Fleets drawn at random, something that happens to them, and what holds meanwhile and afterwards, in rounds of a second.
//!
//! `FLEETS` is how many are played, of seeds from 1 on: 20 without it, and 500 in `make soak`.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::{Noise, World, planned_seconds, poisson};
use fairmesh_te::{LoadRing, WHOLE};

/// How long the cause lasts, until it is gone for long, and how long rewrites are counted in each.
const CAUSE: usize = 360;
const AFTER: usize = 600;
const COUNTED: usize = 180;
/// The most rewrites of tables while demand is constant.
const MOST_REWRITES: usize = 8;
/// Rounds in a row in which a region may be above a threshold though there is room.
const ROUNDS_ABOVE: usize = 3;

/// A number from `from` to `to`.
fn between(random: &mut Noise, from: f64, to: f64) -> f64 {
    from + (to - from) * (random.uniform() + 1.0) / 2.0
}

/// Three to seven regions of different size, one to three classes.
fn fleet(random: &mut Noise) -> World {
    let regions = between(random, 3.0, 8.0) as usize;
    let classes = between(random, 1.0, 4.0) as usize;
    let power: Vec<f64> = (0..regions).map(|_| 300.0 * between(random, 0.0, 2.3).exp()).collect();
    let demand = power.iter().map(|power| {
        let rate = power * between(random, 0.2, 0.5);
        let parts: Vec<f64> = (0..classes).map(|_| between(random, 0.2, 1.0)).collect();
        parts.iter().map(|part| rate * part / parts.iter().sum::<f64>()).collect()
    });
    let demand = demand.collect();
    let mut world = World::new(power, demand);
    let loads = if random.uniform() > 0.0 { [0.75, 0.8, 0.85, 0.9] } else { [0.65, 0.75, 0.8, 0.9] };
    for (ring, load) in world.policy.rings.iter_mut().zip(loads) {
        *ring = LoadRing { load, ..*ring };
    }
    world
}

/// A load that grows, capacity that is lost in part or as a whole, or two regions that fail at once.
fn strike(world: &mut World, random: &mut Noise) {
    let regions = world.power.len();
    let region = between(random, 0.0, regions as f64) as usize;
    match between(random, 0.0, 4.0) as usize {
        0 => world.demand[region].iter_mut().for_each(|rate| *rate *= 2.2),
        1 => world.power[region] *= between(random, 0.2, 0.6),
        2 => world.power[region] = 0.0,
        _ => {
            world.power[region] = 0.0;
            world.power[(region + 1) % regions] = 0.0;
        }
    }
}

/// The regions that are above a threshold by their own calls while a region of the ring that this opens has room. Noise, and less
/// than a share can be, are no room. Calls of a region that is lost may fill another one up to the threshold of the ring by which
/// they reach it, and do not push its own calls away.
fn needlessly_above(world: &World) -> Vec<usize> {
    let loads = world.loads(world.state.tables());
    let noise = |region: usize| 3.0 * loads[region] / (loads[region] * world.power[region]).max(1.0).sqrt();
    let thresholds: Vec<f64> = world.policy.rings.iter().map(|ring| ring.load).collect();
    let is_needless = |region: usize| {
        let stays = |class: usize| {
            let share = world.state.tables().of(region, class).shares[region];
            world.demand[region][class] * f64::from(share) / f64::from(WHOLE)
        };
        let own = (0..world.policy.classes).map(stays).sum::<f64>() / world.power[region];
        let excess = |threshold: f64| own > threshold + 0.01 + noise(region);
        let opened = (0..thresholds.len()).filter(|ring| excess(thresholds[*ring]));
        let has_room = |ring: usize, to: usize| {
            let is_within = world.rings.ring(region, to).is_some_and(|found| found <= ring + 1);
            let room = thresholds[ring] - world.policy.margin - 0.02 - noise(to);
            to != region && world.power[to] > 0.0 && is_within && loads[to] < room
        };
        let mut rooms = opened.map(|ring| (0..loads.len()).any(|to| has_room(ring, to)));
        rooms.any(|has_room| has_room)
    };
    (0..loads.len()).filter(|region| world.power[*region] > 0.0 && is_needless(*region)).collect()
}

/// Calls per second of a class that are served, and that are dropped.
fn served_and_dropped(world: &World, class: usize) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (source, demand) in world.demand.iter().enumerate() {
        let dropped = f64::from(world.state.tables().of(source, class).dropped) / f64::from(WHOLE);
        sums = (sums.0 + demand[class] * (1.0 - dropped), sums.1 + demand[class] * dropped);
    }
    sums
}

/// Whether calls of a class are dropped while less important ones are served: of both more than rounding leaves.
fn is_inverted(world: &World) -> bool {
    let all: f64 = world.demand.iter().flatten().sum();
    let classes = world.policy.classes;
    (0..classes).any(|class| {
        let lower: f64 = (class + 1..classes).map(|lower| served_and_dropped(world, lower).0).sum();
        served_and_dropped(world, class).1 > 0.02 * all && lower > 0.02 * all
    })
}

/// The share of all calls that stay in their region.
fn local(world: &World) -> f64 {
    let of = |source: usize, class: usize| {
        world.demand[source][class] * f64::from(world.state.tables().of(source, class).shares[source])
    };
    let rows = (0..world.demand.len())
        .flat_map(|source| (0..world.policy.classes).map(move |class| (source, class)));
    rows.map(|(source, class)| of(source, class)).sum::<f64>()
        / (f64::from(WHOLE) * world.demand.iter().flatten().sum::<f64>())
}

/// Plays rounds; returns in how many tables changed.
fn play(world: &mut World, rounds: usize, random: &mut Noise) -> usize {
    planned_seconds(world, rounds, poisson, random)
}

/// Plays the rounds of a cause; returns the longest time that a region was above a threshold though there was room.
fn endure(world: &mut World, random: &mut Noise) -> usize {
    let (mut above, mut longest) = (vec![0; world.power.len()], 0);
    for _ in 0..CAUSE - COUNTED {
        play(world, 1, random);
        let needless = needlessly_above(world);
        for (region, rounds) in above.iter_mut().enumerate() {
            *rounds = if needless.contains(&region) { *rounds + 1 } else { 0 };
            longest = longest.max(*rounds);
        }
    }
    longest
}

/// What does not hold of the fleet of a seed.
fn faults(seed: u64) -> Vec<String> {
    let mut random = Noise::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut world = fleet(&mut random);
    play(&mut world, 60, &mut random);
    let (power, demand) = (world.power.clone(), world.demand.clone());
    strike(&mut world, &mut random);
    let above = endure(&mut world, &mut random);
    let under_cause = play(&mut world, COUNTED, &mut random);
    let inverted = is_inverted(&world);
    (world.power, world.demand) = (power, demand);
    play(&mut world, AFTER, &mut random);
    let stays = local(&world);
    let afterwards = play(&mut world, COUNTED, &mut random);
    let checks = [
        (above <= ROUNDS_ABOVE, format!("a region is above a threshold for {above} rounds")),
        (!inverted, "classes are inverted".to_owned()),
        (under_cause.max(afterwards) <= MOST_REWRITES, format!("{under_cause} and {afterwards} rewrites")),
        (stays >= 0.99, format!("{stays} of calls are local afterwards")),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| format!("fleet {seed}: {what}")).collect()
}

#[test]
fn tables_of_random_fleets_drop_correct_classes_and_settle() {
    let fleets = std::env::var("FLEETS").ok().and_then(|fleets| fleets.parse().ok()).unwrap_or(20);
    let faults: Vec<String> = (1..=fleets).flat_map(faults).collect();
    assert!(faults.is_empty(), "{} of {fleets} fleets: {faults:#?}", faults.len());
}
