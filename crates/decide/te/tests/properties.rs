//! What holds for every plan, in worlds drawn at random.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::World;
use fairmesh_te::{MIN_SHARE, Observation, Plan, PlannerState, WHOLE, plan};
use proptest::prelude::*;

/// Worlds of two to seven regions and one to three classes, from idle to twice their capacity.
fn worlds() -> impl Strategy<Value = World> {
    (2_usize..=7, 1_usize..=3).prop_flat_map(|(regions, classes)| {
        let power = prop::collection::vec(prop_oneof![6 => 20.0..500.0_f64, 1 => Just(0.0)], regions);
        let load = prop_oneof![4 => 0.0..0.9_f64, 1 => 0.0..2.0_f64];
        let demand = prop::collection::vec(prop::collection::vec(load, classes), regions);
        (power, demand).prop_map(move |(power, loads)| {
            let rate = |load: &f64, power: f64| load * power.max(50.0) / classes as f64;
            let demand = loads.iter().zip(&power);
            let demand = demand.map(|(loads, power)| loads.iter().map(|load| rate(load, *power)).collect());
            World::new(power.clone(), demand.collect())
        })
    })
}

/// A world, and one with other power and demand in the same regions.
fn changing_worlds() -> impl Strategy<Value = (World, World)> {
    (worlds(), 0.2..3.0_f64, any::<prop::sample::Index>(), 0.0..1.0_f64).prop_map(
        |(world, times, at, kind)| {
            let mut later = world.clone();
            let at = at.index(world.power.len());
            match kind {
                kind if kind < 0.5 => later.demand[at].iter_mut().for_each(|rate| *rate *= times),
                kind if kind < 0.6 => later.power[at] = 0.0,
                kind if kind < 0.7 => later.keep[at] = 0.0,
                // One is drained and another lost, which takes that of the first.
                kind if kind < 0.8 => {
                    later.keep[at] = 0.0;
                    let other = (at + 1) % later.power.len();
                    later.power[other] = 0.0;
                }
                _ => later.power[at] *= times,
            }
            (world, later)
        },
    )
}

/// Plays some rounds of the first world, then some of the second, and checks each.
fn play((first, second): (World, World)) -> Result<(), TestCaseError> {
    let mut world = first;
    for round in 0..12 {
        if round == 4 {
            (world.power, world.demand) = (second.power.clone(), second.demand.clone());
            world.keep.clone_from(&second.keep);
        }
        check_round(&mut world)?;
    }
    check_rest(&mut world)
}

/// Where nothing changes any more, no region stays above what its calls aim at: no source waits for another for ever.
fn check_rest(world: &mut World) -> Result<(), TestCaseError> {
    let mut last = world.round();
    (0..60).for_each(|_| last = world.round());
    if last.refusal.is_some() {
        return Ok(());
    }
    let first = world.policy.rings[0].load;
    for (region, load) in world.loads(world.state.tables()).into_iter().enumerate() {
        // Below the threshold that was not met, calls have no reason to leave.
        let aimed = (last.aim[region] + world.policy.margin).max(first);
        let rounding = if world.power[region] > 0.0 { slack(world, region) } else { 0.0 };
        let bound = aimed + rounding;
        prop_assert!(load <= bound, "{region} stays at {load}, beyond {bound}: {last:?}, {:?}", world.demand);
    }
    Ok(())
}

fn check_round(world: &mut World) -> Result<(), TestCaseError> {
    let observation = world.observation();
    let before = world.state.tables().clone();
    let again = plan(world.input(&observation), &world.state);
    let plan = world.plan(&observation);
    prop_assert_eq!(&plan, &again, "the same input gives the same plan");
    for row in plan.state.tables().sources.iter().flat_map(|source| &source.classes) {
        prop_assert_eq!(row.shares.iter().sum::<u32>() + row.dropped, WHOLE);
        prop_assert!(row.shares.iter().chain([&row.dropped]).all(|share| *share == 0 || *share >= MIN_SHARE));
    }
    if plan.refusal.is_some() {
        prop_assert_eq!(plan.state.tables(), &before);
        return Ok(());
    }
    check_drops(world, &before, &plan)?;
    check_safety(world, &before, &plan)
}

/// Calls are dropped only where all regions that may take them are full, or will be at the aim.
fn check_drops(world: &World, before: &fairmesh_te::Tables, plan: &Plan) -> Result<(), TestCaseError> {
    // Of a region that has just come back the planner does not make use.
    if world.power.contains(&0.0) {
        return Ok(());
    }
    let full = world.policy.rings[world.policy.rings.len() - 1].load - world.policy.margin;
    for source in 0..world.power.len() {
        let drops_more = |class: usize| {
            let dropped = |tables: &fairmesh_te::Tables| tables.of(source, class).dropped;
            dropped(world.state.tables()) > dropped(before)
        };
        if !(0..world.policy.classes).any(drops_more) {
            continue;
        }
        for to in (0..world.power.len()).filter(|to| world.keep[*to] == 1.0) {
            let load = plan.aim[to].max(plan.predicted[to]);
            // Of each source that may send calls there, less than the least share may be left.
            let senders = (0..world.power.len()).filter(|from| *from == source || sends(world, *from, to));
            let slack = slack_of(world, senders, to);
            prop_assert!(load >= full - slack, "{to} has room: {:?}", plan.aim);
        }
    }
    Ok(())
}

