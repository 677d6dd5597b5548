//! Predictions of changes, compared with what is then measured.

use fairmesh_model::{
    Traffic,
    TrafficPlanner::{self, Optimizer, Rings},
};

use super::world::{World, region, service};
use crate::{Fallback, OptimizerInput, PolicyFacts, Scenario, WhatIf};

fn predict(world: &World, scenario: &Scenario) -> Result<WhatIf, Fallback> {
    let refused = Default::default();
    let input = OptimizerInput { services: &world.facts, refused: &refused, topology: &world.topology };
    world.planner.optimizer().what_if(input, scenario, world.now.ms)
}

fn assert_near(predicted: f64, measured: f64, part: f64) {
    assert!((predicted - measured).abs() <= part * measured, "predicted {predicted}, measured {measured}");
}

#[test]
fn what_if_prediction_of_more_demand_is_near_later_measurement() {
    let mut world = World::learned([Optimizer, Optimizer]);
    let scenario = Scenario { demand: vec![(Some(region("eu")), 3.25)], ..Scenario::default() };
    let WhatIf { now, then } = predict(&world, &scenario).unwrap();
    assert_near(now.latency_ms, world.latency_ms, 0.15);
    world.demand[1] *= 3.25;
    world.seconds(120);
    assert_near(then.latency_ms, world.latency_ms, 0.15);
    let at = world.plan("cart").regions.iter().position(|of| of.as_str() == "eu").unwrap();
    assert_near(then.services[&service("cart")].loads[at], world.loads[1][1], 0.15);
    assert!(then.latency_ms > now.latency_ms && then.shed == 0.0, "{then:?}");
}

#[test]
fn what_if_predicts_moved_and_shed_calls_of_lost_region_and_overload() {
    let world = World::learned([Optimizer, Optimizer]);
    let lost = Scenario { lost: [region("us")].into(), ..Scenario::default() };
    let then = predict(&world, &lost).unwrap().then;
    let plan = &then.services[&service("cart")];
    let at = plan.regions.iter().position(|of| of.as_str() == "us").unwrap();
    assert_eq!(plan.loads[at], 0.0);
    // The chain has two hops; calls from us cross regions on at least one of them.
    assert!(then.latency_ms > predict(&world, &Scenario::default()).unwrap().then.latency_ms + 5.0);
    let demand = vec![(None, 10.0)];
    let then = predict(&world, &Scenario { demand, ..lost }).unwrap().then;
    assert!(then.shed > 0.5, "{then:?}");
}

fn policy(planner: TrafficPlanner) -> PolicyFacts {
    let traffic = Traffic { planner: Some(planner), ..Traffic::default() };
    PolicyFacts { traffic, ..PolicyFacts::default() }
}

#[test]
fn what_if_does_not_predict_service_whose_policy_becomes_local_only() {
    let world = World::learned([Optimizer, Optimizer]);
    let local = PolicyFacts { local_only: true, ..policy(Optimizer) };
    let scenario = Scenario { policies: [(service("cart"), local)].into(), ..Scenario::default() };
    let WhatIf { now, then } = predict(&world, &scenario).unwrap();
    assert!(now.unplanned.is_empty(), "{now:?}");
    assert_eq!(then.unplanned[&service("cart")].reason, "local_only");
}

#[test]
fn what_if_names_every_service_without_prediction() {
    let world = World::learned([Optimizer, Optimizer]);
    let local = |name: &str| (service(name), PolicyFacts { local_only: true, ..policy(Optimizer) });
    let both = Scenario { policies: ["web", "cart"].map(local).into(), ..Scenario::default() };
    let why = predict(&world, &both).unwrap_err().text;
    assert!(why.contains("shop/cart: ") && why.contains("; shop/web: "), "{why}");
}

#[test]
fn what_if_scenario_lists_unknown_regions_beside_known_ones() {
    let world = World::learned([Optimizer, Optimizer]);
    let refused = Default::default();
    let input = OptimizerInput { services: &world.facts, refused: &refused, topology: &world.topology };
    let demand = vec![(Some(region("eu")), 2.0), (Some(region("ue")), 2.0), (None, 2.0)];
    let scenario = Scenario { demand, lost: [region("us"), region("su")].into(), ..Scenario::default() };
    let (unknown, known) = world.planner.optimizer().regions_of_scenario(input, &scenario, world.now.ms);
    assert_eq!(unknown, [region("su"), region("ue")].into());
    assert_eq!(known, ["ap", "eu", "us"].map(region).into());
}

#[test]
fn what_if_prediction_uses_changed_prices_and_policies() {
    let mut world = World::learned([Optimizer, Optimizer]);
    world.topology.regions.egress.price = "$0.02".parse().unwrap();
    let demand = vec![(Some(region("eu")), 3.0)];
    let free = Scenario { demand, ..Scenario::default() };
    let mut regions = world.topology.regions.clone();
    regions.egress.price = "$1000000".parse().unwrap();
    regions.egress.per_ms = Some("$0.00001".parse().unwrap());
    let dear = Scenario { regions: Some(regions), ..free.clone() };
    let bytes = |scenario: &Scenario, price: f64| predict(&world, scenario).unwrap().then.egress / price;
    assert!(bytes(&dear, 1e6) < 0.1 * bytes(&free, 0.02), "a huge price keeps calls at home");
    let rings = |name: &str| (service(name), policy(Rings));
    let one = Scenario { policies: [rings("cart")].into(), ..Scenario::default() };
    let then = predict(&world, &one).unwrap().then;
    assert_eq!(then.services.keys().collect::<Vec<_>>(), [&service("web")]);
    let both = Scenario { policies: ["web", "cart"].map(rings).into(), ..Scenario::default() };
    assert_eq!(predict(&world, &both).unwrap_err().text, "no service asks for the optimizer");
}

#[test]
fn prediction_is_made_with_the_corrections_in_force() {
    let mut world = World::learned([Optimizer, Optimizer]);
    world.delay_ms = 20.0;
    world.seconds(40);
    let WhatIf { now, .. } = predict(&world, &Scenario::default()).unwrap();
    assert_near(now.latency_ms, world.latency_ms, 0.15);
    // With a class of its own, the calls of eu are as slow as they were.
    let traffic = Traffic { classes: vec!["bulk".parse().unwrap()], ..policy(Optimizer).traffic };
    let classes = PolicyFacts { traffic, ..PolicyFacts::default() };
    let scenario = Scenario { policies: [(service("cart"), classes)].into(), ..Scenario::default() };
    let then = predict(&world, &scenario).unwrap().then;
    assert_near(then.latency_ms, now.latency_ms, 0.01);
}

#[test]
fn correction_below_zero_takes_no_more_than_a_call_has() {
    let world = World::learned([Optimizer, Optimizer]);
    let mut optimizer = world.planner.optimizer().clone();
    // Since the last round, the fit may have taken over what calls were faster by.
    let cart = optimizer.models.get_mut(&service("cart")).unwrap();
    cart.corrections.insert(region("eu"), vec![-20.0]);
    let refused = Default::default();
    let input = OptimizerInput { services: &world.facts, refused: &refused, topology: &world.topology };
    let now = optimizer.what_if(input, &Scenario::default(), world.now.ms).unwrap().now;
    let alone = predict(&world, &Scenario::default()).unwrap().now;
    // 1 ms of the calls of eu, a third of all, does not depend on load.
    let faster = alone.latency_ms - now.latency_ms;
    assert!((0.1..0.5).contains(&faster), "{faster} ms faster");
}
