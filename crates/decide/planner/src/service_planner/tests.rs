mod confirmations;
mod drains;
mod gone;
mod wider_subsets;

use std::time::Duration;

use fairmesh_model::{
    CallPath, CallRates, LoadMetric, MetricSum, RegionInfo, ServerRates, ServiceName, Share, TableOrigin,
    Traffic, TrafficPlanner, Zone,
};

use super::*;
use crate::facts::{RegionEndpoints, StoredTable};

/// Calls per second that fill a region.
const FULL: f64 = 1_000.0;

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

/// Endpoints without a zone on ordinary hosts.
fn ordinary(count: u32) -> RegionEndpoints {
    let mut endpoints = RegionEndpoints::default();
    (0..count).for_each(|_| endpoints.add(None, Some(1_000)));
    endpoints
}

/// Two regions of the same power, and whatever a test makes of them.
struct World {
    facts: ServiceFacts,
    topology: TopologyFacts,
    planner: ServicePlanner,
    now: Now,
    revision: u64,
    /// Calls per second offered in `eu` and in `us`.
    offered: [f64; 2],
}

impl World {
    fn new() -> Self {
        let mut topology = TopologyFacts::default();
        topology.round_trips.set(region("eu"), region("us"), Duration::from_millis(20));
        let load = Some(LoadMetric { name: "busy".to_owned(), full_scale: 100 });
        let traffic = Traffic { planner: Some(TrafficPlanner::Rings), load, ..Traffic::default() };
        let mut world = Self {
            facts: ServiceFacts { traffic, ..ServiceFacts::default() },
            topology,
            planner: ServicePlanner::new(),
            now: Now { ms: 0, started_ms: 0, wall_ms: 1_000_000 },
            revision: 1,
            offered: [500.0, 300.0],
        };
        for name in ["eu", "us"] {
            world.facts.endpoints.insert(region(name), ordinary(4));
        }
        world.report();
        world
    }

    /// A world whose planner has made its first plans.
    fn started() -> Self {
        let mut world = Self::new();
        world.seconds(5);
        assert_eq!(world.planner.refused, None);
        world
    }

    /// The share of `from`'s calls that the tables in force send to `to`.
    fn share(&self, from: &str, to: &str) -> f64 {
        let Some(stored) = self.facts.tables.get(&region(from)) else {
            return f64::from(u8::from(from == to));
        };
        let shares = stored.table.shares.default.as_ref().unwrap();
        shares.to.get(&region(to)).map_or(0.0, |share| f64::from(share.millionths()) / 1e6)
    }

    /// The rounds of the tables in force.
    fn rounds(&self) -> BTreeSet<u64> {
        let round = |stored: &StoredTable| match stored.table.origin {
            TableOrigin::Planned(confirmed) => confirmed.round,
            TableOrigin::ByHand => 0,
        };
        self.facts.tables.values().map(round).collect()
    }

    /// The last round that was written.
    fn last_round(&self) -> u64 {
        self.rounds().last().copied().unwrap_or_default()
    }

    /// What callers and servers report while the tables in force are obeyed.
    fn report(&mut self) {
        let names = ["eu", "us"];
        let reports = &mut self.facts.reports;
        reports.heard = names.map(region).into();
        reports.calls.clear();
        let mut received = [0.0; 2];
        for (from, offered) in names.iter().zip(self.offered) {
            for (to, received) in names.iter().zip(&mut received) {
                let rate = offered * self.share(from, to);
                *received += rate;
                self.facts.reports.calls.push((path(from, Some(to)), rates(rate)));
            }
        }
        for (name, received) in names.iter().zip(received) {
            let servers = servers(4, received / FULL * 100.0, received);
            self.facts.reports.servers.insert(region(name), servers);
        }
    }

    /// A second later, with a round; returns what it writes. The writes succeed.
    fn second(&mut self) -> Vec<TableWrite> {
        self.now.ms += 1_000;
        self.now.wall_ms += 1_000;
        self.facts.reports.at_ms = self.now.ms;
        let writes = self.planner.round(&self.facts, &self.topology, self.now);
        self.apply(&writes);
        self.planner.written(&self.facts, &writes, self.now);
        writes
    }

