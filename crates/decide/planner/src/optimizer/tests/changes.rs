//! How soon the optimizer follows when demand, reports or servers change.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{
    CallNode, CallPath, CallRates, ServedPath, ServedRates,
    TrafficPlanner::{self, Optimizer},
    TrafficReport,
};

use super::world::{World, region, service};
use crate::{
    Now,
    optimizer::{OptimizerInput, OptimizerPlanner},
};

const BOTH: [TrafficPlanner; 2] = [Optimizer, Optimizer];
/// `cart` would be at 97.5 % in `eu`, and half of that elsewhere.
const FULL_IN_EU: [f64; 3] = [60.0, 195.0, 60.0];

fn has_full_pool(world: &World) -> bool {
    world.loads.as_flattened().iter().any(|load| *load >= 0.93)
}

/// No pool is full in the next seconds.
fn assert_not_full(world: &mut World, seconds: usize, when: &str) {
    for second in 0..seconds {
        world.second();
        assert!(!has_full_pool(world), "{when}, second {second}: {:?}", world.loads);
    }
}

#[test]
fn load_rise_is_planned_within_four_seconds() {
    for phase in 0..5 {
        let mut world = World::learned(BOTH);
        world.seconds(phase);
        world.demand = FULL_IN_EU;
        world.seconds(4);
        assert_not_full(&mut world, 20, &format!("{phase} s after the last plan"));
    }
}

#[test]
fn returning_reports_do_not_move_calls_back_to_full_region() {
    let mut world = World::learned(BOTH);
    world.demand = FULL_IN_EU;
    world.seconds(60);
    let before = ["web", "cart"].map(|name| world.share(name, "eu", "eu"));
    world.is_silent = true;
    world.seconds(40);
    assert_eq!(world.fallback("web"), "reports");
    assert!(!has_full_pool(&world), "tables stay without reports: {:?}", world.loads);
    world.is_silent = false;
    assert_not_full(&mut world, 20, "afterwards");
    let after = ["web", "cart"].map(|name| world.share(name, "eu", "eu"));
    assert_eq!(after, before, "tables that are as good stay");
}

#[test]
fn false_reports_do_not_move_calls_back_to_full_region() {
    let mut world = World::learned(BOTH);
    world.demand = FULL_IN_EU;
    world.seconds(60);
    let away = world.share("web", "eu", "eu").0;
    world.lie = 10.0;
    assert_not_full(&mut world, 40, "while it lies");
    assert_eq!(world.fallback("cart"), "reports");
    assert!((world.share("web", "eu", "eu").0 - away).abs() < 0.02, "from {away}");
    world.lie = 1.0;
    assert_not_full(&mut world, 20, "afterwards");
}

#[test]
fn slowed_pool_is_relieved_before_its_fit_changes() {
    let mut world = World::learned(BOTH);
    world.demand = [60.0, 120.0, 60.0];
    world.seconds(20);
    world.slowness = 2.0;
    world.seconds(15);
    for _ in 0..60 {
        world.second();
        assert!(world.loads[1][1] < 0.95, "{:?}", world.loads);
    }
    assert_eq!(world.share("web", "ap", "ap").1, 0.0, "nothing is shed");
}

#[test]
fn call_graph_with_too_many_shares_to_plan_is_left_to_rings() {
    let mut world = World::learned(BOTH);
    for number in 0..250 {
        let trip = Duration::from_millis(50);
        world.topology.round_trips.set(region("eu"), region(&format!("r{number:03}")), trip);
        world.topology.regions.regions.insert(region(&format!("r{number:03}")), Default::default());
    }
    world.seconds(6);
    // 1,700 classes over 253 regions are more than 10⁸ shares.
    let parent = CallNode { service: service("web"), class: None };
    let mut sum = TrafficReport::default();
    for number in 0..1_700 {
        let class = Some(format!("c{number:04}").parse().unwrap());
        let node = CallNode { service: service("many"), class: class.clone() };
        sum.served.insert(
            ServedPath { node, region: region("eu"), bucket: None },
            ServedRates { calls: 1_000, exclusive_us: 0 },
        );
        let path = CallPath {
            service: service("many"),
            from: region("eu"),
            to: Some(region("eu")),
            class,
            caller: Some(parent.service.clone()),
            from_zone: None,
            to_zone: None,
            parent: Some(parent.clone()),
        };
        sum.calls.insert(path, CallRates { offered: 1_000, attempts: 1_000, ..CallRates::default() });
    }
    world.planner.observe(&sum, world.now.ms + 500);
    world.seconds(6);
    assert_eq!(world.fallback("web"), "left_out");
}

#[test]
fn rising_demand_is_planned_at_most_three_times_per_period() {
    let world = World::new(BOTH);
    let refused = BTreeSet::new();
    let input = OptimizerInput { services: &world.facts, refused: &refused, topology: &world.topology };
    let mut planner = OptimizerPlanner::default();
    let is_planned = |second: &u64| {
        let now = Now { ms: second * 1_000, ..world.now };
        planner.has_risen = true;
        planner.round(input, now);
        planner.seen.as_ref().is_some_and(|(at_ms, _)| *at_ms == now.ms)
    };
    let planned: Vec<_> = (0..13).filter(is_planned).collect();
    assert_eq!(planned, [0, 1, 2, 3, 6, 7, 8, 11, 12], "the first is none for a rise");
}
