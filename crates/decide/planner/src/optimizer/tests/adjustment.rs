//! What the optimizer measures against its model, and does about it.

use fairmesh_model::TrafficPlanner::{Optimizer, Rings};

use super::world::{World, region, service};
use crate::{
    Attempt, OptimizerInput, OptimizerPlanner, Outcome, Verdict,
    call_graph::{GraphEdge, GraphNode},
    model_adjustment::{Move, Shift},
    optimizer::{graph_problem::Sources, successive_solutions::Solving},
};

const BOTH: [fairmesh_model::TrafficPlanner; 2] = [Optimizer, Optimizer];

/// The milliseconds that are added to calls of `cart` in `eu`.
fn correction(world: &World) -> f64 {
    let plan = world.plan("cart");
    let of_eu = plan.adjustments.latency.iter().find(|one| one.region.as_str() == "eu");
    of_eu.map_or(0.0, |one| one.ms)
}

#[test]
fn accurate_model_is_not_corrected() {
    let world = World::learned(BOTH);
    for name in ["web", "cart"] {
        let adjustments = &world.plan(name).adjustments;
        assert!(adjustments.latency.is_empty() && adjustments.work.is_empty(), "{adjustments:?}");
    }
}

#[test]
fn delay_in_one_region_corrects_latency_model_there_within_20_s() {
    let mut world = World::learned(BOTH);
    world.delay_ms = 300.0;
    world.seconds(20);
    let plan = world.plan("cart");
    let one = plan.adjustments.latency.iter().find(|one| one.region.as_str() == "eu").unwrap();
    // 20 ms of CPU in the middle of the bucket, and 1 ms besides. The fit, a mean over regions, has begun to follow.
    assert!((one.measured_ms - 331.8).abs() < 5.0, "{one:?}");
    assert!((one.predicted_ms + one.ms - 331.8).abs() < 5.0 && one.ms > 250.0, "{one:?}");
    assert!(one.error_ms < 10.0 && world.now.ms - one.since_ms < 15_000, "{one:?}");
    world.seconds(20);
    assert!(world.share("cart", "eu", "eu").0 < 0.01, "every other region is nearer than 300 ms");
    assert!(world.latency_ms < 80.0, "{}", world.latency_ms);
}

/// Where calls of `cart` are corrected.
fn corrected_regions(world: &World) -> Vec<String> {
    let adjustments = world.planner.optimizer().adjustment.of_service(&service("cart"));
    let latency = adjustments.latency.iter().map(|one| one.region.to_string());
    latency.chain(adjustments.work.iter().map(|one| one.region.to_string())).collect()
}

#[test]
fn corrections_of_regions_and_services_that_are_gone_are_forgotten() {
    let delayed = || {
        let mut world = World::learned(BOTH);
        (world.delay_ms, world.slowness) = (20.0, 1.6);
        world.seconds(30);
        assert!(corrected_regions(&world).iter().filter(|name| *name == "eu").count() == 2);
        world
    };
    let mut world = delayed();
    world.set_policy("cart", |facts| drop(facts.endpoints.remove(&region("eu"))));
    world.seconds(1);
    assert!(!corrected_regions(&world).contains(&"eu".to_owned()), "no server of eu is left");
    let mut world = delayed();
    world.set_policy("cart", |facts| facts.traffic.planner = Some(Rings));
    world.seconds(1);
    assert!(corrected_regions(&world).is_empty(), "rings need no model");
}

#[test]
fn latency_correction_decays_slowly_after_fault_ends() {
    let mut world = World::learned(BOTH);
    world.delay_ms = 20.0;
    world.seconds(40);
    let at_first = correction(&world);
    // The fit, a mean over three regions, has taken a part over.
    assert!((12.0..21.0).contains(&at_first) && world.share("cart", "eu", "eu").0 > 0.9, "{at_first}");
    world.delay_ms = 0.0;
    world.seconds(30);
    let after_half_a_minute = correction(&world);
    assert!(after_half_a_minute > 0.7 * at_first, "{after_half_a_minute} after {at_first}");
    world.seconds(600);
    assert_eq!(correction(&world), 0.0);
}

