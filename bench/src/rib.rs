//! `bench/run rib`: time from an acknowledged write to its arrival at subscribers, through a tree of two layers,
//! compared with etcd.
//!
//! Every subscriber has its own connection to one of the replicas and acknowledges updates as agents do. A few
//! subscribers follow one service, all follow another. The peer is one etcd with as many watchers on as many
//! connections, driven by the same harness.

mod counting_stream;
mod etcd;
mod grpc_stream;
mod watchers;
mod writes;

use std::{error::Error, path::Path, time::Duration};

use clap::{Args, ValueEnum};
use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Location, Record, RecordKey, Region, ServiceName,
};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1,
};
use hdrhistogram::Histogram;
use tokio::time::{Instant, sleep};

use crate::{Common, load_generator::histogram, report::Report, role_process::RoleProcess};
use etcd::Etcd;
use watchers::{Server, Watchers};

/// Options of `rib`.
#[derive(Debug, Args)]
pub(crate) struct RibArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only this part [default: both].
    #[arg(long)]
    part: Option<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measured {
    /// Time from a write to its subscribers.
    Fanout,
    /// Writes on a large store.
    Writes,
}

/// Number of replicas between the control plane and the subscribers.
const REPLICAS: usize = 2;
/// Goals for the latency of deliveries in milliseconds: p50 and p99.
const FEW_MS: [f64; 2] = [3.0, 15.0];
const ALL_MS: [f64; 2] = [100.0, 250.0];
/// Goal: minimum deliveries per second of CPU time, as a multiple of etcd's.
const FANOUT: f64 = 3.0;
/// Pause between two writes, after all subscribers have received the first.
const PAUSE: Duration = Duration::from_millis(20);

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    subscribers: usize,
    /// Number of subscribers that follow the first service.
    few: usize,
    /// Number of writes to the service that a few follow.
    few_writes: usize,
    /// Number of writes to the service that all follow.
    all_writes: usize,
    /// Duration of the phase without writes.
    idle: Duration,
}

impl Scale {
    fn new(quick: bool) -> Self {
        let idle = Duration::from_secs(if quick { 3 } else { 20 });
        match quick {
            true => Self { subscribers: 1_000, few: 100, few_writes: 100, all_writes: 20, idle },
            false => Self { subscribers: 10_000, few: 100, few_writes: 300, all_writes: 60, idle },
        }
    }
}

/// Histogram of delivery latencies in nanoseconds, for one kind of write.
type Deliveries = Histogram<u64>;

fn ms(deliveries: &Deliveries, quantile: f64) -> f64 {
    deliveries.value_at_quantile(quantile) as f64 / 1e6
}

/// Results of one side.
struct Results {
    few: Deliveries,
    all: Deliveries,
    /// Deliveries to all subscribers per second of CPU time of the serving processes.
    per_cpu_second: f64,
    /// Bytes per second and subscriber during the phase without writes.
    idle_bytes: f64,
}

/// Runs the requested parts.
pub(crate) fn run(args: &RibArgs) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new("rib");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if args.part != Some(Measured::Writes) {
        runtime.block_on(fanout(args.common.quick, &mut report))?;
    }
    if args.part != Some(Measured::Fanout) {
        runtime.block_on(writes::run(args.common.quick, &mut report))?;
    }
    Ok(report)
}

/// Measures deliveries on both sides.
async fn fanout(quick: bool, report: &mut Report) -> Result<(), String> {
    let scale = Scale::new(quick);
    let (ours, theirs, version) = measure(scale).await?;
    let scaled = if quick { "; --quick takes a tenth of them" } else { "" };
    let layers = format!("one connection each, over {REPLICAS} replicas of one control plane{scaled}");
    report.figure("subscribers", scale.subscribers as f64, None, layers);
    let about = |theirs: &Deliveries, quantile| {
        format!("ms from acknowledged to delivered; etcd {:.2}", ms(theirs, quantile))
    };
    for (name, quantile, goal) in [("few_p50_ms", 0.5, FEW_MS[0]), ("few_p99_ms", 0.99, FEW_MS[1])] {
        report.figure(name, ms(&ours.few, quantile), Some(goal), about(&theirs.few, quantile));
    }
    for (name, quantile, goal) in [("all_p50_ms", 0.5, ALL_MS[0]), ("all_p99_ms", 0.99, ALL_MS[1])] {
        report.figure(name, ms(&ours.all, quantile), Some(goal), about(&theirs.all, quantile));
    }
    let note = format!(
        "{:.0} deliveries a second of CPU of control plane and replicas; etcd {:.0}",
        ours.per_cpu_second, theirs.per_cpu_second
    );
    report.figure_at_least("fanout_vs_etcd", ours.per_cpu_second / theirs.per_cpu_second, FANOUT, note);
    let note =
        format!("bytes of all subscribers together, keep-alives included; etcd {:.0}", theirs.idle_bytes);
    report.figure("idle_bytes_per_s", ours.idle_bytes, None, note);
    report.peer("etcd", version);
    Ok(())
}

async fn measure(scale: Scale) -> Result<(Results, Results, String), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut mesh = Mesh::start(dir.path()).await?;
    let ours = side(&mut Writer::Fairmesh(&mut mesh), scale).await?;
    drop(mesh);
    let mut etcd = Etcd::start(&dir.path().join("etcd"), &[]).await?;
    let theirs = side(&mut Writer::Etcd(&mut etcd), scale).await?;
    Ok((ours, theirs, etcd.version.clone()))
}

