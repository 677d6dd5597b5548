//! A shop of two services in three regions, whose callers obey the tables in force and whose servers wait as with processor sharing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fairmesh_model::{
    CallNode, CallPath, CallRates, Region, ServedPath, ServedRates, ServerRates, ServiceName, Traffic,
    TrafficPlanner, TrafficReport,
};

use crate::{
    InSequence, MeshPlanner, Now, RegionEndpoints, ServiceFacts, ServicePlan, ServiceReports, ServiceRound,
    StoredTable, TopologyFacts, Verdict,
};

pub(super) const REGIONS: [&str; 3] = ["ap", "eu", "us"];
/// Cores of a service in each region.
const CORES: f64 = 4.0;
/// CPU seconds of a call, of `web` and of `cart`.
const WORK: [f64; 2] = [0.010, 0.020];
/// Milliseconds of a call besides its CPU.
const BASE_MS: f64 = 1.0;
/// Bytes of a response.
const BYTES: f64 = 10_000.0;
/// What a full server's utilisation counts as at most, for what its calls take.
const FULL: f64 = 0.98;

pub(super) fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

pub(super) fn service(name: &str) -> ServiceName {
    ServiceName::new(format!("shop/{name}")).unwrap()
}

pub(super) struct World {
    pub(super) planner: MeshPlanner,
    pub(super) facts: BTreeMap<ServiceName, Arc<ServiceFacts>>,
    pub(super) topology: TopologyFacts,
    pub(super) now: Now,
    /// Calls per second of clients to `web`, by region.
    pub(super) demand: [f64; 3],
    /// Calls to `cart` for each call of `web`.
    pub(super) calls: f64,
    /// Whether `web` names the call for which it calls `cart`.
    pub(super) names_parents: bool,
    /// Attempts for each call.
    pub(super) attempts: f64,
    /// What the CPU of the servers of `cart` in `eu` is multiplied with in reports.
    pub(super) lie: f64,
    /// How many times as much CPU calls of `cart` take in `eu`.
    pub(super) slowness: f64,
    /// Milliseconds that calls of `cart` take longer in `eu`.
    pub(super) delay_ms: f64,
    /// Milliseconds that calls of `cart` take longer in `us` while `eu` sends hardly any, and while it sends more.
    pub(super) other_ms: [f64; 2],
    pub(super) is_silent: bool,
    /// Whether writes are lost.
    pub(super) loses_writes: bool,
    /// Mean milliseconds of a call of a client in the last second.
    pub(super) latency_ms: f64,
    /// Utilisation of `web` and `cart` in the last second, by region.
    pub(super) loads: [[f64; 3]; 2],
    /// Bytes per second between regions in the last second.
    pub(super) egress: f64,
    revision: u64,
}

impl World {
    /// A world whose services ask for these planners.
    pub(super) fn new(planners: [TrafficPlanner; 2]) -> Self {
        let mut topology = TopologyFacts::default();
        for (a, b, ms) in [("eu", "us", 30), ("ap", "us", 40), ("ap", "eu", 60)] {
            topology.round_trips.set(region(a), region(b), Duration::from_millis(ms));
        }
        let facts = |planner| {
            let mut endpoints = RegionEndpoints::default();
            (0..4).for_each(|_| endpoints.add(None, Some(1_000)));
            ServiceFacts {
                traffic: Traffic { planner: Some(planner), ..Traffic::default() },
                endpoints: REGIONS.map(|name| (region(name), endpoints.clone())).into(),
                ..ServiceFacts::default()
            }
        };
        let services = ["web", "cart"].into_iter().zip(planners);
        Self {
            planner: MeshPlanner::default(),
            facts: services.map(|(name, planner)| (service(name), Arc::new(facts(planner)))).collect(),
            topology,
            now: Now { ms: 0, started_ms: 0, wall_ms: 1_000_000 },
            demand: [60.0; 3],
            calls: 1.0,
            names_parents: true,
            attempts: 1.0,
            lie: 1.0,
            slowness: 1.0,
            delay_ms: 0.0,
            other_ms: [0.0; 2],
            is_silent: false,
            loses_writes: false,
            latency_ms: 0.0,
            loads: [[0.0; 3]; 2],
            egress: 0.0,
            revision: 1,
        }
    }

    /// A world whose optimizer knows the costs of all calls: demand went up and down.
    pub(super) fn learned(planners: [TrafficPlanner; 2]) -> Self {
        let mut world = Self::new(planners);
        world.learn();
        world
    }

