//! `bench/run planner`: rounds of the planner over a thousand services in fifty regions, by what has changed since the round
//! before: nothing, ten services, or the reports of a tenth or of all. And the tables that the planner writes per second while
//! no calls are moved, which confirm those in force.
//!
//! It drives the crate that the control plane drives, with the same sums of reports. The store and the decoding of records are left
//! out: a write counts as made. Times are processor times of one thread; the control plane plans with all of its cores.

use std::{
    collections::BTreeMap,
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use fairmesh_model::{
    CallPath, CallRates, Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Location, Region, RoundTrips,
    ServerRates, ServiceName, Traffic, TrafficPlanner, TrafficReport,
};
use fairmesh_planner::{
    InSequence, MeshFacts, MeshPlanner, Now, PolicyFacts, ServiceReports, StoredTable, TableWrite,
};
use fairmesh_signals::{ReportSource, ReportSums, SumLimits};

use crate::{
    process_usage::{own_cpu, resident},
    report::Report,
};

const REGIONS: usize = 50;
/// Endpoints of a service in each region.
const ENDPOINTS: usize = 20;
/// Services that change in a round.
const CHANGED: usize = 10;
/// Processes that report from each region, each on other services.
const REPORTERS: usize = 10;
/// Goals: milliseconds of a round without a change, and of one with some; megabytes; and records that etcd takes in the `rib`
/// measurement.
const IDLE_MS: f64 = 10.0;
const CHANGED_MS: f64 = 50.0;
const CHANGED_TENTH_MS: f64 = 300.0;
const MEMORY_MB: f64 = 200.0;
const WRITES_PER_S: f64 = 335.0;

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Scale {
    services: usize,
    cycles: usize,
}

/// Seconds of a cycle: new reports of all, a round for what these change, an idle one, one with reports of a tenth of the
/// services, one with changed endpoints.
const CYCLE: u64 = 5;

/// A control plane's planner, and the mesh that it plans for.
struct World {
    services: Vec<ServiceName>,
    regions: Vec<Region>,
    facts: MeshFacts,
    planner: MeshPlanner,
    sums: ReportSums,
    now_ms: u64,
    revision: u64,
    /// Tables written by all rounds, and by the round with most.
    written: usize,
    most_written: usize,
    /// Whether the changing endpoints are drained now.
    is_drained: bool,
}

/// Milliseconds of each round, by what changed before it.
#[derive(Debug, Default)]
struct Rounds {
    idle: Vec<f64>,
    changed: Vec<f64>,
    tenth: Vec<f64>,
    all: Vec<f64>,
}

/// Measures.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let scale = match quick {
        true => Scale { services: 100, cycles: 3 },
        false => Scale { services: 1_000, cycles: 7 },
    };
    let before = resident(std::process::id()).ok_or("the memory of this process cannot be read")?;
    let mut world = World::new(scale.services)?;
    // Tables are written and confirmed for the first time.
    (0..2).try_for_each(|_| world.cycle(&mut Rounds::default()))?;
    (world.written, world.most_written) = (0, 0);
    let mut rounds = Rounds::default();
    (0..scale.cycles).try_for_each(|_| world.cycle(&mut rounds))?;
    let memory = resident(std::process::id()).unwrap_or_default().saturating_sub(before);
    let mut report = Report::new("planner");
    let size = format!("{} services × {REGIONS} regions × {ENDPOINTS} endpoints", scale.services);
    let scaled = if quick { "; --quick takes a tenth of the services, so that goals say little" } else { "" };
    let mut figure = |name: &str, mut times: Vec<f64>, goal, what: &str| {
        times.sort_by(f64::total_cmp);
        let note = format!("ms, {:.2} to {:.2}, {what}; {size}{scaled}", times[0], times[times.len() - 1]);
        report.figure(name, times[times.len() / 2], goal, note);
    };
    figure("idle_round_ms", rounds.idle, Some(IDLE_MS), "no record has changed and no report has arrived");
    let what = format!("an endpoint of each of {CHANGED} services has changed");
    figure("changed_10_ms", rounds.changed, Some(CHANGED_MS), &what);
    let what = "every region has reported other calls of a tenth of the services";
    figure("changed_tenth_ms", rounds.tenth, Some(CHANGED_TENTH_MS), what);
    figure("reported_all_ms", rounds.all, None, "every region has reported other calls of every service");
    let note = format!("MB that reports, facts and planners add to a process of {:.1}", before as f64 / 1e6);
    report.figure("memory_mb", memory as f64 / 1e6, Some(MEMORY_MB), note);
    let seconds = scale.cycles as u64 * CYCLE;
    let note = format!(
        "tables that are confirmed in {seconds} s, {} in a second at most; {size}",
        world.most_written
    );
    report.figure("writes_per_s", world.written as f64 / seconds as f64, Some(WRITES_PER_S), note);
    Ok(report)
}

