//! What the optimizer does when something goes wrong.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fairmesh_model::{
    CallNode, RegionDrain, ServedPath, ServedRates, ServiceKind, Share, TrafficMode,
    TrafficPlanner::{Optimizer, Rings},
    TrafficReport,
};

use super::world::{World, region, service};
use crate::{InSequence, MeshPlanner, StoredDrain};

const BOTH: [fairmesh_model::TrafficPlanner; 2] = [Optimizer, Optimizer];

#[test]
fn service_without_cost_fit_is_planned_by_rings_until_measured() {
    let mut world = World::new(BOTH);
    world.seconds(30);
    assert_eq!(world.fallback("web"), "no_fit");
    world.demand = [60.0, 390.0, 60.0];
    world.seconds(40);
    assert!(world.share("web", "eu", "eu").0 < 0.95, "rings plan");
    assert!(world.planner.services()[&service("web")].refused.is_none());
}

#[test]
fn service_without_calls_is_planned_by_rings() {
    let mut world = World::learned(BOTH);
    world.calls = 0.0;
    world.seconds(300);
    assert_eq!(world.fallback("cart"), "no_calls");
    assert!(world.plan("web").gap < 0.05);
}

#[test]
fn missing_reports_leave_region_tables_unconfirmed() {
    let mut world = World::learned(BOTH);
    world.is_silent = true;
    world.seconds(15);
    assert_eq!(world.fallback("web"), "reports");
    assert!(world.planner.services()[&service("web")].refused.is_some());
    let written: usize =
        (0..40).map(|_| world.second().iter().map(|round| round.tables.len()).sum::<usize>()).sum();
    assert_eq!(written, 0, "routers follow rings once tables are not confirmed");
    world.is_silent = false;
    world.seconds(30);
    assert!(world.plan("web").gap < 0.05, "it goes on");
}

#[test]
fn false_reports_of_region_are_not_learned_and_change_no_plan() {
    let mut world = World::learned(BOTH);
    let before = world.plan("cart");
    world.lie = 10.0;
    world.seconds(60);
    assert_eq!(world.fallback("cart"), "reports");
    world.lie = 1.0;
    world.seconds(20);
    let after = world.plan("cart");
    assert_eq!(after.tables, before.tables);
    assert!(after.model_error < 0.1, "{after:?}");
}

#[test]
fn demand_above_capacity_is_dropped_in_region_of_caller() {
    let mut world = World::learned(BOTH);
    world.demand = [250.0; 3];
    world.seconds(60);
    let dropped: Vec<f64> = ["ap", "eu", "us"].map(|from| world.share("web", from, from).1).into();
    // 750 calls of 20 ms need 15 cores; calls for 85 % of the 12 cores are admitted.
    assert!(dropped.iter().all(|dropped| (0.25..0.40).contains(dropped)), "{dropped:?}");
    assert!(world.loads.as_flattened().iter().all(|load| *load < 0.92), "{:?}", world.loads);
}

#[test]
fn new_planner_takes_over_from_one_that_died_before_its_write() {
    let mut world = World::learned(BOTH);
    world.demand = [60.0, 195.0, 60.0];
    world.loses_writes = true;
    world.seconds(12);
    assert_eq!(world.share("cart", "eu", "eu").0, 1.0, "nothing was written");
    world.planner = MeshPlanner::default();
    (world.loses_writes, world.now.started_ms) = (false, world.now.ms);
    world.seconds(60);
    assert!(world.loads.as_flattened().iter().all(|load| *load < 0.9), "rings: {:?}", world.loads);
    world.learn();
    world.demand = [60.0, 195.0, 60.0];
    world.seconds(60);
    assert!(world.share("cart", "eu", "eu").0.min(world.share("web", "eu", "eu").0) < 0.95);
    assert!(world.plan("cart").gap < 0.05);
}

#[test]
fn tables_of_lost_write_are_planned_again() {
    let mut world = World::learned(BOTH);
    world.demand = [60.0, 195.0, 60.0];
    world.loses_writes = true;
    world.seconds(10);
    world.loses_writes = false;
    world.seconds(20);
    assert!(world.loads.as_flattened().iter().all(|load| *load < 0.9), "{:?}", world.loads);
}

#[test]
fn service_without_trace_context_is_planned_hop_by_hop_and_named() {
    let mut world = World::new(BOTH);
    world.names_parents = false;
    world.learn();
    world.demand = [60.0, 195.0, 60.0];
    world.seconds(60);
    let missing = world.planner.without_trace_context();
    assert_eq!(missing.keys().collect::<Vec<_>>(), [&service("web")]);
    assert!(missing[&service("web")] > 0.99, "{missing:?}");
    assert!(world.plan("cart").gap < 0.05);
    assert!(world.loads.as_flattened().iter().all(|load| *load < 0.92), "{:?}", world.loads);
    assert!(World::learned(BOTH).planner.without_trace_context().is_empty());
}

