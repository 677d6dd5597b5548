//! The optimizer plans a chain of two services from agents' reports over real sockets. The test plays the
//! agents; callers and servers behave as the stored tables prescribe.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{
    Policy, Protocol, Record, RecordKey, Region, RegionTable, RoundTrips, Traffic, TrafficPlanner,
};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{self, model_correction::Of},
};
use support::{TestControl, config, policy_key, put, read_all, service, service_key};
use tokio::{
    task::JoinHandle,
    time::{interval, timeout},
};

const SERVICES: [&str; 2] = ["shop/web", "shop/cart"];
const REGIONS: [&str; 2] = ["eu", "us"];
/// CPU seconds per call of each service, and cores per region.
const WORK: [f64; 2] = [0.010, 0.020];
const CORES: f64 = 2.0;
/// A third of the calls is processed at each of these utilisations, in tenths.
const TENTHS: [u32; 3] = [2, 5, 7];
/// Microseconds of a call's duration that are not CPU.
const BASE_US: f64 = 1_000.0;
/// Time limit of waits. A fit of CPU takes 10 s.
const BOUND: Duration = Duration::from_secs(40);
const MILLI: f64 = 1_000.0;

#[derive(Default)]
struct Load {
    /// Calls per second of clients to `shop/web`, by region.
    demand: [AtomicU64; 2],
    silent: AtomicBool,
    /// Microseconds that calls of `shop/cart` take longer in `eu`.
    delay_us: AtomicU64,
}

/// Tables by service and region of the callers.
type StoredTables = BTreeMap<(String, String), RegionTable>;

async fn tables(connection: &Connection) -> StoredTables {
    let mut tables = BTreeMap::new();
    for entry in read_all(connection).await.entries {
        let key = RecordKey::parse(&entry.key).unwrap();
        if let RecordKey::RegionTable(service, from) = &key
            && let Record::RegionTable(table) = record_encoding::decode(&key, &entry.value).unwrap()
        {
            tables.insert((service.to_string(), from.to_string()), table);
        }
    }
    tables
}

/// The share of a region's calls that stay in the region.
fn kept(tables: &StoredTables, service: &str, from: &str) -> f64 {
    let table = tables.get(&(service.to_owned(), from.to_owned()));
    let shares = table.and_then(|table| table.shares.default.as_ref());
    let home = Region::new(from).unwrap();
    shares.map_or(1.0, |shares| shares.to.get(&home).map_or(0.0, |share| f64::from(share.millionths()) / 1e6))
}

/// Calls per second to each service, by the callers' region, to that region and to the other one.
fn flows(tables: &StoredTables, demand: [f64; 2]) -> [[[f64; 2]; 2]; 2] {
    let mut offered = demand;
    SERVICES.map(|service| {
        let mut flows = [[0.0; 2]; 2];
        for (from, name) in REGIONS.iter().enumerate() {
            let share = kept(tables, service, name);
            flows[from][from] = offered[from] * share;
            flows[from][1 - from] = offered[from] * (1.0 - share);
        }
        offered = [0, 1].map(|to: usize| flows[0][to] + flows[1][to]);
        flows
    })
}

/// Sends one report for each region's agent.
async fn report(connection: &Connection, load: &Load) {
    let demand = [0, 1].map(|at: usize| load.demand[at].load(Relaxed) as f64);
    let flows = flows(&tables(connection).await, demand);
    for (here, region) in REGIONS.iter().enumerate() {
        let sender = v1::SignalSender {
            reporter: 7 + here as u64,
            interval_ms: 1_000,
            regions: vec![(*region).into()],
        };
        let mut report = v1::ReportSignalsRequest { sender: Some(sender), ..Default::default() };
        for (at, flows) in flows.iter().enumerate() {
            report.calls.extend((0..2).map(|to| calls(at, (here, to), flows[here][to])));
            let received = flows[0][here] + flows[1][here];
            report.servers.push(servers(at, here, received));
            let delay_us = if (at, here) == (1, 0) { load.delay_us.load(Relaxed) } else { 0 };
            let mut served = TENTHS.map(|tenth| served(at, here, tenth, received / 3.0));
            served.iter_mut().for_each(|row| row.exclusive_us += row.calls * delay_us / 1_000);
            report.served.extend(served);
        }
        connection.signals().report(report).await.unwrap();
    }
}