#[test]
fn slower_servers_rescale_work_model_of_their_region_within_15_s() {
    let mut world = World::learned(BOTH);
    world.slowness = 1.6;
    world.seconds(15);
    let plan = world.plan("cart");
    let work = &plan.adjustments.work;
    assert_eq!(work.len(), 1, "{work:?}");
    assert!((1.4..1.65).contains(&work[0].factor) && work[0].region.as_str() == "eu", "{work:?}");
    assert!((work[0].measured_cores / work[0].predicted_cores / work[0].factor - 1.0).abs() < 1e-9);
}

#[test]
fn reports_of_lower_cpu_correct_work_model_only_after_one_minute() {
    let mut world = World::learned(BOTH);
    world.demand = [100.0; 3];
    world.seconds(30);
    world.lie = 0.6;
    world.seconds(50);
    assert!(world.plan("cart").adjustments.work.is_empty());
    world.seconds(30);
    let plan = world.plan("cart");
    assert!((plan.adjustments.work[0].factor - 0.6).abs() < 0.1, "{:?}", plan.adjustments.work);
}

/// A world in which calls of `cart` take longer in `us`, by these milliseconds while `eu` sends none of its calls there, and otherwise.
/// `eu` is so full that calls to `us` cost about as much by the model.
fn corrected(other_ms: [f64; 2]) -> World {
    let mut world = World::learned(BOTH);
    world.demand = [60.0, 120.0, 60.0];
    world.other_ms = other_ms;
    world
}

fn attempts(world: &World) -> Vec<Attempt> {
    world.plan("cart").adjustments.attempts.clone()
}

#[test]
fn accurate_model_starts_no_correction_attempt() {
    let mut world = corrected([0.0; 2]);
    world.seconds(400);
    assert!(attempts(&world).is_empty(), "{:?}", attempts(&world));
}

#[test]
fn correction_attempt_that_makes_calls_faster_is_kept() {
    // Calls of eu would warm a cache in us. A constant does not tell.
    let mut world = corrected([40.0, 0.0]);
    world.seconds(100);
    let (before, known) = (world.latency_ms, attempts(&world));
    assert!(known.iter().all(|attempt| attempt.outcome != Outcome::Kept), "{known:?}");
    world.seconds(400);
    let all = attempts(&world);
    let kept = all.iter().find(|attempt| attempt.outcome == Outcome::Kept);
    let kept = kept.unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!((kept.source.as_str(), kept.from.as_str(), kept.to.as_str()), ("eu", "eu", "us"));
    assert!(kept.after_ms.unwrap() < 0.95 * kept.before_ms, "{kept:?}");
    assert!(world.latency_ms < 0.95 * before, "{} ms after {before} ms", world.latency_ms);
    assert!(world.share("cart", "eu", "us").0 > 0.05);
}

#[test]
fn correction_attempt_that_makes_calls_slower_is_rolled_back_early() {
    let mut world = corrected([40.0, 150.0]);
    let mut worst = 0;
    for _ in 0..400 {
        world.second();
        worst += u32::from(world.share("cart", "eu", "us").0 > 0.05);
    }
    let all = attempts(&world);
    let tried = all.iter().filter(|one| one.source.as_str() == "eu" && one.to.as_str() == "us");
    let outcomes: Vec<Outcome> = tried.map(|one| one.outcome).collect();
    // Either its calls say so, or the correction of us does, and the optimizer plans anew.
    let has_ended = |outcome: &Outcome| matches!(outcome, Outcome::Worse | Outcome::Replanned);
    assert!(!outcomes.is_empty() && outcomes.iter().all(has_ended), "{all:?}");
    assert!(all.iter().any(|one| one.outcome == Outcome::Worse), "{all:?}");
    assert!(world.share("cart", "eu", "us").0 < 0.05, "hardly any, as before");
    assert!(worst < 60, "{worst} s of 400 were slower");
}

