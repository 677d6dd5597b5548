//! How often tables in force are written again.

use super::*;

#[test]
fn region_tables_are_confirmed_only_while_planning_succeeds() {
    let mut world = World::started();
    let written: Vec<usize> = (0..480)
        .map(|_| {
            world.report();
            world.second().len()
        })
        .collect();
    assert_eq!(written.iter().sum::<usize>(), 4, "both tables every 240 s: {written:?}");
    let rounds = world.rounds();
    assert!(rounds.len() == 1 && rounds.first().is_some_and(|round| *round > 400), "{rounds:?}");
    let stopped = (0..60).map(|_| {
        world.report();
        world.facts.reports.servers.clear();
        world.second().len()
    });
    assert_eq!(stopped.skip(11).sum::<usize>(), 0);
}

#[test]
fn region_tables_that_drop_calls_are_confirmed_three_times_per_minute() {
    let mut world = World::started();
    world.offered = [1_200.0, 900.0];
    world.seconds(60);
    let dropping = |world: &World| {
        let tables = world.facts.tables.iter().filter(|(_, stored)| stored.table.shares.drops());
        tables.map(|(from, _)| from.clone()).collect::<BTreeSet<_>>()
    };
    let from = dropping(&world);
    assert!(!from.is_empty(), "{:?}", world.facts.tables);
    let mut written = Vec::new();
    for _ in 0..60 {
        world.report();
        written.extend(world.second().into_iter().map(|write| write.from));
    }
    assert_eq!(dropping(&world), from);
    assert!(from.iter().all(|from| written.iter().filter(|one| *one == from).count() >= 3), "{written:?}");
}

#[test]
fn table_confirmations_are_spread_over_time_also_after_takeover() {
    let mut planners: Vec<_> = (0..40)
        .map(|number| {
            let planner = ServicePlanner::of(&ServiceName::new(format!("shop/s{number}")).unwrap());
            World { planner, ..World::new() }
        })
        .collect();
    planners.iter_mut().for_each(|world| world.seconds(10));
    // Another control plane takes over.
    for (number, world) in planners.iter_mut().enumerate() {
        world.planner = ServicePlanner::of(&ServiceName::new(format!("shop/s{number}")).unwrap());
        world.now.started_ms = world.now.ms;
    }
    let written: Vec<usize> = (0..600)
        .map(|_| {
            let second = |world: &mut World| {
                world.report();
                world.second().len()
            };
            planners.iter_mut().map(second).sum()
        })
        .collect();
    let first: usize = written[..62].iter().sum();
    assert!(
        (80..=110).contains(&first),
        "{first}: all in a minute, and few of them by their usual turn as well"
    );
    assert!(written.iter().all(|records| *records <= 8), "{written:?}");
    assert_eq!(written[360..].iter().sum::<usize>(), 80, "once in 240 s");
}

#[test]
fn confirmations_of_tables_that_begin_to_drop_together_are_spread() {
    let mut planners: Vec<_> = (0..40)
        .map(|number| {
            let planner = ServicePlanner::of(&ServiceName::new(format!("shop/s{number}")).unwrap());
            let mut world = World { planner, ..World::new() };
            world.seconds(10);
            world.offered = [1_200.0, 900.0];
            world.seconds(60);
            world
        })
        .collect();
    assert!(planners.iter().all(|world| world.planner.state.tables().drops()));
    let second = |world: &mut World| {
        world.report();
        world.second().len()
    };
    let written: Vec<usize> = (0..40).map(|_| planners.iter_mut().map(second).sum()).collect();
    assert!(written.iter().sum::<usize>() >= 80, "each service twice in 40 s: {written:?}");
    assert!(written.iter().all(|records| *records <= 16), "a tenth of 160: {written:?}");
}

#[test]
fn shadow_mode_writes_no_tables_and_hold_mode_changes_none() {
    let mut world = World::started();
    world.facts.traffic.mode = TrafficMode::Hold;
    world.offered[0] = 900.0;
    let mut written = 0;
    for _ in 0..480 {
        world.report();
        written += world.second().len();
    }
    assert_eq!((world.share("eu", "eu"), world.reason()), (1.0, Some("held")));
    assert_eq!(written, 4, "they are confirmed: a person stands by them");
    world.facts.traffic.mode = TrafficMode::Shadow;
    world.facts.tables.clear();
    for _ in 0..20 {
        world.report();
        assert_eq!(world.second(), []);
    }
    let planned = world.planner.shares().find(|(from, _)| **from == region("eu")).unwrap().1;
    let share = planned.default.unwrap().to[&region("us")];
    assert!(share > Share::NONE, "and yet it is planned");
}
