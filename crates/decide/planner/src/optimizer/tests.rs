mod adjustment;
mod changes;
mod evidence;
mod faults;
mod what_if;
mod world;

use fairmesh_model::{
    TrafficMode,
    TrafficPlanner::{Optimizer, Rings},
};

use world::{REGIONS, World, service};

#[test]
fn measured_call_chain_is_planned_by_optimizer_within_gap_limit() {
    let world = World::learned([Optimizer, Optimizer]);
    for name in ["web", "cart"] {
        let plan = world.plan(name);
        assert!(plan.gap <= 0.01 && plan.model_error < 0.05, "{plan:?}");
        assert!(world.now.ms - plan.model_at_ms <= 11_000, "{plan:?}");
        for from in REGIONS {
            assert_eq!(world.share(name, from, from), (1.0, 0.0), "{name} from {from}: no region is full");
        }
    }
    let at = world.plan("cart").regions.iter().position(|region| region.as_str() == "eu").unwrap();
    let expected = world.plan("cart").expected[at][0];
    // Demand fell from 120 to 60 half a minute ago.
    assert!((expected.calls - 60.0).abs() < 3.0, "{expected:?}");
    // 20 ms of CPU at 30 %, and 1 ms besides.
    assert!((expected.latency_ms - 29.6).abs() < 1.5, "{expected:?}");
}

#[test]
fn optimizer_relieves_overloaded_region_at_less_latency_than_rings() {
    let mut latency = [0.0; 2];
    for (planner, latency) in [Optimizer, Rings].into_iter().zip(&mut latency) {
        let mut world = World::learned([planner, planner]);
        world.demand = [60.0, 195.0, 90.0];
        world.seconds(60);
        assert!(world.loads.as_flattened().iter().all(|load| *load < 0.9), "{:?}", world.loads);
        *latency = world.latency_ms;
    }
    let [optimizer, rings] = latency;
    assert!(optimizer < 0.95 * rings, "{optimizer} ms, by rings {rings} ms");
}

#[test]
fn plan_moves_at_most_half_of_regions_calls_per_period() {
    let mut world = World::learned([Optimizer, Optimizer]);
    world.set_policy("cart", |facts| {
        facts.endpoints.retain(|region, _| region.as_str() != "eu");
    });
    world.seconds(2);
    let gone = world.share("cart", "eu", "eu").0;
    assert_eq!(gone, 0.0, "servers that are gone get no call, whatever the step");
    let mut world = World::learned([Optimizer, Optimizer]);
    world.demand = [20.0, 170.0, 20.0];
    let shares = |world: &World| ["web", "cart"].map(|name| world.share(name, "eu", "eu").0);
    let mut before = shares(&world);
    for _ in 0..20 {
        world.second();
        let after = shares(&world);
        let moved = before.iter().zip(after).map(|(before, after)| (before - after).abs());
        assert!(moved.fold(0.0, f64::max) <= 0.5 + 1e-3, "{before:?} to {after:?}");
        before = after;
    }
    assert!(before.iter().sum::<f64>() < 1.9, "{before:?}");
}

#[test]
fn optimizer_plans_around_calls_of_services_with_rings_planner() {
    let mut world = World::learned([Optimizer, Rings]);
    world.demand = [60.0, 195.0, 90.0];
    world.seconds(60);
    assert!(world.planner.services()[&service("cart")].verdict.is_none());
    let plan = world.plan("web");
    assert!(plan.loads.iter().all(|load| *load < 0.9), "{plan:?}");
    assert!(world.loads.as_flattened().iter().all(|load| *load < 0.95), "{:?}", world.loads);
}

#[test]
fn egress_price_keeps_calls_at_home_and_egress_cap_holds() {
    let spread = |price: &str, worth: Option<&str>, cap: Option<&str>| {
        let mut world = World::learned([Optimizer, Optimizer]);
        let egress = &mut world.topology.regions.egress;
        egress.price = price.parse().unwrap();
        egress.per_ms = worth.map(|worth| worth.parse().unwrap());
        egress.cap = cap.map(|cap| cap.parse().unwrap());
        world.demand = [60.0, 170.0, 60.0];
        world.seconds(60);
        world.egress
    };
    let free = spread("$0.02", None, None);
    assert!(free > 100_000.0, "{free} bytes a second: nothing is weighed");
    assert!(spread("$0", Some("$0.00001"), None) > 0.9 * free, "a price of zero weighs nothing");
    assert!(spread("$1000000", Some("$0.00001"), None) < 0.1 * free, "a huge price");
    // Half of the free plan's egress.
    let dollars = free / 2.0 / 1e9 * 0.02 * 3_600.0;
    let capped = spread("$0.02", None, Some(&format!("{dollars:.9}")));
    assert!(capped < 0.6 * free, "{capped} of {free}");
}

#[test]
fn plan_of_service_in_shadow_mode_is_not_published() {
    let mut world = World::new([Optimizer, Optimizer]);
    for name in ["web", "cart"] {
        world.set_policy(name, |facts| facts.traffic.mode = TrafficMode::Shadow);
    }
    world.learn();
    world.demand = [60.0, 195.0, 60.0];
    world.seconds(30);
    let plans = ["web", "cart"].map(|name| world.plan(name));
    let at = plans[0].regions.iter().position(|region| region.as_str() == "eu").unwrap();
    // Either hop may be the one at which calls cross.
    assert!(plans.iter().any(|plan| plan.tables.of(at, 0).shares[at] < 9_500), "{plans:?}");
    assert!(world.facts[&service("cart")].tables.is_empty());
}