/// A tenth of the calls of `web` in `eu` goes to `us`.
fn shift(takes_back: bool) -> Shift {
    let (source, from, to) = (region("eu"), region("eu"), region("us"));
    Shift { of: Move { service: service("web"), class: None, source, from, to }, share: 0.1, takes_back }
}

/// What the planner plans from, without changes in force.
fn sources<'a>(
    world: &'a World,
    planner: &'a OptimizerPlanner,
    (nodes, edges): &'a (Vec<GraphNode>, Vec<GraphEdge>),
) -> Sources<'a> {
    Sources {
        nodes,
        edges,
        models: &planner.models,
        held: &planner.held,
        services: &world.facts,
        flows: &planner.flows,
        topology: &world.topology,
        shifts: &[],
    }
}

#[test]
fn change_loads_the_pools_that_its_calls_call_and_needs_their_room() {
    let change = |demand: [f64; 3], takes_back: bool| {
        let mut world = World::learned(BOTH);
        world.demand = demand;
        world.seconds(30);
        let planner = world.planner.optimizer().clone();
        let graph = planner.graph_of_recent_demand(world.now.ms);
        let sources = sources(&world, &planner, &graph);
        planner.active.clone().shift(sources, &shift(takes_back), world.now.ms)
    };
    let fuller = Some(["cart", "web"].map(|name| (service(name), region("us"))).to_vec());
    assert_eq!(change([60.0, 60.0, 60.0], false), fuller);
    // `web` would be at 41 % in us, and `cart` at 82 %.
    assert_eq!(change([150.0; 3], false), None);
    assert_eq!(change([150.0; 3], true), fuller);
}

#[test]
fn first_plan_of_another_control_plane_takes_an_attempt_back() {
    let mut world = corrected([40.0, 150.0]);
    while world.share("cart", "eu", "us").0 < 0.05 {
        assert!(world.now.ms < 900_000, "no attempt: {:?}", attempts(&world));
        world.second();
    }
    // It has measured the same, and knows of no attempt.
    let known = world.planner.optimizer().clone();
    let mut adjustment = known.adjustment.clone();
    adjustment.end_attempt(Outcome::Replanned, world.now.ms);
    let mut other = OptimizerPlanner { adjustment, active: Solving::default(), seen: None, ..known };
    let refused = Default::default();
    let input = OptimizerInput { services: &world.facts, refused: &refused, topology: &world.topology };
    other.round(input, world.now);
    let Verdict::Optimized(plan) = other.verdict(&service("cart")) else { panic!("{other:?}") };
    let [eu, us] = ["eu", "us"].map(|name| plan.regions.iter().position(|one| one.as_str() == name).unwrap());
    let share = plan.tables.of(eu, 0).shares[us];
    assert!(share < 500, "{share} of 10,000");
}

#[test]
fn change_that_no_table_has_is_not_taken_back() {
    let mut world = World::learned(BOTH);
    world.demand = [60.0; 3];
    world.seconds(30);
    let shift = shift(false);
    let planner = world.planner.optimizer().clone();
    let graph = planner.graph_of_recent_demand(world.now.ms);
    let sources = sources(&world, &planner, &graph);
    let share = |solving: &Solving| {
        let plan = solving.plan_of(&service("web")).unwrap();
        let [eu, us] =
            ["eu", "us"].map(|name| plan.regions.iter().position(|one| one.as_str() == name).unwrap());
        let row = &plan.tables.of(eu, 0).shares;
        (row[eu], row[us])
    };
    let mut solving = planner.active.clone();
    let before = share(&solving);
    solving.shift(sources, &shift, world.now.ms).unwrap();
    assert_ne!(share(&solving), before);
    // The store refuses the tables, so that those in force are as before.
    assert_eq!(solving.shift(sources, &shift.inverse(), world.now.ms), Some(Vec::new()));
    assert_eq!(share(&solving), before);
}