    /// Demand goes up and down for three minutes.
    pub(super) fn learn(&mut self) {
        for second in 0..180 {
            self.demand = [[50.0, 60.0, 55.0], [85.0, 95.0, 90.0], [130.0, 120.0, 125.0]][second / 20 % 3];
            self.second();
        }
        self.demand = [60.0; 3];
        self.seconds(20);
    }

    pub(super) fn seconds(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| drop(self.second()));
    }

    /// A second with a report and a round, and what it writes.
    pub(super) fn second(&mut self) -> Vec<ServiceRound> {
        self.now = Now { ms: self.now.ms + 1_000, wall_ms: self.now.wall_ms + 1_000, ..self.now };
        let report = self.live();
        let report = if self.is_silent { TrafficReport::default() } else { report };
        for (name, facts) in &mut self.facts {
            let facts = Arc::make_mut(facts);
            facts.version += 1;
            let calls = report.calls.iter().filter(|(path, _)| path.service == *name);
            let servers = report.servers.iter().filter(|((service, _), _)| service == name);
            facts.reports = ServiceReports {
                at_ms: self.now.ms,
                heard: if self.is_silent { Default::default() } else { REGIONS.map(region).into() },
                calls: calls.map(|(path, rates)| (path.clone(), *rates)).collect(),
                servers: servers.map(|((_, region), rates)| (region.clone(), rates.clone())).collect(),
                is_incomplete: false,
            };
        }
        self.planner.observe(&report, self.now.ms);
        let rounds = self.planner.round(&self.facts, &self.topology, &InSequence, self.now);
        self.write(&rounds);
        rounds
    }

    fn write(&mut self, rounds: &[ServiceRound]) {
        if self.loses_writes {
            return;
        }
        self.revision += 1;
        for ServiceRound { service, tables, .. } in rounds {
            let facts = self.facts[service].clone();
            for write in tables {
                let facts = Arc::make_mut(self.facts.get_mut(service).unwrap());
                let stored = facts.tables.get(&write.from).map(|stored| stored.revision);
                assert_eq!(write.replaces, stored, "the condition holds");
                let table = write.table.clone().unwrap();
                table.validate().unwrap();
                facts.tables.insert(write.from.clone(), StoredTable { table, revision: self.revision });
            }
            self.planner.written(service, &facts, tables, self.now);
        }
    }

    /// The share of the calls of `from` that the tables in force send to `to`, and the share that they drop.
    pub(super) fn share(&self, name: &str, from: &str, to: &str) -> (f64, f64) {
        let Some(stored) = self.facts[&service(name)].tables.get(&region(from)) else {
            return (f64::from(u8::from(from == to)), 0.0);
        };
        let shares = stored.table.shares.default.as_ref().unwrap();
        let part = |share: fairmesh_model::Share| f64::from(share.millionths()) / 1e6;
        (shares.to.get(&region(to)).map_or(0.0, |share| part(*share)), part(shares.dropped))
    }

    pub(super) fn verdict(&self, name: &str) -> Verdict {
        self.planner.services()[&service(name)].verdict.clone().unwrap()
    }

    pub(super) fn plan(&self, name: &str) -> Arc<ServicePlan> {
        match self.verdict(name) {
            Verdict::Optimized(plan) => plan,
            Verdict::Rings(fallback) => panic!("{name}: {fallback:?}"),
        }
    }

    /// Why rings plan.
    pub(super) fn fallback(&self, name: &str) -> &'static str {
        match self.verdict(name) {
            Verdict::Rings(fallback) => fallback.reason,
            Verdict::Optimized(plan) => panic!("{name}: {plan:?}"),
        }
    }

    pub(super) fn set_policy(&mut self, name: &str, edit: impl FnOnce(&mut ServiceFacts)) {
        edit(Arc::make_mut(self.facts.get_mut(&service(name)).unwrap()));
    }

    /// Calls of a second, as they are reported.
    fn live(&mut self) -> TrafficReport {
        let mut report = TrafficReport { regions: REGIONS.map(region).into(), ..TrafficReport::default() };
        let (mut latency, mut egress) = (0.0, 0.0);
        let mut offered = self.demand;
        for (at, name) in ["web", "cart"].into_iter().enumerate() {
            let mut arrived = [0.0; 3];
            let mut rows = Vec::new();
            for (from, offered) in offered.iter().enumerate() {
                let dropped = offered * self.share(name, REGIONS[from], REGIONS[from]).1;
                self.report_dropped(&mut report, at, from, dropped);
                for (to, arrived) in arrived.iter_mut().enumerate() {
                    let rate = offered * self.share(name, REGIONS[from], REGIONS[to]).0;
                    *arrived += rate * self.attempts;
                    if rate > 0.0 {
                        rows.push((from, to, rate));
                    }
                }
            }
            self.loads[at] = [0, 1, 2].map(|to| arrived[to] * self.work(at, to) / CORES);
            let time = |to: usize| {
                self.base_ms(at, to) + 1e3 * self.work(at, to) / (1.0 - self.loads[at][to].min(FULL))
            };
            for (from, to, rate) in rows {
                let (a, b) = (region(REGIONS[from]), region(REGIONS[to]));
                let way = self.topology.round_trips.get(&a, &b).unwrap().as_secs_f64() * 1e3;
                latency += rate * (way + time(to));
                egress += if a == b { 0.0 } else { rate * BYTES };
                self.report_calls(&mut report, at, (from, to), (rate, way + time(to)));
            }
            for (to, rate) in arrived.iter().enumerate() {
                self.report_servers(&mut report, at, to, *rate);
            }
            offered = arrived.map(|rate| rate / self.attempts * self.calls);
        }
        let clients: f64 = self.demand.iter().sum();
        (self.latency_ms, self.egress) = (latency / clients.max(1.0), egress);
        report
    }

    /// CPU seconds of a call of `web` or `cart` in a region.
    fn work(&self, at: usize, to: usize) -> f64 {
        WORK[at] * if (at, to) == (1, 1) { self.slowness } else { 1.0 }
    }

    fn base_ms(&self, at: usize, to: usize) -> f64 {
        let sends = self.share("cart", "eu", "us").0 > 0.05;
        BASE_MS
            + match (at, to) {
                (1, 1) => self.delay_ms,
                (1, 2) => self.other_ms[usize::from(sends)],
                _ => 0.0,
            }
    }

    fn report_dropped(&self, report: &mut TrafficReport, at: usize, from: usize, rate: f64) {
        if rate > 0.0 {
            let milli = (rate * 1e3) as u64;
            let rates = CallRates { offered: milli, shed: milli, ..CallRates::default() };
            report.calls.insert(CallPath { to: None, ..self.path(at, (from, from)) }, rates);
        }
    }

    fn path(&self, at: usize, (from, to): (usize, usize)) -> CallPath {
        let web = CallNode { service: service("web"), class: None };
        CallPath {
            service: service(["web", "cart"][at]),
            from: region(REGIONS[from]),
            to: Some(region(REGIONS[to])),
            class: None,
            caller: (at == 1).then(|| service("web")),
            from_zone: None,
            to_zone: None,
            parent: (at == 1 && self.names_parents).then_some(web),
        }
    }

    fn report_calls(
        &self,
        report: &mut TrafficReport,
        at: usize,
        (from, to): (usize, usize),
        (rate, time_ms): (f64, f64),
    ) {
        let milli = |rate: f64| (rate * 1e3) as u64;
        let rates = CallRates {
            offered: milli(rate),
            attempts: milli(rate * self.attempts),
            answered: milli(rate * self.attempts),
            time_us: (rate * time_ms * 1e3) as u64,
            bytes: (rate * BYTES) as u64,
            request_bytes: (rate * 100.0) as u64,
            ..CallRates::default()
        };
        report.calls.insert(self.path(at, (from, to)), rates);
    }

    fn report_servers(&self, report: &mut TrafficReport, at: usize, to: usize, rate: f64) {
        let name = service(["web", "cart"][at]);
        let load = self.loads[at][to].min(1.0);
        let bucket = ((load * 10.0) as u8).min(9);
        // In the middle of the bucket, which the fit takes for the utilisation of its calls.
        let middle = (f64::from(bucket) + 0.5) / 10.0;
        let work = self.work(at, to);
        let served = rate.min(CORES / work);
        let mean_us = self.base_ms(at, to) * 1e3 + 1e6 * work / (1.0 - middle);
        let node = CallNode { service: name.clone(), class: None };
        let path = ServedPath { node, region: region(REGIONS[to]), bucket: Some(bucket) };
        let milli = |number: f64| (number * 1e3) as u64;
        report
            .served
            .insert(path, ServedRates { calls: milli(served), exclusive_us: (served * mean_us) as u64 });
        let lie = if (at, to) == (1, 1) { self.lie } else { 1.0 };
        let servers = ServerRates {
            servers: 4,
            counting: 4,
            received: milli(rate),
            measured: 4,
            cpu_millicores: milli(load * CORES * lie),
            limit_millicores: milli(CORES),
            ..ServerRates::default()
        };
        report.servers.insert((name, region(REGIONS[to])), servers);
    }
}