fn calls(at: usize, (from, to): (usize, usize), rate: f64) -> v1::CallRates {
    let milli = (rate * MILLI) as u64;
    let is_cart = at == 1;
    v1::CallRates {
        service: SERVICES[at].into(),
        from: REGIONS[from].into(),
        to: REGIONS[to].into(),
        caller: if is_cart { SERVICES[0].into() } else { String::new() },
        parent_service: if is_cart { SERVICES[0].into() } else { String::new() },
        offered: milli,
        attempts: milli,
        answered: milli,
        time_us: milli * 20,
        bytes: milli,
        ..Default::default()
    }
}

fn servers(at: usize, region: usize, received: f64) -> v1::ServerRates {
    v1::ServerRates {
        service: SERVICES[at].into(),
        region: REGIONS[region].into(),
        servers: 1,
        counting: 1,
        received: (received * MILLI) as u64,
        cpu_millicores: (received * WORK[at] * MILLI) as u64,
        limit_millicores: (CORES * MILLI) as u64,
        measured: 1,
        ..Default::default()
    }
}

fn served(at: usize, region: usize, tenth: u32, rate: f64) -> v1::ServedRates {
    let utilisation = (f64::from(tenth) + 0.5) / 10.0;
    let mean_us = BASE_US + 1e6 * WORK[at] / (1.0 - utilisation);
    v1::ServedRates {
        service: SERVICES[at].into(),
        region: REGIONS[region].into(),
        bucket: tenth + 1,
        calls: (rate * MILLI) as u64,
        exclusive_us: (rate * mean_us) as u64,
        ..Default::default()
    }
}

/// A control plane with both services in both regions, and agents that report.
struct World {
    control: TestControl,
    connection: Connection,
    load: Arc<Load>,
    agents: JoinHandle<()>,
}