    fn apply(&mut self, writes: &[TableWrite]) {
        self.revision += 1;
        for write in writes {
            let stored = self.facts.tables.get(&write.from).map(|stored| stored.revision);
            assert_eq!(write.replaces, stored, "the condition holds");
            match &write.table {
                Some(table) => {
                    table.validate().unwrap();
                    let stored = StoredTable { table: table.clone(), revision: self.revision };
                    self.facts.tables.insert(write.from.clone(), stored);
                }
                None => drop(self.facts.tables.remove(&write.from)),
            }
        }
    }

    fn seconds(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.second();
            self.report();
        }
    }

    fn reason(&self) -> Option<&'static str> {
        self.planner.refused.as_ref().map(|refused| refused.reason)
    }

    /// Rounds that are refused for this reason leave all tables as they are; afterwards planning goes on.
    fn keeps_its_tables(&mut self, reason: &str, rounds: u64, spoil: impl Fn(&mut Self)) {
        let before = self.facts.tables.clone();
        for round in 0..rounds {
            self.report();
            spoil(self);
            assert_eq!(self.second(), [], "{reason}, round {round}");
        }
        assert_eq!(self.reason(), Some(reason));
        assert!(self.planner.refused.as_ref().unwrap().text.contains("region us"));
        assert_eq!(self.facts.tables, before);
    }
}

fn path(from: &str, to: Option<&str>) -> CallPath {
    let service = ServiceName::new("shop/cart").unwrap();
    CallPath {
        service,
        from: region(from),
        to: to.map(region),
        class: None,
        caller: None,
        from_zone: None,
        to_zone: None,
        parent: None,
    }
}

fn rates(per_second: f64) -> CallRates {
    let milli = (per_second * 1_000.0) as u64;
    CallRates { offered: milli, attempts: milli, answered: milli, ..CallRates::default() }
}

fn servers(count: u32, busy: f64, received: f64) -> ServerRates {
    let sum = MetricSum { sum: busy * f64::from(count), servers: count };
    ServerRates {
        servers: count,
        counting: count,
        received: (received * 1_000.0) as u64,
        metrics: [("busy".to_owned(), sum)].into(),
        ..ServerRates::default()
    }
}

#[test]
fn load_spike_moves_calls_to_other_region_and_back() {
    let mut world = World::started();
    assert_eq!((world.share("eu", "eu"), world.share("us", "us")), (1.0, 1.0), "all are local");
    world.offered[0] = 900.0;
    world.seconds(3);
    let away = world.share("eu", "us");
    assert!(away > 0.05, "{away} within three seconds");
    world.seconds(20);
    let load = world.offered[0] * world.share("eu", "eu") / FULL;
    assert!((0.68..=0.75).contains(&load), "{load} is at the aim below 75 %");
    assert!(world.planner.shifts.iter().any(|shift| shift.text.starts_with("eu to us, ")));
    world.offered[0] = 300.0;
    world.seconds(120);
    assert!(world.share("eu", "eu") > 0.99, "{}", world.share("eu", "eu"));
    assert!(world.planner.shifts[0].text.contains("there is room again"));
}

#[test]
fn new_planner_waits_for_several_reports_of_all_regions() {
    let mut world = World::new();
    world.facts.reports.heard.remove(&region("us"));
    for second in 1..10 {
        assert_eq!(world.second(), []);
        assert_eq!(world.reason(), Some("starting"), "{second}");
    }
    world.report();
    assert_eq!(world.second().len(), 2, "all tables in one batch");
    let mut complete = World::new();
    assert_eq!((complete.second(), complete.second()), (vec![], vec![]));
    assert_eq!(complete.second().len(), 2, "three seconds are enough where all have reported");
    let mut silent = World::new();
    silent.facts.reports.heard.remove(&region("us"));
    silent.seconds_as_they_are(10);
    assert_eq!(silent.reason(), Some("callers_missing"));
}

impl World {
    fn seconds_as_they_are(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| drop(self.second()));
    }
}