impl World {
    fn new(services: usize) -> Result<Self, Box<dyn Error>> {
        let name = |number: usize| ServiceName::new(format!("shop/service-{number}"));
        let services = (0..services).map(name).collect::<Result<Vec<_>, _>>()?;
        let regions = (0..REGIONS).map(|number| Region::new(format!("region-{number:02}")));
        let mut world = Self {
            services,
            regions: regions.collect::<Result<_, _>>()?,
            facts: MeshFacts::default(),
            planner: MeshPlanner::default(),
            sums: ReportSums::new(SumLimits::TREE),
            now_ms: 60_000,
            revision: 0,
            written: 0,
            most_written: 0,
            is_drained: false,
        };
        world.write_records()?;
        Ok(world)
    }

    fn write_records(&mut self) -> Result<(), Box<dyn Error>> {
        self.facts.set_round_trips(round_trips(&self.regions));
        let traffic = Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() };
        for service in &self.services {
            self.facts
                .set_policy(service, Some(PolicyFacts { traffic: traffic.clone(), ..Default::default() }));
            for region in &self.regions {
                for number in 0..ENDPOINTS {
                    let endpoint = endpoint(region, number, EndpointState::Serving)?;
                    self.facts.set_endpoint(service, None, Some(&endpoint));
                }
            }
        }
        Ok(())
    }

    /// Five seconds: reports of all, then of some.
    fn cycle(&mut self, rounds: &mut Rounds) -> Result<(), Box<dyn Error>> {
        let start = self.now_ms;
        (0..REPORTERS).for_each(|tenth| self.report(tenth));
        rounds.all.push(self.round(true));
        // Its own writes are changes.
        self.now_ms += 1_000;
        self.round(false);
        self.now_ms += 1_000;
        rounds.idle.push(self.round(false));
        self.now_ms += 1_000;
        self.report(0);
        rounds.tenth.push(self.round(true));
        self.now_ms += 1_000;
        self.change()?;
        rounds.changed.push(self.round(false));
        self.now_ms = start + CYCLE * 1_000;
        Ok(())
    }

    /// One round, and its milliseconds. Reports are added up if some have arrived.
    fn round(&mut self, has_reports: bool) -> f64 {
        let now = Now { ms: self.now_ms, started_ms: 0, wall_ms: self.now_ms };
        let began = own_cpu();
        let planned = self.facts.planned();
        if has_reports {
            let sums = self.sums.sums_by_service(&planned, now.ms);
            let heard = sums.heard().clone();
            for (service, sum) in sums {
                self.facts.set_reports(service, ServiceReports::new(sum, heard.clone(), now.ms));
            }
        }
        let topology = self.facts.topology();
        let facts: BTreeMap<_, _> = planned
            .iter()
            .filter_map(|service| Some((service.clone(), self.facts.service(service)?)))
            .collect();
        let rounds = self.planner.round(&facts, &topology, &InSequence, now);
        for round in rounds.iter().filter(|round| !round.tables.is_empty()) {
            self.planner.written(&round.service, &facts[&round.service], &round.tables, now);
        }
        let elapsed = own_cpu().saturating_sub(began);
        drop(facts);
        let written: usize = rounds.iter().map(|round| round.tables.len()).sum();
        self.written += written;
        self.most_written = self.most_written.max(written);
        rounds.into_iter().for_each(|round| self.write(&round.service, round.tables));
        elapsed.as_secs_f64() * 1e3
    }

    fn write(&mut self, service: &ServiceName, writes: Vec<TableWrite>) {
        self.revision += 1;
        for TableWrite { from, table, .. } in writes {
            let table = table.map(|table| StoredTable { table, revision: self.revision });
            self.facts.set_table(service, from, table);
        }
    }

    /// An endpoint of some services is drained, or serves again.
    fn change(&mut self) -> Result<(), Box<dyn Error>> {
        let of = |state| endpoint(&self.regions[0], 0, state);
        let (serving, draining) = (of(EndpointState::Serving)?, of(EndpointState::Draining)?);
        let (before, after) = if self.is_drained { (&draining, &serving) } else { (&serving, &draining) };
        for service in self.services.iter().take(CHANGED) {
            self.facts.set_endpoint(service, Some(before), Some(after));
        }
        self.is_drained = !self.is_drained;
        Ok(())
    }

    /// A process of each region reports calls of a tenth of the services, which stay for the most part, and servers.
    fn report(&mut self, tenth: usize) {
        let part = self.services.len().div_ceil(REPORTERS);
        for (at, from) in self.regions.iter().enumerate() {
            let next = &self.regions[(at + 1) % REGIONS];
            let mut report = TrafficReport {
                reporter: (at * REPORTERS + tenth) as u64,
                interval: Duration::from_secs(CYCLE),
                regions: [from.clone()].into(),
                ..TrafficReport::default()
            };
            // Other rates each time, and never above the first threshold.
            let calls = 90_000 + self.now_ms % 7_000;
            for service in self.services.iter().skip(tenth * part).take(part) {
                for (to, calls) in [(from, calls), (next, 10_000)] {
                    let rates = CallRates { offered: calls, attempts: calls, ..CallRates::default() };
                    report.calls.insert(path(service, from, to), rates);
                }
                report.servers.insert((service.clone(), from.clone()), servers(calls + 10_000));
            }
            self.sums.record(&ReportSource::of_mesh(), report, self.now_ms);
        }
    }
}