/// A region is pushed above its first threshold only on the way to an aim that loads it so, and only if one of the sources
/// that send to it has no other region in its first two rings with room at that aim. On the way itself all destinations of
/// a source fill at one pace, the farther ones before the nearer ones are full. Not where a region is lost: its calls are
/// placed at once, while shifts that make room are paced.
fn check_safety(world: &World, before: &fairmesh_te::Tables, plan: &Plan) -> Result<(), TestCaseError> {
    if world.power.contains(&0.0) || world.keep.iter().any(|keep| *keep < 1.0) {
        return Ok(());
    }
    let loads = world.loads(before);
    let first = world.policy.rings[0].load;
    let ceiling = world.policy.rings[world.policy.rings.len() - 1].load;
    // What leaves a region above the last threshold does so at once, up to that threshold elsewhere.
    let relief = if loads.iter().any(|load| *load > ceiling) { ceiling } else { 0.0 };
    for (to, before_it) in loads.iter().enumerate() {
        let bound = before_it.max(first) + slack(world, to);
        if plan.predicted[to] <= bound {
            continue;
        }
        let overshoots = plan.predicted[to] > plan.aim[to].max(relief) + slack(world, to);
        let mut sources = (0..world.power.len()).filter(|source| *source != to);
        let is_pushed = sources.clone().any(|source| pushes(world, before, source, to));
        let is_needless =
            sources.all(|source| !sends(world, source, to) || could_spare(world, &plan.aim, source));
        prop_assert!(
            !is_pushed || !overshoots,
            "{to} is pushed beyond the aim: {:?}, {:?}",
            plan.predicted,
            plan.aim
        );
        prop_assert!(!is_pushed || !is_needless, "{to} is pushed while others have room: {:?}", plan.aim);
    }
    Ok(())
}

/// The load that rounding may add: less than the least share of each source and class.
fn slack(world: &World, to: usize) -> f64 {
    slack_of(world, 0..world.power.len(), to)
}

fn slack_of(world: &World, sources: impl Iterator<Item = usize>, to: usize) -> f64 {
    0.011 * sources.flat_map(|source| &world.demand[source]).sum::<f64>() / world.power[to]
}

/// Whether a plan sends more calls of a source to a region than before, and none home: sources that return leave farther
/// regions for nearer ones on their way.
fn pushes(world: &World, before: &fairmesh_te::Tables, source: usize, to: usize) -> bool {
    let after = world.state.tables();
    let grows = |class, to| after.of(source, class).shares[to] > before.of(source, class).shares[to];
    let any_grows = |to| (0..world.policy.classes).any(|class| grows(class, to));
    any_grows(to) && !any_grows(source)
}

/// Whether calls of a source go to a region.
fn sends(world: &World, source: usize, to: usize) -> bool {
    (0..world.policy.classes).any(|class| world.state.tables().of(source, class).shares[to] > 0)
}

/// Whether another region in the first two rings of a source has room at these loads.
fn could_spare(world: &World, loads: &[f64], source: usize) -> bool {
    let full = world.policy.rings[0].load - world.policy.margin;
    (0..loads.len()).any(|other| {
        let is_open = world.rings.ring(source, other).is_some_and(|ring| ring <= 1);
        is_open && other != source && loads[other] < full - slack(world, other)
    })
}

/// Numbers of reports that cannot be true, with some that can.
fn hostile() -> impl Strategy<Value = f64> {
    let special = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, f64::MIN_POSITIVE, 1e12, 0.5, 50.0];
    prop_oneof![4 => prop::sample::select(special.to_vec()), 1 => any::<f64>()]
}

/// As many as PROPTEST_CASES says, to look for rare ones.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rings_plans_are_complete_deterministic_and_fill_no_region_needlessly(worlds in changing_worlds()) {
        play(worlds)?;
    }

    #[test]
    fn hostile_reports_never_produce_invalid_table(
        world in worlds(),
        numbers in prop::collection::vec(hostile(), 40),
        times in prop::collection::vec(any::<u64>(), 14),
    ) {
        let mut world = world;
        world.round();
        let mut observation = world.observation();
        overwrite(&mut observation, &numbers, &times);
        let before = world.state.tables().clone();
        let plan = world.plan(&observation);
        for row in plan.state.tables().sources.iter().flat_map(|source| &source.classes) {
            prop_assert_eq!(row.shares.iter().sum::<u32>() + row.dropped, WHOLE);
        }
        if observation.regions.iter().any(|region| !region.power.is_finite()) {
            prop_assert!(plan.refusal.is_some());
            prop_assert_eq!(plan.state.tables(), &before);
        }
        prop_assert!(plan.predicted.iter().all(|load| load.is_finite()));
    }

    #[test]
    fn planner_state_with_other_region_or_class_count_is_refused(world in worlds()) {
        let mut world = world;
        world.state = PlannerState::new(world.power.len() + 1, world.policy.classes);
        let observation = world.observation_of_another_size();
        prop_assert!(world.plan(&observation).refusal.is_some());
    }
}

impl World {
    fn observation_of_another_size(&self) -> Observation {
        let mut world = self.clone();
        world.state = PlannerState::new(self.power.len(), self.policy.classes);
        world.observation()
    }
}

fn overwrite(observation: &mut Observation, numbers: &[f64], times: &[u64]) {
    let mut numbers = numbers.iter().copied().cycle();
    let mut next = || numbers.next().unwrap();
    for (region, at) in observation.regions.iter_mut().zip(times.iter().cycle()) {
        if next() > 0.4 {
            region.power = next();
        }
        let servers = region.servers.as_mut().unwrap();
        (servers.load, servers.received) = (next(), next());
        servers.at_ms = if at % 3 == 0 { *at } else { servers.at_ms };
        let callers = region.callers.as_mut().unwrap();
        callers.offered.iter_mut().for_each(|rate| *rate = next());
    }
}
