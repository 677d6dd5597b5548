//! Tests planning from agents' reports over real sockets. The test plays the agents; their servers get the
//! load that the stored tables assign to them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_control::ControlConfig;
use fairmesh_model::{
    Policy, Prefix, Protocol, Record, RecordKey, Region, RegionTable, TableOrigin, Traffic, TrafficPlanner,
};
use fairmesh_wire::{handshake::Connection, record_encoding, v1};
use support::{BOUND, TestControl, config, policy_key, put, read_all, service, service_key};
use tokio::{
    task::JoinHandle,
    time::{Instant, interval, timeout},
};

const SERVICE: &str = "shop/cart";
const REGIONS: [&str; 2] = ["eu", "us"];
/// Calls per second that fully load the server of a region.
const FULL: f64 = 100.0;
/// Bytes of each response.
const BYTES: f64 = 500.0;
/// The share that a region with 95 calls per second keeps. No distances are known, so the other region is in
/// the last default ring, which opens at 85 %; a shift aims 3 % below that.
const SETTLED: Range<f64> = 0.85..0.87;
/// Thousandths in one.
const MILLI: f64 = 1000.0;

/// The load that the agents report.
#[derive(Default)]
struct Load {
    /// Calls per second of the callers in each region.
    demand: [AtomicU64; 2],
    /// Whether reports contain only the fields of the previous release.
    old: AtomicBool,
    /// Whether servers of the first region report ten times the CPU that they can use.
    lies: AtomicBool,
    silent: AtomicBool,
}

async fn tables(connection: &Connection) -> BTreeMap<String, RegionTable> {
    let mut tables = BTreeMap::new();
    for entry in read_all(connection).await.entries {
        let key = RecordKey::parse(&entry.key).unwrap();
        if let RecordKey::RegionTable(_, from) = &key
            && let Record::RegionTable(table) = record_encoding::decode(&key, &entry.value).unwrap()
        {
            tables.insert(from.to_string(), table);
        }
    }
    tables
}

/// The share of the calls of region `from` that its table keeps there; 1 without a table.
fn kept(tables: &BTreeMap<String, RegionTable>, from: &str) -> f64 {
    let home = Region::new(from).unwrap();
    let shares = tables.get(from).and_then(|table| table.shares.default.as_ref());
    let share = shares.map(|shares| shares.to.get(&home).map_or(0, |share| share.millionths()));
    share.map_or(1.0, |share| f64::from(share) / 1e6)
}

/// Sends one report for each region's agent.
async fn report(connection: &Connection, load: &Load) {
    let tables = tables(connection).await;
    let demand = [0, 1].map(|at: usize| load.demand[at].load(Relaxed) as f64);
    let stays = [0, 1].map(|at| demand[at] * kept(&tables, REGIONS[at]));
    let is_old = load.old.load(Relaxed);
    for at in 0..2 {
        let (here, other) = (REGIONS[at], REGIONS[1 - at]);
        let path = |to: &str, rate: f64| {
            let calls = (rate * MILLI) as u64;
            v1::CallRates {
                service: SERVICE.into(),
                from: here.into(),
                to: to.into(),
                offered: calls,
                attempts: calls,
                answered: if is_old { 0 } else { calls },
                time_us: if is_old { 0 } else { calls },
                bytes: if is_old { 0 } else { (rate * BYTES) as u64 },
                ..Default::default()
            }
        };
        let received = stays[at] + demand[1 - at] - stays[1 - at];
        let lie = if at == 0 && load.lies.load(Relaxed) { 10.0 } else { 1.0 };
        let servers = v1::ServerRates {
            service: SERVICE.into(),
            region: here.into(),
            servers: 1,
            counting: 1,
            received: (received * MILLI) as u64,
            cpu_millicores: (received / FULL * MILLI * lie) as u64,
            limit_millicores: 1000,
            // The previous release does not report the number of measured servers.
            measured: u32::from(!is_old),
            ..Default::default()
        };
        let sender =
            v1::SignalSender { reporter: 7 + at as u64, interval_ms: 1000, regions: vec![here.into()] };
        let report = v1::ReportSignalsRequest {
            sender: Some(sender),
            calls: vec![path(here, stays[at]), path(other, demand[at] - stays[at])],
            servers: vec![servers],
            ..Default::default()
        };
        match is_old {
            true => drop(connection.imbalance().report(v1::ReportUsageRequest::from(report)).await.unwrap()),
            false => drop(connection.signals().report(report).await.unwrap()),
        }
    }
}