#[test]
fn retries_do_not_count_as_demand() {
    let mut world = World::learned(BOTH);
    world.attempts = 1.5;
    world.seconds(60);
    let plan = world.plan("web");
    let calls: f64 = plan.expected.iter().map(|classes| classes[0].calls).sum();
    assert!((calls - 180.0).abs() < 4.0, "{calls} calls of 180");
}

#[test]
fn call_graph_with_cycle_is_cut_and_planned() {
    let mut world = World::learned(BOTH);
    let cart = CallNode { service: service("cart"), class: None };
    let web = CallNode { service: service("web"), class: None };
    for _ in 0..60 {
        world.second();
        // One call of ten to `cart` calls `web` again.
        let mut sum = TrafficReport::default();
        let path = fairmesh_model::CallPath {
            service: web.service.clone(),
            from: region("eu"),
            to: Some(region("eu")),
            class: None,
            caller: Some(cart.service.clone()),
            from_zone: None,
            to_zone: None,
            parent: Some(cart.clone()),
        };
        let rates = fairmesh_model::CallRates { offered: 6_000, attempts: 6_000, ..Default::default() };
        sum.calls.insert(path, rates);
        world.now.ms += 100;
        world.planner.observe(&sum, world.now.ms);
    }
    world.seconds(6);
    assert!(world.plan("web").gap.is_finite() && world.plan("cart").loads.iter().all(|load| *load < 0.9));
}

#[test]
fn services_beyond_call_graph_limit_are_left_to_rings() {
    let mut world = World::learned(BOTH);
    let mut sum = TrafficReport::default();
    for number in 0..5_000 {
        let node = CallNode { service: service(&format!("s{number:04}")), class: None };
        let path = ServedPath { node, region: region("eu"), bucket: None };
        sum.served.insert(path, ServedRates { calls: 1_000, exclusive_us: 0 });
    }
    // The last sum before a round is the one that has no room.
    world.seconds(3);
    world.set_policy("web", |facts| facts.traffic.classes = vec!["bulk".parse().unwrap()]);
    world.planner.observe(&sum, world.now.ms + 500);
    world.planner.round(&world.facts, &world.topology, &InSequence, world.now);
    assert_eq!(world.fallback("web"), "left_out");
}

#[test]
fn draining_region_is_left_to_rings_and_drained_region_gets_no_calls() {
    let mut world = World::learned(BOTH);
    let keep = |percent: u32| {
        let drain = RegionDrain { keep: Share::of_millionths(percent * 10_000).unwrap(), ..begun() };
        StoredDrain { drain, revision: 1 }
    };
    world.topology.drains.insert(region("eu"), keep(60));
    world.topology.version += 1;
    world.seconds(3);
    assert_eq!(world.fallback("web"), "drain");
    world.topology.drains.insert(region("eu"), keep(0));
    world.topology.version += 1;
    world.seconds(60);
    assert!(world.plan("web").gap < 0.05);
    assert_eq!(world.share("web", "us", "eu").0 + world.share("web", "eu", "eu").0, 0.0);
}

fn begun() -> RegionDrain {
    RegionDrain::begin(None, false, Duration::from_secs(10), 0)
}

#[test]
fn service_held_local_sharded_or_without_capacity_is_left_to_rings() {
    let reasons: BTreeMap<&str, fn(&mut crate::ServiceFacts)> = [
        ("held", (|facts: &mut crate::ServiceFacts| facts.traffic.mode = TrafficMode::Hold) as fn(&mut _)),
        ("local_only", |facts| facts.local_only = true),
        ("sharded", |facts| facts.kind = ServiceKind::Sharded),
        ("no_capacity", |facts| facts.endpoints.clear()),
    ]
    .into();
    let learned = World::learned(BOTH);
    for (reason, edit) in reasons {
        let mut world = World::new(BOTH);
        world.planner.clone_from(&learned.planner);
        world.facts.clone_from(&learned.facts);
        world.now = learned.now;
        world.set_policy("cart", edit);
        world.seconds(1);
        assert_eq!(world.fallback("cart"), reason);
        let _web = world.plan("web");
    }
}

#[test]
fn service_switched_back_to_rings_continues_from_its_tables() {
    let mut world = World::learned(BOTH);
    world.demand = [60.0, 195.0, 60.0];
    world.seconds(40);
    let before = world.share("web", "eu", "eu").0;
    for facts in world.facts.values_mut() {
        Arc::make_mut(facts).traffic.planner = Some(Rings);
    }
    world.seconds(1);
    assert!(world.planner.services()[&service("web")].verdict.is_none());
    assert!((world.share("web", "eu", "eu").0 - before).abs() < 0.3);
}