fn path(service: &ServiceName, from: &Region, to: &Region) -> CallPath {
    CallPath {
        service: service.clone(),
        from: from.clone(),
        to: Some(to.clone()),
        class: None,
        caller: None,
        from_zone: None,
        to_zone: None,
        parent: None,
    }
}

/// Servers that half of their CPU is enough for.
fn servers(received: u64) -> ServerRates {
    let count = ENDPOINTS as u32;
    ServerRates {
        servers: count,
        counting: count,
        measured: count,
        received,
        cpu_millicores: received / 10,
        limit_millicores: u64::from(count) * 1_000,
        ..ServerRates::default()
    }
}

/// Regions along a line, five milliseconds from one to the next.
fn round_trips(regions: &[Region]) -> RoundTrips {
    let mut trips = RoundTrips::default();
    for (at, a) in regions.iter().enumerate() {
        for (steps, b) in regions[at + 1..].iter().enumerate() {
            trips.set(a.clone(), b.clone(), Duration::from_millis(5 * (steps as u64 + 1)));
        }
    }
    trips
}

fn endpoint(region: &Region, number: usize, state: EndpointState) -> Result<Endpoint, Box<dyn Error>> {
    Ok(Endpoint {
        instance: InstanceId::new(format!("{region}-{number}"))?,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 80)),
        location: Location::in_region(region.clone()),
        state,
        weight: FULL_WEIGHT,
        lease: None,
        mtls: false,
        labels: BTreeMap::new(),
    })
}
