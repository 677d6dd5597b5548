//! Regions with many servers, where few callers with small subsets reach a part.

use super::*;

impl World {
    /// A world of 64 servers in each region. Callers in `eu` use so many of them.
    fn of_many_servers() -> Self {
        let mut world = Self::new();
        for name in ["eu", "us"] {
            world.facts.endpoints.insert(region(name), ordinary(64));
        }
        world.offered = [700.0, 300.0];
        world
    }

    /// A second in which calls of `eu` fill the servers that subsets of this size reach.
    fn second_with_subset(&mut self, subset: u32) {
        self.report();
        for (name, used) in [("eu", (subset * 5 / 2).min(64)), ("us", 64)] {
            let rates = self.facts.reports.servers.get_mut(&region(name)).unwrap();
            let load = f64::from(rates.received as u32) / 1e6;
            *rates = servers(64, load * 100.0, load * FULL);
            let level = (load * 64.0 / f64::from(used) * 20.0) as usize;
            rates.by_utilisation[level.min(19)] = used;
            rates.by_utilisation[0] += 64 - used;
        }
        self.second();
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
fn spread_is_ignored_where_every_caller_may_use_every_endpoint() {
    let unlimited = |facts: &mut ServiceFacts| facts.subset = crate::Subset(0);
    let keyed = |facts: &mut ServiceFacts| facts.kind = fairmesh_model::ServiceKind::ConsistentHash;
    for change in [unlimited, keyed] {
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
        let mut rates = servers(64, 50.0, 500.0);
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
