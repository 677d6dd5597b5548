//! Drains of regions, as far as one service takes part in them.

use fairmesh_model::RegionDrain;

use super::*;
use crate::{
    facts::StoredDrain,
    lone_shards::{LoneShards, tests::map},
};

#[test]
fn region_drain_continues_past_lone_shards_and_names_them() {
    let mut world = World::started();
    let drained = RegionDrain::begin(None, false, Duration::ZERO, world.now.wall_ms);
    let gone = RegionDrain { keep: Share::NONE, ..drained };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: gone, revision: 1 });
    world.offered = [300.0, 300.0];
    world.seconds(60);
    assert_eq!(world.share("eu", "eu"), 0.0);
    // Half of the calls stay all the same.
    for (path, calls) in &mut world.facts.reports.calls {
        if path.from == region("eu") {
            *calls = rates(150.0);
        }
    }
    for (name, received) in [("eu", 150.0), ("us", 450.0)] {
        let servers = servers(4, received / FULL * 100.0, received);
        world.facts.reports.servers.insert(region(name), servers);
    }
    let lone = LoneShards::of(&map(&[&[("primary", "eu")], &[("primary", "eu"), ("primary", "us")]]));
    let mut steps = Vec::new();
    for lone in [LoneShards::default(), lone] {
        world.facts.lone_shards = lone.into();
        world.second();
        let drain = (&region("eu"), &gone);
        steps.push(world.planner.drain_step(&world.facts, &world.topology, drain, world.now).unwrap());
    }
    assert!(matches!(&steps[0], DrainStep::Wait(what) if what.contains("50 %")), "{steps:?}");
    assert_eq!(steps[1], DrainStep::Advance(Share::NONE));
    let forecast = world.planner.forecast(&world.facts, &world.topology, &region("eu"), world.now.ms);
    let forecast = forecast.unwrap().unwrap();
    assert!((forecast.staying - 150.0).abs() < 1.0, "{forecast:?}");
}

#[test]
fn region_drain_step_waits_until_reports_show_previous_step() {
    let mut world = World::started();
    let begun = RegionDrain::begin(None, false, Duration::ZERO, world.now.wall_ms);
    let drained = RegionDrain { keep: Share::of_millionths(800_000).unwrap(), ..begun };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: drained, revision: 1 });
    world.offered = [300.0, 300.0];
    world.seconds(60);
    assert!((world.share("eu", "eu") - 0.8).abs() < 0.016, "{}", world.share("eu", "eu"));
    let mut step_of = |staying: f64| {
        for (path, calls) in &mut world.facts.reports.calls {
            if path.from == region("eu") {
                let share = if path.to == Some(region("eu")) { staying } else { 1.0 - staying };
                *calls = rates(300.0 * share);
            }
        }
        world.second();
        let drain = (&region("eu"), &drained);
        world.planner.drain_step(&world.facts, &world.topology, drain, world.now).unwrap()
    };
    let before = step_of(0.9);
    assert!(matches!(&before, DrainStep::Wait(what) if what.contains("90 %")), "{before:?}");
    assert_eq!(step_of(0.81), DrainStep::Advance(Share::of_millionths(700_000).unwrap()));
}

#[test]
fn region_drain_step_waits_for_changed_tables_of_other_regions() {
    // There are no callers in `eu`, so that only the table of `us` has to change.
    let mut world = World::started();
    world.offered = [0.0, 800.0];
    world.seconds(30);
    assert!(world.share("us", "eu") > 0.03, "{}", world.share("us", "eu"));
    let begun = RegionDrain::begin(None, false, Duration::ZERO, world.now.wall_ms);
    let drained = RegionDrain { keep: Share::of_millionths(900_000).unwrap(), ..begun };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: drained, revision: 1 });
    let step = |world: &World| {
        let drain = (&region("eu"), &drained);
        world.planner.drain_step(&world.facts, &world.topology, drain, world.now).unwrap()
    };
    let waits = DrainStep::Wait("tables to reach the present step".to_owned());
    assert_eq!(step(&world), waits, "the table is that of before the drain");
    // A plan that is not in force: it sends none there, and calls still follow the table of `us` of before.
    let mut unwritten = world.planner.clone();
    let before = ServiceFacts { tables: BTreeMap::new(), ..world.facts.clone() };
    unwritten.round(&before, &world.topology, world.now);
    let planned: BTreeMap<Region, TrafficShares> =
        unwritten.shares().map(|(from, shares)| (from.clone(), shares)).collect();
    assert!(!planned[&region("us")].default.as_ref().unwrap().to.contains_key(&region("eu")));
    let mut facts = world.facts.clone();
    facts.tables.get_mut(&region("eu")).unwrap().table.shares = planned[&region("eu")].clone();
    let step_of_plan = unwritten.drain_step(&facts, &world.topology, (&region("eu"), &drained), world.now);
    assert_eq!(step_of_plan, Some(waits.clone()));
    let mut seconds = 0;
    while step(&world) == waits {
        world.seconds(1);
        seconds += 1;
        assert!(seconds < 60, "{}", world.share("us", "eu"));
    }
    assert_eq!(
        (world.share("us", "eu"), step(&world)),
        (0.0, DrainStep::Advance(Share::of_millionths(800_000).unwrap()))
    );
}

