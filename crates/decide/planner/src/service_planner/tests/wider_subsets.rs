//! Regions with many servers, where few callers with small subsets reach a part.

use super::*;

/// Servers that report their CPU, and the same load by a metric.
fn cpu_servers(count: u32, load: f64) -> ServerRates {
    let limit_millicores = u64::from(count) * 1_000;
    ServerRates {
        measured: count,
        limit_millicores,
        cpu_millicores: (load * limit_millicores as f64) as u64,
        ..servers(count, load * 100.0, load * FULL)
    }
}

fn level(utilisation: f64) -> usize {
    ((utilisation * 20.0) as usize).min(19)
}

impl World {
    /// A world of so many servers in each region.
    fn of_servers(count: u32) -> Self {
        let mut world = Self::new();
        world.facts.traffic.load = None;
        for name in ["eu", "us"] {
            world.facts.endpoints.insert(region(name), ordinary(count));
        }
        world.offered = [700.0, 300.0];
        world
    }

    /// A world of 64 servers in each region. Callers in `eu` use so many of them.
    fn of_many_servers() -> Self {
        Self::of_servers(64)
    }

    /// Calls per second that the last report counts at the servers of a region, as a part of its capacity.
    fn load(&self, name: &str) -> f64 {
        self.facts.reports.servers[&region(name)].received as f64 / (FULL * 1e3)
    }

    /// A second in which calls of `eu` fill the servers that subsets of this size reach.
    fn second_with_subset(&mut self, subset: u32) {
        self.second_with_used((subset * 5 / 2).min(64));
    }

    /// A second in which calls of `eu` use so many of its servers.
    fn second_with_used(&mut self, used: u32) {
        self.report();
        for (name, used) in [("eu", used), ("us", 64)] {
            let load = self.load(name);
            let mut rates = cpu_servers(64, load);
            rates.by_utilisation[level(load * 64.0 / f64::from(used))] = used;
            rates.by_utilisation[0] += 64 - used;
            self.facts.reports.servers.insert(region(name), rates);
        }
        self.second();
    }

    fn seconds_with_used(&mut self, used: u32, seconds: u64) {
        (0..seconds).for_each(|_| self.second_with_used(used));
    }

    /// The subset of callers in `eu` that the tables in force ask for.
    fn subset(&self) -> Option<u32> {
        self.facts.tables[&region("eu")].table.subsets.get(&region("eu")).copied()
    }

    fn obeying(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let subset = self.facts.tables.get(&region("eu")).and_then(|_| self.subset());
            self.second_with_subset(subset.unwrap_or(20));
        }
    }
}

#[test]
fn uneven_load_widens_subset_once_and_calls_stay_in_region() {
    let mut world = World::of_many_servers();
    world.obeying(10);
    assert_eq!(world.subset(), Some(40), "50 of 64 servers are at 90 %");
    assert_eq!(world.facts.tables[&region("us")].table.subsets, [].into(), "it calls only itself");
    let texts: Vec<_> = world.planner.shifts.iter().map(|shift| shift.text.as_str()).collect();
    let growth = "callers use 40 instead of 20 of the 64 endpoints of eu: a tenth of these is above 89 % of its CPU, the mean is 69 %";
    assert!(texts.contains(&growth), "{texts:#?}");
    world.obeying(180);
    assert_eq!(world.subset(), Some(40));
    let home = world.share("eu", "eu");
    assert!(home > 0.97, "{home}: up to 7 % below the threshold");
    assert_eq!(world.planner.doubted_regions().count(), 0);
}

#[test]
fn calls_leave_region_if_wider_subsets_do_not_help() {
    let mut world = World::of_many_servers();
    (0..120).for_each(|_| world.second_with_subset(20));
    assert_eq!(world.subset(), Some(40), "it grows once");
    let load = world.offered[0] * world.share("eu", "eu") / FULL;
    assert!((0.5..0.6).contains(&load), "{load}: 75 % of 50 of 64 servers");
    let doubt = |shift: &ShiftNote| shift.text.contains("callers do not reach all of its servers");
    assert!(world.planner.shifts.iter().any(doubt));
    let cause = |shift: &ShiftNote| shift.text.contains("its servers that callers reach would be");
    assert!(world.planner.shifts.iter().any(cause));
}

#[test]
fn spread_is_ignored_where_callers_use_every_endpoint_or_load_is_a_metric() {
    let unlimited = |facts: &mut ServiceFacts| facts.subset = crate::Subset(0);
    let keyed = |facts: &mut ServiceFacts| facts.kind = fairmesh_model::ServiceKind::ConsistentHash;
    let by_metric = |facts: &mut ServiceFacts| {
        facts.traffic.load = Some(LoadMetric { name: "busy".to_owned(), full_scale: 100 });
    };
    for change in [unlimited, keyed, by_metric] {
        let mut world = World::of_many_servers();
        change(&mut world.facts);
        (0..60).for_each(|_| world.second_with_subset(20));
        assert_eq!((world.subset(), world.share("eu", "eu")), (None, 1.0));
    }
}

#[test]
fn spread_of_servers_is_known_once_half_of_them_report_it() {
    let mut facts = World::of_many_servers().facts;
    let spread = |facts: &mut ServiceFacts, by_level: &[(usize, u32)]| {
        let mut rates = cpu_servers(64, 0.5);
        by_level.iter().for_each(|(level, count)| rates.by_utilisation[*level] = *count);
        facts.reports.servers.insert(region("eu"), rates);
        facts
            .spread_in(&region("eu"))
            .map(|spread| [spread.mean, spread.p90].map(|load| (load * 1e3).round()))
    };
    assert_eq!(spread(&mut facts, &[]), None, "of a release before");
    assert_eq!(spread(&mut facts, &[(10, 31)]), None);
    assert_eq!(spread(&mut facts, &[(10, 64)]), Some([525.0, 545.0]));
    assert_eq!(spread(&mut facts, &[(0, 14), (19, 50)]), Some([767.0, 994.0]));
    assert_eq!(spread(&mut facts, &[(5, 60), (19, 4)]), Some([319.0, 298.0]), "fewer than a tenth");
}