#[test]
fn missing_or_absurd_traffic_reports_leave_region_tables_unchanged() {
    let mut world = World::started();
    world.offered[0] = 900.0;
    world.seconds(20);
    let us = || region("us");
    let servers = |world: &mut World, change: fn(&mut ServerRates)| {
        change(world.facts.reports.servers.get_mut(&region("us")).unwrap());
    };
    // Younger than 10 s, the last report is still planned from.
    world.seconds_without(&us(), 10);
    assert_eq!(world.reason(), None);
    world.keeps_its_tables("servers_stale", 3, |world| {
        drop(world.facts.reports.servers.remove(&region("us")))
    });
    world.seconds(2);
    assert_eq!(world.reason(), None, "it goes on");
    world.keeps_its_tables("absurd", 2, |world| {
        servers(world, |rates| rates.metrics.get_mut("busy").unwrap().sum = f64::NAN);
    });
    world.keeps_its_tables("absurd", 2, |world| {
        servers(world, |rates| rates.metrics.get_mut("busy").unwrap().sum *= 10.0);
    });
    world.keeps_its_tables("contradiction", 2, |world| {
        servers(world, |rates| rates.metrics.get_mut("busy").unwrap().sum = 0.0);
    });
    world.keeps_its_tables("disagreement", 2, |world| servers(world, |rates| rates.received = 0));
    world.keeps_its_tables("work_per_call", 2, |world| servers(world, |rates| rates.received *= 10));
    world.keeps_its_tables("work_per_call", 2, |world| {
        servers(world, |rates| rates.metrics.get_mut("busy").unwrap().sum /= 10.0);
    });
    world.seconds(2);
    assert_eq!(world.reason(), None);
}

impl World {
    /// Seconds in which the servers of a region do not report.
    fn seconds_without(&mut self, silent: &Region, seconds: u64) {
        for _ in 0..seconds {
            self.facts.reports.servers.remove(silent);
            self.second();
            self.report();
        }
    }
}

#[test]
fn service_with_incomplete_traffic_reports_is_not_planned() {
    let mut world = World::started();
    world.offered[0] = 900.0;
    world.seconds(20);
    let before = world.share("eu", "us");
    // Its callers are among what is left out: no calls would seem to be made, and all would be sent home.
    for _ in 0..5 {
        world.report();
        world.facts.reports.is_incomplete = true;
        world.facts.reports.calls.clear();
        assert_eq!(world.second(), []);
    }
    assert_eq!((world.reason(), world.share("eu", "us")), (Some("left_out"), before));
    world.facts.reports.is_incomplete = false;
    world.seconds(2);
    assert_eq!(world.reason(), None, "it goes on");
}

#[test]
fn planning_stops_without_caller_reports_or_with_few_server_reports() {
    let mut world = World::started();
    for _ in 0..11 {
        world.report();
        world.facts.reports.heard.remove(&region("us"));
        world.second();
    }
    assert_eq!(world.reason(), Some("callers_stale"));
    let mut world = World::started();
    for _ in 0..11 {
        world.report();
        world.facts.reports.servers.insert(region("us"), servers(1, 30.0, 75.0));
        world.second();
    }
    assert_eq!(world.reason(), Some("servers_stale"), "one of four servers");
    world.report();
    world.facts.reports.servers.insert(region("us"), servers(2, 30.0, 150.0));
    world.second();
    assert_eq!(world.reason(), None, "half of them stand for all");
}

#[test]
fn new_control_plane_continues_plan_of_its_predecessor() {
    let mut world = World::started();
    world.offered[0] = 900.0;
    world.seconds(20);
    let (before, round) = (world.share("eu", "us"), world.last_round());
    // It died between its plan and the write of it.
    world.offered[0] = 910.0;
    world.report();
    world.now.ms += 1_000;
    let _lost = world.planner.round(&world.facts, &world.topology, world.now);
    world.planner = ServicePlanner::new();
    world.now.started_ms = world.now.ms;
    world.seconds(3);
    assert!((world.share("eu", "us") - before).abs() < 0.03, "{} after {before}", world.share("eu", "us"));
    assert!(world.planner.round > round);
    assert_eq!(world.reason(), None);
}

#[test]
fn planner_continues_tables_of_faster_writer() {
    let mut world = World::started();
    world.offered[0] = 900.0;
    world.report();
    world.now.ms += 1_000;
    let late = world.planner.round(&world.facts, &world.topology, world.now);
    assert!(late.iter().all(|write| write.replaces.is_some()));
    // The other one has written by now: the batch fails, and nothing is noted.
    world.revision += 1;
    world.facts.tables.values_mut().for_each(|stored| stored.revision = world.revision);
    world.report();
    assert!(!world.second().is_empty(), "with the conditions of what is in force now");
    world.seconds(20);
    assert!(world.share("eu", "us") > 0.15);
}