fn renewal() -> v1::RenewRequest {
    let instance = |region: &str| v1::InstanceRef {
        service: SERVICE.into(),
        instance: format!("cart-{region}"),
        ..Default::default()
    };
    v1::RenewRequest { instances: REGIONS.map(instance).to_vec(), ..Default::default() }
}

/// A control plane with the service in both regions, and agents that report.
struct World {
    control: TestControl,
    connection: Connection,
    load: Arc<Load>,
    agents: JoinHandle<()>,
}

impl World {
    async fn start(folder: &Path, load: Arc<Load>) -> Self {
        Self::start_with(config(folder.join("data")), load).await
    }

    async fn start_with(config: ControlConfig, load: Arc<Load>) -> Self {
        let control = TestControl::start(config).await;
        let connection = control.connect().await;
        let policy = Policy {
            traffic: Some(Box::new(Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() })),
            ..Policy::default()
        };
        let ops = vec![
            put(service_key(SERVICE), service(Protocol::Http1)),
            put(policy_key(SERVICE), record_encoding::encode(&Record::Policy(policy)).to_vec()),
        ];
        connection.admin().apply(v1::ApplyRequest { ops, ..Default::default() }).await.unwrap();
        for region in REGIONS {
            let endpoint = v1::Endpoint {
                instance: format!("cart-{region}"),
                address: "127.0.0.1:1".into(),
                location: Some(v1::Location { region: region.into(), ..Default::default() }),
                ..Default::default()
            };
            let registration =
                v1::Registration { service: SERVICE.into(), endpoint: Some(endpoint), declaration: None };
            let request = v1::RegisterRequest { registrations: vec![registration] };
            connection.registry().register(request).await.unwrap();
        }
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

    async fn status(&self) -> v1::ServiceTraffic {
        let request = v1::TrafficStatusRequest { service: SERVICE.into() };
        let response = self.connection.traffic_planner().status(request).await.unwrap().into_inner();
        response.services.into_iter().next().unwrap()
    }