#[test]
fn subsets_grow_again_when_other_callers_reach_less_than_before() {
    let grown = || {
        let mut world = World::of_many_servers();
        world.seconds_with_used(50, 40);
        assert_eq!(world.subset(), Some(40), "it grows once: the growth does not help");
        world
    };
    let mut fewer_callers = grown();
    fewer_callers.seconds_with_used(38, 20);
    assert_eq!(fewer_callers.subset(), Some(80), "callers have gone");
    let mut others = grown();
    others.seconds_with_used(64, 10);
    others.seconds_with_used(50, 20);
    assert_eq!(others.subset(), Some(80), "the region was even in between");
}

#[test]
fn subsets_grow_further_after_restart_of_control_plane() {
    let mut world = World::of_many_servers();
    world.seconds_with_used(30, 10);
    assert_eq!(world.subset(), Some(40));
    (world.planner, world.now.started_ms) = (ServicePlanner::new(), world.now.ms);
    world.seconds_with_used(30, 40);
    assert_eq!(world.subset(), Some(80));
}

#[test]
fn subsets_shrink_ten_minutes_after_load_has_gone() {
    for restarts in [false, true] {
        let mut world = World::of_many_servers();
        world.seconds_with_used(50, 10);
        assert_eq!(world.subset(), Some(40));
        world.offered[0] = 200.0;
        world.seconds_with_used(64, 5 * 60);
        if restarts {
            (world.planner, world.now.started_ms) = (ServicePlanner::new(), world.now.ms);
        }
        let left_s = if restarts { 10 * 60 } else { 5 * 60 };
        world.seconds_with_used(64, left_s - 5);
        assert_eq!(world.subset(), Some(40), "{restarts}");
        world.seconds_with_used(64, 15);
        assert_eq!(world.subset(), None, "{restarts}");
    }
}

#[test]
fn subset_grows_by_what_is_left_of_it_for_a_small_share() {
    let mut world = World::of_servers(16);
    world.offered = [830.0, 300.0];
    let hot = |world: &World| {
        let share = world.share("eu", "us");
        let whole =
            world.facts.tables.get(&region("eu")).and_then(|stored| stored.table.subsets.get(&region("us")));
        let share = Share::of_millionths((share * 1e6).round() as u32).unwrap();
        fairmesh_model::subset_for_share(whole.copied().unwrap_or(20), share).min(16)
    };
    for _ in 0..90 {
        world.report();
        let (eu, own) = (world.load("eu"), world.offered[1] * world.share("us", "us") / FULL);
        let (us, hot) = (world.load("us"), hot(&world));
        let mut rates = cpu_servers(16, eu);
        rates.by_utilisation[level(eu)] = 16;
        world.facts.reports.servers.insert(region("eu"), rates);
        let mut rates = cpu_servers(16, us);
        rates.by_utilisation[level(own + (us - own) * 16.0 / f64::from(hot))] += hot;
        rates.by_utilisation[level(own)] += 16 - hot;
        world.facts.reports.servers.insert(region("us"), rates);
        world.second();
    }
    let growth = |shift: &&ShiftNote| shift.text.contains("of the 16 endpoints of us");
    let growths: Vec<_> = world.planner.shifts.iter().filter(growth).collect();
    assert!(growths.iter().all(|shift| shift.from == region("eu")), "{growths:#?}");
    assert!(growths.last().is_some_and(|first| first.text.contains(" instead of 3 of")), "{growths:#?}");
    assert_eq!(world.planner.doubted_regions().count(), 0, "callers in eu use {} of 16 in us", hot(&world));
}

#[test]
fn small_share_of_region_with_few_servers_is_no_partial_subset() {
    let partial = |servers: u32| {
        let mut world = World::of_servers(servers);
        let to = [("eu", 900_000), ("us", 100_000)]
            .map(|(name, share)| (region(name), Share::of_millionths(share).unwrap()));
        let shares = fairmesh_model::RegionShares { to: to.into(), dropped: Share::NONE };
        let shares = TrafficShares { default: Some(shares), ..TrafficShares::default() };
        let (zones, subsets, origin) = (BTreeMap::new(), BTreeMap::new(), TableOrigin::ByHand);
        let table = fairmesh_model::RegionTable { shares, zones, subsets, origin };
        world.facts.tables.insert(region("eu"), StoredTable { table, revision: 1 });
        world.report();
        world.facts.partial_subset(&region("us")).map(|partial| partial.endpoints(20))
    };
    assert_eq!([4, 9, 10, 16].map(partial), [None, None, Some(2), Some(2)]);
}

#[test]
fn planner_in_shadow_mode_says_what_callers_would_use() {
    let mut world = World::of_many_servers();
    world.facts.traffic.mode = TrafficMode::Shadow;
    world.seconds_with_used(50, 10);
    assert!(world.facts.tables.is_empty(), "no table asks for it");
    let texts: Vec<_> = world.planner.shifts.iter().map(|shift| shift.text.as_str()).collect();
    assert!(
        texts.iter().any(|text| text.starts_with("callers would use 40 instead of 20 of the 64")),
        "{texts:#?}"
    );
}