#[test]
fn region_undrain_ends_once_no_further_calls_return() {
    let mut world = World::started();
    let begun = RegionDrain::begin(None, false, Duration::ZERO, world.now.wall_ms);
    let gone = RegionDrain { keep: Share::NONE, ..begun };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: gone, revision: 1 });
    world.offered = [300.0, 300.0];
    world.seconds(60);
    assert_eq!(world.share("eu", "eu"), 0.0);
    let back = RegionDrain { keep: Share::ALL, returns: true, ..begun };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: back, revision: 2 });
    let mut waits = 0;
    loop {
        world.seconds(1);
        let drain = (&region("eu"), &back);
        match world.planner.drain_step(&world.facts, &world.topology, drain, world.now).unwrap() {
            DrainStep::Wait(what) if what.contains("come home") => waits += 1,
            step => {
                assert_eq!(step, DrainStep::Advance(Share::ALL));
                break;
            }
        }
        assert!(waits < 120, "{}", world.share("eu", "eu"));
    }
    assert_eq!(world.share("eu", "eu"), 1.0);
    assert!(waits > 10, "by 2 % a round: {waits}");
}

#[test]
fn region_drain_step_that_would_drop_calls_is_held() {
    let mut world = World::started();
    let begun = RegionDrain::begin(None, false, Duration::ZERO, world.now.wall_ms);
    let half = RegionDrain { keep: Share::of_millionths(500_000).unwrap(), ..begun };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: half, revision: 1 });
    world.offered = [300.0, 300.0];
    world.seconds(60);
    // Both regions have calls for more than nine tenths of one: those of the drained region stay above its step.
    world.offered = [700.0, 750.0];
    world.seconds(60);
    assert!(world.share("eu", "eu") > 0.55, "{}", world.share("eu", "eu"));
    let drain = (&region("eu"), &half);
    let step = world.planner.drain_step(&world.facts, &world.topology, drain, world.now);
    assert!(matches!(step, Some(DrainStep::Hold(_))), "{step:?}");
}

#[test]
fn region_drain_step_is_judged_by_tables_in_force() {
    let mut world = World::started();
    let begun = RegionDrain::begin(None, false, Duration::ZERO, world.now.wall_ms);
    let share = |millionths| Share::of_millionths(millionths).unwrap();
    let drained = RegionDrain { keep: share(900_000), ..begun };
    world.topology.drains.insert(region("eu"), StoredDrain { drain: drained, revision: 1 });
    world.seconds(20);
    let shares = |planner: &ServicePlanner| planner.shares().map(|(_, shares)| shares).collect::<Vec<_>>();
    let before = shares(&world.planner);
    // Another plan, which is not written yet.
    let further = RegionDrain { keep: share(850_000), ..begun };
    let mut other = world.topology.clone();
    other.drains.insert(region("eu"), StoredDrain { drain: further, revision: 2 });
    world.now.ms += 1_000;
    let _unwritten = world.planner.round(&world.facts, &other, world.now);
    assert_ne!(shares(&world.planner), before);
    let drain = (&region("eu"), &drained);
    let step = world.planner.drain_step(&world.facts, &world.topology, drain, world.now);
    assert_eq!(step, Some(DrainStep::Advance(share(800_000))));
}