impl World {
    async fn start(folder: &Path, demand: [u64; 2]) -> Self {
        let control = TestControl::start(config(folder.join("data"))).await;
        let connection = control.connect().await;
        let traffic = Traffic { planner: Some(TrafficPlanner::Optimizer), ..Traffic::default() };
        let policy = Record::Policy(Policy { traffic: Some(Box::new(traffic)), ..Policy::default() });
        let policy = record_encoding::encode(&policy).to_vec();
        let mut trips = RoundTrips::default();
        trips.set(Region::new("eu").unwrap(), Region::new("us").unwrap(), Duration::from_millis(20));
        let trips = record_encoding::encode(&Record::RoundTrips(trips)).to_vec();
        let mut ops = vec![put(RecordKey::RoundTrips.to_string(), trips)];
        for name in SERVICES {
            ops.push(put(service_key(name), service(Protocol::Http1)));
            ops.push(put(policy_key(name), policy.clone()));
        }
        connection.admin().apply(v1::ApplyRequest { ops, ..Default::default() }).await.unwrap();
        for (name, region) in SERVICES.iter().flat_map(|name| REGIONS.map(|region| (*name, region))) {
            let endpoint = v1::Endpoint {
                instance: instance(name, region),
                address: "127.0.0.1:1".into(),
                location: Some(v1::Location { region: region.into(), ..Default::default() }),
                ..Default::default()
            };
            let registration =
                v1::Registration { service: name.into(), endpoint: Some(endpoint), declaration: None };
            let request = v1::RegisterRequest { registrations: vec![registration] };
            connection.registry().register(request).await.unwrap();
        }
        let load = Arc::new(Load { demand: demand.map(AtomicU64::new), ..Load::default() });
        let (reporting, reported) = (connection.clone(), Arc::clone(&load));
        let agents = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(300));
            loop {
                ticks.tick().await;
                reporting.registry().renew(renewal()).await.unwrap();
                if !reported.silent.load(Relaxed) {
                    report(&reporting, &reported).await;
                }
            }
        });
        Self { control, connection, load, agents }
    }

    /// Waits until both services are in the given state.
    async fn become_so(
        &self,
        what: &str,
        is_so: impl Fn(&v1::ServiceTraffic) -> bool,
    ) -> Vec<v1::ServiceTraffic> {
        let mut last = Vec::new();
        let wait = async {
            loop {
                let request = v1::TrafficStatusRequest::default();
                last = self.connection.traffic_planner().status(request).await.unwrap().into_inner().services;
                if last.len() == 2 && last.iter().all(&is_so) {
                    return last.clone();
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let found = timeout(BOUND, wait).await;
        found.unwrap_or_else(|_| panic!("{what}: {last:#?}"))
    }

    /// Waits until a fifth of the calls leaves a region, summed over both services.
    async fn calls_leave(&self, from: &str) {
        loop {
            let stored = tables(&self.connection).await;
            if SERVICES.iter().map(|name| 1.0 - kept(&stored, name, from)).sum::<f64>() > 0.2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn metric(&self, name: &str) -> String {
        let (_, page) = self.control.http("GET", "/metrics", "").await;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_default().to_owned()
    }
}

fn instance(service: &str, region: &str) -> String {
    format!("{}-{region}", service.trim_start_matches("shop/"))
}

fn renewal() -> v1::RenewRequest {
    let all = SERVICES.iter().flat_map(|name| REGIONS.map(|region| (*name, region)));
    let instances = all.map(|(name, region)| v1::InstanceRef {
        service: name.into(),
        instance: instance(name, region),
        ..Default::default()
    });
    v1::RenewRequest { instances: instances.collect(), ..Default::default() }
}

#[tokio::test]
async fn call_chain_is_planned_once_measured_and_by_rings_without_reports() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path(), [55, 20]).await;
    let begun = world.become_so("rings plan first", |service| !service.why_rings.is_empty()).await;
    assert!(begun.iter().all(|service| service.optimized.is_none()), "{begun:?}");

    // The load corresponds to 99 % of the servers of `cart` in eu. The rings planner would start to move
    // calls at 85 %.
    world.become_so("the optimizer plans", |service| service.optimized.is_some()).await;
    world.load.demand[0].store(99, Relaxed);
    let is_relieved = |service: &v1::ServiceTraffic| {
        let eu = service.regions.iter().find(|region| region.region == "eu").unwrap();
        service.optimized.is_some()
            && eu.load.is_some_and(|load| load < 0.8)
            && eu.offered.iter().sum::<f64>() > 1.0
    };
    // The status still describes the time before the rise.
    timeout(BOUND, world.calls_leave("eu")).await.expect("calls leave the full region");
    let planned = world.become_so("the region is relieved", is_relieved).await;
    let plan = planned[0].optimized.as_ref().unwrap();
    assert!(plan.gap < 0.02 && plan.model_error < 0.05 && !plan.expected.is_empty(), "{plan:?}");
    assert_eq!(world.metric("fairmesh_traffic_optimized_services").await, "2");

    world.load.delay_us.store(200_000, Relaxed);
    let is_corrected = |service: &v1::ServiceTraffic| {
        let corrections = service.optimized.iter().flat_map(|plan| &plan.corrections);
        service.service != SERVICES[1] || corrections.filter(|one| one.region == "eu").count() > 0
    };
    let corrected = world.become_so("the model of the slow region is corrected", is_corrected).await;
    let cart = corrected.iter().find(|service| service.service == SERVICES[1]).unwrap();
    let one = &cart.optimized.as_ref().unwrap().corrections[0];
    let Some(Of::Latency(latency)) = &one.of else { panic!("{one:?}") };
    assert!(latency.added_ms > 20.0 && latency.measured_ms > latency.predicted_ms, "{one:?}");
    assert!(one.calls >= 100.0 && one.began_ago_ms < 60_000, "{one:?}");

    world.load.silent.store(true, Relaxed);
    let left = world
        .become_so("rings without reports", |service| {
            !service.refusal.is_empty() && service.why_rings.contains("are refused")
        })
        .await;
    assert!(left.iter().all(|service| service.optimized.is_none()), "{left:?}");
    let reasons = world.metric("fairmesh_traffic_services_left_to_rings{reason=\"reports\"}").await;
    assert_eq!(reasons, "2");
    world.agents.abort();
    drop(world.connection);
    world.control.stop().await;
}