    /// Waits until the planner's status fulfils a condition.
    async fn becomes(&self, what: &str, is_so: impl Fn(&v1::ServiceTraffic) -> bool) -> v1::ServiceTraffic {
        let mut last = None;
        let wait = async {
            loop {
                let status = self.status().await;
                if is_so(&status) {
                    return status;
                }
                last = Some(status);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match timeout(BOUND, wait).await {
            Ok(status) => status,
            Err(_) => panic!("{what}: {last:?}"),
        }
    }

    /// Waits until the table of `eu` keeps a share within these bounds.
    async fn keeps(&self, bounds: Range<f64>) -> f64 {
        let wait = async {
            loop {
                let share = kept(&tables(&self.connection).await, "eu");
                if bounds.contains(&share) {
                    return share;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match timeout(BOUND, wait).await {
            Ok(share) => share,
            Err(_) => panic!("the table never keeps {bounds:?}: {:?}", self.status().await),
        }
    }

    async fn controller(&self, name: &str) -> v1::ControllerStatus {
        let listed = self.connection.admin().list_controllers(v1::ListControllersRequest {}).await.unwrap();
        listed.into_inner().controllers.into_iter().find(|controller| controller.name == name).unwrap()
    }

    async fn metric(&self, name: &str) -> u64 {
        let (_, page) = self.control.http("GET", "/metrics", "").await;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }

    async fn stop(self) {
        self.agents.abort();
        drop(self.connection);
        self.control.stop().await;
    }
}

fn load(demand: [u64; 2]) -> Arc<Load> {
    Arc::new(Load { demand: demand.map(AtomicU64::new), ..Load::default() })
}

#[tokio::test]
async fn region_tables_survive_takeover_and_missing_reports() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path(), load([95, 20])).await;
    let share = world.keeps(SETTLED).await;
    world.becomes("a plan", |status| status.round > 3 && status.refusal.is_empty()).await;
    world.stop().await;

    let silent = load([95, 20]);
    silent.silent.store(true, Relaxed);
    let world = World::start(folder.path(), silent).await;
    let before = tables(&world.connection).await;
    assert!((kept(&before, "eu") - share).abs() < 0.1, "{before:?}");
    // The planner first waits up to ten seconds for reports from all regions, then explains why it does not
    // plan.
    world.becomes("a refusal", |status| status.refusal.contains("not reported")).await;
    assert_eq!(tables(&world.connection).await, before, "the last good table stays");
    assert!(world.metric("fairmesh_traffic_refusals_total{reason=\"callers_missing\"}").await > 0);

    world.load.silent.store(false, Relaxed);
    let next = world.becomes("a plan", |status| status.planned_rounds > 1).await;
    let TableOrigin::Planned(written) = before["eu"].origin else { panic!("{before:?}") };
    assert!(next.round > written.round, "rounds go on: {} after {}", next.round, written.round);
    let after = kept(&tables(&world.connection).await, "eu");
    assert!((after - share).abs() < 0.1, "it continues at {after} from {share}");
    world.stop().await;
}

#[tokio::test]
async fn traffic_reports_of_previous_release_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let old = load([95, 20]);
    old.old.store(true, Relaxed);
    let world = World::start(folder.path(), old).await;
    world.keeps(SETTLED).await;
    let status = world.becomes("a plan", |status| status.refusal.is_empty()).await;
    let here = status.regions.iter().find(|region| region.region == "eu").unwrap();
    assert!(here.load.unwrap() > 0.6 && here.offered == [95.0], "{here:?}");
    world.stop().await;
}

#[tokio::test]
async fn traffic_reports_of_previous_release_agents_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let silent = load([95, 20]);
    silent.silent.store(true, Relaxed);
    let world = World::start(folder.path(), silent).await;
    // This agent reports usage, but does not send traffic reports.
    let request = v1::ReportUsageRequest { usages: Vec::new(), traffic: None };
    world.connection.imbalance().report(request).await.unwrap();
    let status = world.becomes("a refusal", |status| status.refusal.contains("not reported")).await;
    assert!(status.refused_rounds > 0, "{status:?}");
    assert!(tables(&world.connection).await.is_empty(), "without reports there is no table");
    // A table or policy written by the previous release lacks the newer fields.
    let shares = v1::RegionShares {
        to: vec![v1::RegionShare { region: "us".into(), share: 1_000_000 }],
        ..Default::default()
    };
    let plain = v1::RegionTable { shares: vec![shares], ..Default::default() };
    let key = RecordKey::RegionTable(SERVICE.parse().unwrap(), Region::new("eu").unwrap());
    let read = record_encoding::decode(&key, &prost::Message::encode_to_vec(&plain)).unwrap();
    let Record::RegionTable(table) = read else { panic!("{read:?}") };
    assert!(table.zones.is_empty() && table.validate().is_ok(), "{table:?}");
    world.stop().await;
}

#[tokio::test]
async fn implausible_traffic_report_is_refused_and_changes_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path(), load([95, 20])).await;
    world.keeps(SETTLED).await;
    world.load.lies.store(true, Relaxed);
    let refused = world.becomes("a refusal", |status| !status.refusal.is_empty()).await;
    let before = kept(&tables(&world.connection).await, "eu");
    // A utilisation above 1.5 is implausible.
    let counted = async || world.metric("fairmesh_traffic_refusals_total{reason=\"absurd\"}").await;
    world.becomes("more", |status| status.refused_rounds > refused.refused_rounds + 1).await;
    assert!(counted().await > 1, "refusals are counted by their reasons");
    assert_eq!(world.metric("fairmesh_traffic_refused_services").await, 1);
    assert_eq!(kept(&tables(&world.connection).await, "eu"), before);
    world.load.lies.store(false, Relaxed);
    world.becomes("a plan", |status| status.refusal.is_empty()).await;
    assert_eq!(world.metric("fairmesh_traffic_refused_services").await, 0);
    world.stop().await;
}

/// The share of its calls that a region keeps according to its drain record.
async fn drain_of(connection: &Connection) -> Option<f64> {
    let drains = connection.traffic_planner().drains(v1::DrainsRequest {}).await.unwrap().into_inner().drains;
    drains.first().map(|drain| f64::from(drain.drain.as_ref().unwrap().keep) / 1e6)
}