async fn side(writer: &mut Writer<'_>, scale: Scale) -> Result<Results, String> {
    eprintln!("{}: {} subscribers connect", writer.name(), scale.subscribers);
    let few = prefix("few");
    let all = prefix("all");
    let watchers = (0..scale.subscribers).map(|number| {
        let prefixes = if number < scale.few { vec![all.clone(), few.clone()] } else { vec![all.clone()] };
        (writer.server(number), prefixes)
    });
    let mut crowd = Watchers::gather(watchers.collect()).await?;
    eprintln!("{}: writes", writer.name());
    let few = deliver(writer, &mut crowd, "few", scale.few, scale.few_writes).await?;
    let before = writer.cpu_ns().await?;
    let all = deliver(writer, &mut crowd, "all", scale.subscribers, scale.all_writes).await?;
    let cpu = (writer.cpu_ns().await? - before) as f64 / 1e9;
    let per_cpu_second = (scale.subscribers * scale.all_writes) as f64 / cpu;
    // Wait until the effects of the last write have settled.
    sleep(Duration::from_secs(1)).await;
    let quiet = crowd.traffic();
    sleep(scale.idle).await;
    let idle_bytes = (crowd.traffic() - quiet) as f64 / scale.idle.as_secs_f64();
    Ok(Results { few, all, per_cpu_second, idle_bytes })
}

/// Makes writes one after the other, each once all subscribers have the previous one.
async fn deliver(
    writer: &mut Writer<'_>,
    crowd: &mut Watchers,
    service: &str,
    count: usize,
    writes: usize,
) -> Result<Deliveries, String> {
    let mut deliveries = histogram();
    for number in 0..=writes {
        let revision = writer.write(service, number).await?;
        let acknowledged = Instant::now();
        let times = crowd.have(revision, count, acknowledged).await?;
        // The first write opens what is opened on first use, and is not counted.
        if number > 0 {
            times.into_iter().for_each(|time| deliveries.saturating_record(time));
        }
        sleep(PAUSE).await;
    }
    Ok(deliveries)
}

/// The store to write to.
enum Writer<'a> {
    Fairmesh(&'a mut Mesh),
    Etcd(&'a mut Etcd),
}

impl Writer<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Fairmesh(_) => "fairmesh",
            Self::Etcd(_) => "etcd",
        }
    }

    fn server(&self, number: usize) -> Server {
        match self {
            Self::Fairmesh(mesh) => {
                Server::Fairmesh(mesh.replicas[number % mesh.replicas.len()].address.clone())
            }
            Self::Etcd(etcd) => Server::Etcd(etcd.address.clone()),
        }
    }

    /// Writes an endpoint of a service; returns the revision.
    async fn write(&mut self, service: &str, number: usize) -> Result<u64, String> {
        let (key, value) = endpoint(service, number);
        match self {
            Self::Fairmesh(mesh) => mesh.put(key, value).await,
            Self::Etcd(etcd) => etcd.put(&key, &value).await,
        }
    }

    /// CPU time of all serving processes, in nanoseconds.
    async fn cpu_ns(&mut self) -> Result<u64, String> {
        match self {
            Self::Fairmesh(mesh) => mesh.cpu_ns().await,
            Self::Etcd(etcd) => etcd.cpu_ns(),
        }
    }
}

/// A control plane and its replicas.
struct Mesh {
    root: RoleProcess,
    replicas: Vec<Replica>,
    connection: Connection,
}

struct Replica {
    part: RoleProcess,
    address: String,
}

impl Mesh {
    async fn start(dir: &Path) -> Result<Self, String> {
        let (root, address) = RoleProcess::start(dir, &["control-plane"]).await?;
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            let name = format!("replica-{number}");
            let (part, address) =
                RoleProcess::start(dir, &["replica", "--upstream", &address, "--name", &name]).await?;
            replicas.push(Replica { part, address });
        }
        let connection = handshake::connect(&Default::default(), &Address::Tcp(address), "bench").await;
        Ok(Self { root, replicas, connection: connection.map_err(|e| e.to_string())? })
    }

    async fn put(&self, key: String, value: bytes::Bytes) -> Result<u64, String> {
        let op = v1::Op { key, value: Some(value), condition: None };
        let written = self.connection.rib().write(v1::WriteRequest { ops: vec![op] }).await;
        let revision = written.map_err(|status| status.to_string())?.into_inner().revision;
        revision.map(|revision| revision.number).ok_or_else(|| "a write without revision".into())
    }

    async fn cpu_ns(&mut self) -> Result<u64, String> {
        let mut sum = self.root.cpu_ns().await?;
        for replica in &mut self.replicas {
            sum += replica.part.cpu_ns().await?;
        }
        Ok(sum)
    }
}

/// The prefix that watchers of a service subscribe to.
fn prefix(service: &str) -> String {
    format!("/t/bench/endpoints/{service}/")
}

/// An endpoint whose record depends on `number`.
fn endpoint(service: &str, number: usize) -> (String, bytes::Bytes) {
    let (name, instance, region) = (
        ServiceName::new(format!("bench/{service}")).expect("letters make a name"),
        InstanceId::new("instance-0").expect("letters and digits make an id"),
        Region::new("bench").expect("letters make a region"),
    );
    let port = 1024 + (number % 60_000) as u16;
    let endpoint = Endpoint {
        mtls: false,
        instance: instance.clone(),
        address: ([10, 0, 0, 1], port).into(),
        location: Location::in_region(region.clone()),
        state: EndpointState::Serving,
        weight: FULL_WEIGHT,
        lease: None,
        labels: Default::default(),
    };
    let key = RecordKey::Endpoint(name, region, instance).to_string();
    (key, record_encoding::encode(&Record::from(endpoint)))
}
