//! Whose calls are dropped where capacity is short: those of the least important classes, wherever they are.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::World;
use fairmesh_te::WHOLE;
use proptest::prelude::*;

/// Calls per second of a source and class that are served.
fn served(world: &World, source: usize, class: usize) -> f64 {
    let dropped = f64::from(world.state.tables().of(source, class).dropped) / f64::from(WHOLE);
    world.demand[source][class] * (1.0 - dropped)
}

#[test]
fn important_calls_displace_less_important_ones_of_other_regions() {
    // The first region gets only important calls, the second only others, and both get more than they can serve.
    let mut world = World::new(vec![100.0; 2], vec![vec![60.0, 0.0], vec![0.0, 50.0]]);
    (0..3).for_each(|_| drop(world.round()));
    world.demand = vec![vec![120.0, 0.0], vec![0.0, 100.0]];
    (0..20).for_each(|_| drop(world.round()));
    assert_eq!(world.state.tables().of(0, 0).dropped, 0, "{:?}", world.state.tables());
    let loads = world.loads(world.state.tables());
    assert!(loads.iter().all(|load| (0.85..=0.9).contains(load)), "{loads:?}");
    assert!((50.0..60.0).contains(&served(&world, 1, 1)), "{:?}", world.state.tables());
}

#[test]
fn call_moves_farther_to_make_room_for_class_that_reaches_fewer_regions() {
    // From the first region only the second is within 25 ms, and from the second one the third.
    let mut world = World::new(vec![100.0; 3], vec![vec![60.0, 0.0], vec![60.0, 0.0], vec![0.0, 60.0]]);
    world.policy.rings.truncate(2);
    (0..3).for_each(|_| drop(world.round()));
    world.demand = vec![vec![110.0, 0.0], vec![70.0, 0.0], vec![0.0, 110.0]];
    (0..20).for_each(|_| drop(world.round()));
    let tables = world.state.tables();
    assert_eq!((tables.of(0, 0).dropped, tables.of(1, 0).dropped), (0, 0), "{tables:?}");
    assert!(served(&world, 2, 1) > 25.0, "{tables:?}");
}

#[test]
fn important_class_is_served_again_in_place_of_less_important_one() {
    let mut world = World::new(vec![100.0; 2], vec![vec![40.0, 60.0], vec![40.0, 60.0]]);
    (0..10).for_each(|_| drop(world.round()));
    let mut tables = world.state.tables().clone();
    for source in 0..2 {
        // As many calls in all.
        let dropped = tables.of(source, 1).dropped * 3 / 2;
        assert!(dropped > 500, "{tables:?}");
        tables.sources[source].classes[0].dropped = dropped;
        tables.sources[source].classes[0].shares[source] -= dropped;
        let row = &mut tables.sources[source].classes[1];
        row.shares[source] += std::mem::take(&mut row.dropped);
    }
    world.state = world.state.clone().with_tables(tables);
    (0..10).for_each(|_| drop(world.round()));
    assert!((0..2).all(|source| served(&world, source, 0) >= 39.9), "{:?}", world.state.tables());
}

/// Worlds of regions on a line that reach two others on each side, with demand for more than they can serve.
fn worlds() -> impl Strategy<Value = World> {
    (2_usize..=6, 2_usize..=3).prop_flat_map(|(regions, classes)| {
        let power = prop::collection::vec(50.0..300.0_f64, regions);
        let load = prop_oneof![1 => Just(0.0), 3 => 0.0..2.0_f64];
        let demand = prop::collection::vec(prop::collection::vec(load, classes), regions);
        (power, demand).prop_map(move |(power, loads)| {
            let demand = loads.iter().zip(&power);
            let rate = |loads: &Vec<f64>, power: &f64| loads.iter().map(|load| load * power / 1.5).collect();
            let demand = demand.map(|(loads, power)| rate(loads, power)).collect();
            let mut world = World::new(power, demand);
            world.policy.rings.pop();
            world
        })
    })
}

/// The most calls that regions can serve of these sources, by augmenting paths: Ford and Fulkerson's algorithm.
fn most_served(demand: &[f64], capacity: &[f64]) -> f64 {
    let count = demand.len();
    let (source, sink) = (2 * count, 2 * count + 1);
    let mut left = vec![vec![0.0; 2 * count + 2]; 2 * count + 2];
    for from in 0..count {
        left[source][from] = demand[from];
        left[count + from][sink] = capacity[from];
        (0..count).filter(|to| from.abs_diff(*to) <= 2).for_each(|to| left[from][count + to] = f64::MAX);
    }
    let mut sum = 0.0;
    while let Some(path) = path(&left, source, sink) {
        let rate = path.iter().fold(f64::MAX, |rate, (from, to)| rate.min(left[*from][*to]));
        for (from, to) in path {
            left[from][to] -= rate;
            left[to][from] += rate;
        }
        sum += rate;
    }
    sum
}

/// The edges of a shortest path with room.
fn path(left: &[Vec<f64>], source: usize, sink: usize) -> Option<Vec<(usize, usize)>> {
    let mut by = vec![None; left.len()];
    let mut queue = std::collections::VecDeque::from([source]);
    while let Some(from) = queue.pop_front() {
        for to in 0..left.len() {
            if left[from][to] > 1e-6 && by[to].is_none() && to != source {
                by[to] = Some(from);
                queue.push_back(to);
            }
        }
    }
    let mut path = Vec::new();
    let mut to = sink;
    while to != source {
        path.push((by[to]?, to));
        to = by[to]?;
    }
    Some(path)
}

/// As many as PROPTEST_CASES says, to look for rare ones.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_class_is_served_up_to_capacity_left_by_more_important_ones(world in worlds()) {
        let mut world = world;
        let full = world.demand.clone();
        let calm = |(demand, power): (&Vec<f64>, &f64)| {
            let times = 0.5 * power / demand.iter().sum::<f64>().max(1.0);
            demand.iter().map(|rate| rate * times.min(1.0)).collect()
        };
        world.demand = full.iter().zip(&world.power).map(calm).collect();
        (0..3).for_each(|_| drop(world.round()));
        world.demand = full;
        (0..30).for_each(|_| drop(world.round()));
        // A shortage is planned for 3 % below the last threshold.
        let capacity: Vec<f64> = world.power.iter().map(|power| power * (0.8 - 0.03)).collect();
        let all: f64 = world.demand.iter().flatten().sum();
        for class in 0..world.policy.classes {
            let until = |rates: &Vec<f64>| rates[..=class].iter().sum::<f64>();
            let most = most_served(&world.demand.iter().map(until).collect::<Vec<_>>(), &capacity);
            let rows = (0..world.power.len()).flat_map(|source| (0..=class).map(move |class| (source, class)));
            let found: f64 = rows.map(|(source, class)| served(&world, source, class)).sum();
            // Shares below 1 % are none.
            prop_assert!(found >= most - 0.02 * all, "class {class}: {found} of {most}: {:?}", world.state.tables());
        }
    }
}