/// Follows a drain for a while. `due` is the share that the region keeps if only time matters.
async fn follow(
    (world, begun): (&World, Instant),
    until: impl Fn(f64) -> bool,
    is_early: impl Fn(f64, f64) -> bool,
) -> f64 {
    let wait = async {
        loop {
            let keep = drain_of(&world.connection).await.unwrap_or(1.0);
            let elapsed = begun.elapsed().as_secs_f64();
            assert!(!is_early(elapsed, keep), "it keeps {keep} after {elapsed} s");
            if until(keep) {
                return keep;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(BOUND, wait).await.expect("the drain goes on")
}

#[tokio::test]
async fn region_drain_and_undrain_take_their_configured_time() {
    const OVER: f64 = 20.0;
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path(), load([40, 20])).await;
    world.becomes("a plan", |status| status.round > 1 && status.refusal.is_empty()).await;
    let drain = async |undrain| {
        let over_ms = (OVER * 1000.0) as u64;
        let request = v1::DrainRegionRequest { region: "eu".into(), undrain, over_ms };
        world.connection.traffic_planner().drain_region(request).await.unwrap();
    };
    let request = v1::ForecastDrainRequest { region: "eu".into() };
    let forecast = world.connection.traffic_planner().forecast_drain(request).await.unwrap().into_inner();
    let us = forecast.services[0].regions.iter().find(|region| region.region == "us").unwrap();
    let bytes = us.bytes / us.calls;
    assert!((us.calls - 40.0).abs() < 1.0 && (bytes - BYTES).abs() < 5.0, "{forecast:?}");
    let begun = Instant::now();
    drain(false).await;
    // A step is never made before its time.
    let left =
        follow((&world, begun), |keep| keep < 0.75, |elapsed, keep| keep < 1.0 - elapsed / OVER - 1e-6);
    let left = left.await;
    world.keeps(left - 0.02..left + 0.02).await;
    let begun = Instant::now();
    drain(true).await;
    let back = follow(
        (&world, begun),
        |keep| keep > left + 0.15,
        |elapsed, keep| keep > left + elapsed / OVER + 1e-6,
    );
    let back = back.await;
    world.keeps(left + 0.05..1.01).await;
    assert!(back < 0.95, "it comes back step by step: {back}");
    world.stop().await;
}

#[tokio::test]
async fn planner_in_shadow_mode_writes_no_table_and_drains_wait_for_plans() {
    let folder = tempfile::tempdir().unwrap();
    let shadow_controllers = vec!["planner".parse().unwrap()];
    let config = ControlConfig { shadow_controllers, ..config(folder.path().join("data")) };
    let world = World::start_with(config, load([95, 20])).await;
    let decides = async {
        let write =
            format!("write {}", RecordKey::RegionTable(SERVICE.parse().unwrap(), Region::new("eu").unwrap()));
        while !world.controller("planner").await.last.is_some_and(|last| last.decided.contains(&write)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(BOUND, decides).await.expect("the tables are shown");
    let planner = world.controller("planner").await;
    assert_eq!((planner.shadow, planner.writes), (true, 0));
    assert!(tables(&world.connection).await.is_empty());
    assert_eq!(world.status().await.refusal, "no round was made yet");

    let request = v1::DrainRegionRequest { region: "eu".into(), ..Default::default() };
    world.connection.traffic_planner().drain_region(request).await.unwrap();
    let rounds = world.controller("drains").await.rounds;
    let more = async {
        while world.controller("drains").await.rounds < rounds + 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(BOUND, more).await.expect("drains are looked at");
    assert_eq!(drain_of(&world.connection).await, Some(1.0));
    world.stop().await;
}

/// A message of a program that follows tables.
fn says(kind: v1::watch_request::Kind) -> v1::WatchRequest {
    v1::WatchRequest { kind: Some(kind) }
}

#[tokio::test]
async fn region_drain_step_waits_until_every_program_applied_tables() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path(), load([40, 20])).await;
    world.becomes("a plan", |status| status.round > 1 && status.refusal.is_empty()).await;
    let mut program = world.control.connect().await.watch().await.unwrap();
    let prefix = Prefix::tables(&SERVICE.parse().unwrap()).to_string();
    program.send(&says(v1::watch_request::Kind::Subscribe(v1::Subscribe { prefix, ..Default::default() })));
    timeout(BOUND, program.next()).await.unwrap().unwrap();

    let request = v1::DrainRegionRequest { region: "eu".into(), ..Default::default() };
    world.connection.traffic_planner().drain_region(request).await.unwrap();
    let drain = async || {
        let drains = world.connection.traffic_planner().drains(v1::DrainsRequest {}).await.unwrap();
        drains.into_inner().drains.remove(0)
    };
    let waits = async || {
        let wait = async {
            while !drain().await.state.ends_with("to apply the tables") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(BOUND, wait).await.expect("it waits for the program");
        drain().await.drain.unwrap().keep
    };
    let keep = waits().await;
    let rounds = world.status().await.planned_rounds;
    world.becomes("more rounds", |status| status.planned_rounds > rounds + 3).await;
    assert_eq!(waits().await, keep, "it still waits");

    let acknowledges = async {
        loop {
            let at = read_all(&world.connection).await.at.unwrap();
            program.send(&says(v1::watch_request::Kind::Applied(at)));
            if drain_of(&world.connection).await.unwrap_or(1.0) < f64::from(keep) / 1e6 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(BOUND, acknowledges).await.expect("the next step is made");
    world.stop().await;
}