#[test]
fn load_metric_beyond_full_scale_counts_as_full() {
    let mut world = World::started();
    world.offered[0] = 900.0;
    world.seconds(20);
    let before = world.share("eu", "us");
    for _ in 0..20 {
        world.report();
        let eu = world.facts.reports.servers.get_mut(&region("eu")).unwrap();
        let queue = eu.metrics.get_mut("busy").unwrap();
        // Three times the full scale.
        queue.sum = f64::from(queue.servers) * 300.0;
        world.second();
        assert_eq!(world.reason(), None);
    }
    assert!(world.share("eu", "us") > before, "{} after {before}", world.share("eu", "us"));
}

#[test]
fn region_whose_calls_get_few_or_no_responses_is_doubted() {
    for part in [2, 0] {
        let mut world = World::started();
        // Some calls of each region go to the other one, whose callers therefore count responses.
        world.offered[0] = 800.0;
        for _ in 0..40 {
            world.report();
            let to_eu =
                world.facts.reports.calls.iter_mut().filter(|(path, _)| path.to == Some(region("eu")));
            to_eu.for_each(|(_, rates)| rates.answered = rates.answered.checked_div(part).unwrap_or(0));
            world.second();
        }
        assert!(world.share("eu", "us") > 0.0);
        assert!(world.planner.doubted_regions().any(|(doubted, _)| *doubted == region("eu")));
        let doubt = |shift: &ShiftNote| shift.text.contains("the capacity of eu is doubted");
        assert!(world.planner.shifts.iter().any(doubt));
    }
}

#[test]
fn region_is_not_doubted_if_callers_count_no_responses_anywhere() {
    let mut world = World::started();
    for _ in 0..40 {
        world.report();
        world.facts.reports.calls.iter_mut().for_each(|(_, rates)| rates.answered = 0);
        world.second();
    }
    assert_eq!(world.planner.doubted_regions().count(), 0);
}

#[test]
fn delayed_reports_keep_age_of_their_data() {
    let mut world = World::started();
    world.seconds(20);
    let age = |world: &mut World, seconds| {
        let age = Duration::from_secs(seconds);
        world.facts.reports.servers.get_mut(&region("us")).unwrap().grow_older(age);
        let calls = world.facts.reports.calls.iter_mut().filter(|(path, _)| path.from == region("us"));
        calls.for_each(|(_, calls)| calls.grow_older(age));
    };
    age(&mut world, 4);
    world.second();
    let known = &world.planner.known[&region("us")];
    assert_eq!(known.servers.unwrap().at_ms, world.now.ms - 4_000);
    assert_eq!(known.callers.as_ref().unwrap().0, world.now.ms - 4_000);
    assert_eq!(world.reason(), None, "it is planned from");
    world.keeps_its_tables("callers_stale", 2, |world| age(world, 12));
}

#[test]
fn drain_forecast_latency_is_server_time_plus_round_trip() {
    let mut world = World::new();
    let [eu, us, ap] = ["eu", "us", "ap"].map(region);
    let ms = |ms| Some(Duration::from_millis(ms));
    let time = |world: &World, from: &Region, to: &Region| {
        world.facts.expected_time(from, to, &world.topology.round_trips)
    };
    world.facts.reports.calls.clear();
    assert_eq!(time(&world, &eu, &us), None, "of no calls");
    let timed = |per_second: f64, ms: f64| {
        // Half of them have no response.
        let counted = rates(per_second);
        CallRates { offered: counted.offered * 2, time_us: (per_second * ms * 1_000.0) as u64, ..counted }
    };
    world.facts.reports.calls.push((path("eu", Some("eu")), timed(100.0, 8.0)));
    assert_eq!((time(&world, &eu, &eu), time(&world, &eu, &us)), (ms(8), ms(28)), "as fast as those at home");
    world.facts.reports.calls.push((path("us", Some("us")), timed(50.0, 4.0)));
    assert_eq!(time(&world, &eu, &us), ms(24), "by what callers there see");
    world.facts.reports.calls.insert(1, (path("eu", Some("us")), timed(1.0, 30.0)));
    assert_eq!((time(&world, &eu, &us), world.facts.response_time(&eu, &us)), (ms(30), ms(30)), "as it is");
    assert_eq!((time(&world, &eu, &ap), time(&world, &ap, &eu)), (None, None), "at an unknown distance");
}

