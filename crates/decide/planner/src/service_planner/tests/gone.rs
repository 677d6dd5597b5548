//! A region that vanishes with its servers and its callers, and returns.

use super::*;

impl World {
    /// A second in which `us` has neither servers nor callers, and `eu` half of what fills it.
    fn second_without_us(&mut self) {
        self.report();
        let us = region("us");
        let reports = &mut self.facts.reports;
        reports.heard.remove(&us);
        reports.servers.remove(&us);
        reports.servers.insert(region("eu"), servers(4, 50.0, 500.0));
        reports.calls.retain(|(path, _)| path.from != us);
        for (path, calls) in &mut reports.calls {
            *calls = rates(if path.to == Some(us.clone()) { 0.0 } else { 500.0 });
        }
        self.second();
    }
}

#[test]
fn returned_region_gets_calls_only_after_staying_up() {
    let mut world = World::started();
    let gone = world.facts.endpoints.insert(region("us"), RegionEndpoints::default()).unwrap();
    (0..30).for_each(|_| world.second_without_us());
    assert_eq!(world.reason(), None, "a region without servers needs no reports");
    assert_eq!(world.share("us", "eu"), 1.0);
    world.facts.endpoints.insert(region("us"), gone);
    world.seconds(50);
    assert_eq!(world.share("us", "us"), 0.0, "it may vanish again");
    world.seconds(180);
    assert!(world.share("us", "us") > 0.9, "{}", world.share("us", "us"));
}

#[test]
fn route_classes_may_change_while_region_has_no_endpoints() {
    let mut world = World::started();
    world.facts.endpoints.insert(region("us"), RegionEndpoints::default());
    (0..20).for_each(|_| world.second_without_us());
    world.facts.traffic.classes = vec![Label::new("bulk").unwrap()];
    (0..10).for_each(|_| world.second_without_us());
    assert_eq!(world.reason(), None);
}