#[test]
fn cpu_reported_by_few_servers_is_not_used_as_regions_load() {
    let mut facts = World::new().facts;
    facts.traffic.load = None;
    let rates = ServerRates {
        servers: 4,
        measured: 1,
        counting: 4,
        received: 1_000,
        cpu_millicores: 900,
        limit_millicores: 1_000,
        ..ServerRates::default()
    };
    facts.reports.servers.insert(region("eu"), rates.clone());
    assert_eq!(facts.servers_in(&region("eu")), None, "one of four");
    facts.reports.servers.insert(region("eu"), ServerRates { measured: 2, ..rates });
    assert!(facts.servers_in(&region("eu")).is_some(), "half of them");
}

#[test]
fn draining_region_keeps_own_callers_and_gets_no_other_calls() {
    let mut world = World::started();
    let drains = RegionInfo { draining: true, ..RegionInfo::default() };
    world.topology.regions.regions.insert(region("us"), drains);
    world.offered = [900.0, 300.0];
    world.seconds(30);
    assert_eq!((world.share("eu", "us"), world.share("us", "us")), (0.0, 1.0));
}

#[test]
fn local_only_services_and_too_many_regions_are_not_planned() {
    let mut world = World::started();
    world.facts.local_only = true;
    assert_eq!(world.second(), []);
    assert_eq!(world.reason(), Some("local_only"));
    world.facts.local_only = false;
    for n in 0..MAX_TABLE_REGIONS {
        world.facts.endpoints.insert(region(&format!("r{n}")), ordinary(1));
    }
    world.second();
    assert_eq!(world.reason(), Some("mismatch"));
}

#[test]
fn lowest_priority_classes_are_dropped_first_without_capacity() {
    let mut world = World::new();
    let bulk = Label::new("bulk").unwrap();
    world.facts.traffic.classes = vec![bulk.clone()];
    world.offered = [1_300.0, 1_000.0];
    for _ in 0..30 {
        world.report();
        // Half of the calls of each region are bulk, and what is dropped is not served.
        let calls = std::mem::take(&mut world.facts.reports.calls);
        for (path, rates) in calls {
            let half = CallRates { offered: rates.offered / 2, attempts: rates.attempts / 2, ..rates };
            let class = Some(bulk.clone());
            world.facts.reports.calls.push((CallPath { class, ..path.clone() }, half));
            world.facts.reports.calls.push((path, half));
        }
        world.second();
    }
    let eu = &world.facts.tables[&region("eu")].table.shares;
    assert_eq!(eu.default.as_ref().unwrap().dropped, Share::NONE);
    assert!(eu.classes[&bulk].dropped > Share::NONE, "{eu:?}");
}

fn zone(name: &str) -> Zone {
    Zone::new(name).unwrap()
}

/// Reports that say which zone the callers in `eu` are in, all of whose calls come from `a`.
fn zoned(world: &mut World) {
    for (path, _) in &mut world.facts.reports.calls {
        path.from_zone = (path.from == region("eu")).then(|| zone("a"));
    }
}

#[test]
fn zone_shares_need_caller_zone_reports_and_keep_calls_within_power() {
    let mut world = World::new();
    world.facts.zone_first = true;
    let mut endpoints = RegionEndpoints::default();
    for name in ["a", "b", "b", "b"] {
        endpoints.add(Some(&zone(name)), Some(1_000));
    }
    world.facts.endpoints.insert(region("eu"), endpoints);
    world.seconds(5);
    assert!(world.facts.tables[&region("eu")].table.zones.is_empty());
    let refusal = |world: &World| world.planner.zones[&region("eu")].refusal.clone();
    assert_eq!(refusal(&world).as_deref(), Some("no caller in eu reports its zone"));
    world.offered[0] = 0.0;
    world.seconds(2);
    assert_eq!(refusal(&world), None, "there are no calls to say anything of");
    world.offered[0] = 500.0;
    world.report();
    for _ in 0..3 {
        zoned(&mut world);
        world.seconds(1);
    }
    zoned(&mut world);
    world.second();
    let shares = world.facts.tables[&region("eu")].table.zones[&zone("a")].clone();
    let expected = [("a", 262_500), ("b", 737_500)]
        .map(|(name, share)| (zone(name), Share::of_millionths(share).unwrap()));
    assert_eq!((shares, refusal(&world)), (expected.into(), None));
    world.report();
    zoned(&mut world);
    world.facts.endpoints.get_mut(&region("eu")).unwrap().add(None, Some(1_000));
    world.second();
    assert!(
        world.facts.tables[&region("eu")].table.zones.is_empty(),
        "endpoints without a zone would get nothing"
    );
    assert!(refusal(&world).unwrap().contains("--zone"));
}
