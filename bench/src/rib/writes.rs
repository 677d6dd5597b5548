//! Writes on a large store: a control plane whose records take 12 GB is written as ServiceRouter's RIB is
//! (ServiceRouter §4.1), durably and through its API, while a watcher of everything checks that all of it arrives.
//! Beside it plain etcd, and our control plane on a store in etcd.

mod disk_space;
mod figures;
mod ratio;
mod target;
mod write_watcher;
mod write_workload;

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use fairmesh_model::Revision;
use fairmesh_store::{RedbStore, Store};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Address,
};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::etcd::Etcd;
use crate::{
    load::{self, Seen},
    report::Report,
    role_process::RoleProcess,
};
use disk_space::DiskSpace;
use target::{Target, Writer, fill};
use write_watcher::WriteWatcher;
use write_workload::WriteWorkload;

/// Goals: batches a second, and megabytes a second.
const WRITES: u64 = 335;
const MEGABYTES: f64 = 39.0;
/// Who write at one time when it goes as fast as it can.
const WRITERS: usize = 32;
/// How long a control plane may take to serve.
const START: Duration = Duration::from_secs(900);
/// How long to wait before asking it again.
const LOOK: Duration = Duration::from_millis(20);
/// Options of etcd: batches are transactions of up to a thousand records, and the backend takes what etcd's makers call
/// the most that it should.
const ETCD: [&str; 2] = ["--max-txn-ops=10001", "--quota-backend-bytes=8589934592"];

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Bytes of all records.
    store: u64,
    /// The same of plain etcd, and of both sides of the ratio: etcd keeps what is written over until it is compacted,
    /// and all of that has to stay below its quota.
    etcd: u64,
    /// How long writes come at the rate of the goal, and then as fast as they go.
    paced: Duration,
    length: Duration,
    /// Turns of each side of the ratio, and how long each lasts.
    turns: usize,
    turn: Duration,
}

impl Scale {
    fn new(quick: bool) -> Self {
        match quick {
            true => Self {
                store: 500_000_000,
                etcd: 100_000_000,
                paced: Duration::from_secs(5),
                length: Duration::from_secs(10),
                turns: 1,
                turn: Duration::from_secs(3),
            },
            false => Self {
                store: 12_000_000_000,
                etcd: 1_000_000_000,
                paced: Duration::from_secs(60),
                length: Duration::from_secs(60),
                turns: 3,
                turn: Duration::from_secs(20),
            },
        }
    }

    /// Bytes of disk, with some to spare: the file took 1.3 times its records, since its pages are powers of two.
    fn disk(&self) -> u64 {
        self.store * 7 / 4 + 1_000_000_000
    }

    /// Bytes of memory, with some to spare: all records, their keys twice, what the allocator keeps, and this process.
    fn memory(&self) -> u64 {
        self.store * 3 / 2 + 1_000_000_000
    }
}

/// What writing came to.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// As fast as it goes.
    writes_per_s: f64,
    mb_per_s: f64,
    /// At the rate of the goal: how long a write takes.
    paced: Seen,
}

/// Our side.
struct Ours {
    pace: Pace,
    store: u64,
    start: Duration,
    /// Bytes in memory once it served, the same after the writes, and bytes on disk.
    memory_at_start: u64,
    memory: u64,
    disk: u64,
    /// How often the watcher was sent everything anew.
    anew: usize,
    /// Processor time for each write, the watcher's part included, in seconds.
    cpu: f64,
}

/// Measures ours, then plain etcd, then the two stores of ours.
pub(super) async fn run(quick: bool, report: &mut Report) -> Result<(), String> {
    let scale = Scale::new(quick);
    disk_space::remember(scale.memory())?;
    let room = DiskSpace::take(scale.disk())?;
    let ours = ours(&room.path().join("large"), scale).await?;
    let (etcd, version) = etcd(&room.path().join("etcd"), scale).await?;
    figures::add(scale, quick, &ours, etcd, report);
    let ratio = ratio::measure(&room.path().join("ratio"), scale).await?;
    ratio.report(report);
    report.peer("etcd", version);
    Ok(())
}

/// A control plane with a file of its own, filled before it opens it.
async fn ours(dir: &Path, scale: Scale) -> Result<Ours, String> {
    let mut workload = WriteWorkload::of(scale.store);
    let file = dir.join("control").join("rib.redb");
    eprintln!("fairmesh: {:.1} GB are written to the file of its store", scale.store as f64 / 1e9);
    let (revision, store) = fill_file(&file, &mut workload).await?;
    eprintln!("fairmesh: starts");
    let start = Instant::now();
    let (mut root, address) = RoleProcess::start_within(START, dir, &["control-plane"]).await?;
    let address = Address::Tcp(address);
    let connection = connect(&address).await?;
    let start = start.elapsed();
    let pid = root.pid();
    let memory_at_start = disk_space::resident(pid)?;
    let mut watch = WriteWatcher::start(address, revision).await;
    let writer = Writer::new(Target::Fairmesh(Box::new(connection)), workload);
    eprintln!("fairmesh: writes");
    let before = root.cpu_ns().await?;
    let pace = tokio::select! {
        pace = pace(&writer, scale) => pace?,
        () = watch.acknowledge() => return Err("the watcher ended".into()),
    };
    let written = std::mem::take(&mut *writer.written());
    let anew = watch.check(&written).await?;
    let cpu = (root.cpu_ns().await? - before) as f64 / 1e9 / written.batches as f64;
    let memory = disk_space::resident(pid)?;
    let disk = fs::metadata(&file).map_err(|e| format!("{}: {e}", file.display()))?.blocks() * 512;
    drop(root);
    // So that etcd has the room.
    fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(Ours { pace, store, start, memory_at_start, memory, disk, anew, cpu })
}

/// Connects to a control plane that has just begun to listen, as soon as it responds.
async fn connect(address: &Address) -> Result<Connection, String> {
    let until = Instant::now() + START;
    loop {
        match handshake::connect(&Default::default(), address, "bench").await {
            Ok(connection) => return Ok(connection),
            Err(error) if Instant::now() > until => return Err(error.to_string()),
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// Writes a workload to a file where there is none; its last revision, and bytes.
async fn fill_file(file: &Path, workload: &mut WriteWorkload) -> Result<(Revision, u64), String> {
    let at = file.to_owned();
    let store = spawn_blocking(move || RedbStore::open(at)).await.map_err(|e| e.to_string())?;
    let store = store.map_err(|e| e.to_string())?;
    let bytes = fill(workload, async |batch| store.write(batch).await.map(drop).map_err(|e| e.to_string()));
    let bytes = bytes.await?;
    let last = store.write(Default::default()).await.map_err(|e| e.to_string())?;
    spawn_blocking(move || drop(store)).await.map_err(|e| e.to_string())?;
    Ok((last, bytes))
}

/// Plain etcd with the same batches.
async fn etcd(dir: &Path, scale: Scale) -> Result<(Pace, String), String> {
    let etcd = Etcd::start(dir, &ETCD).await?;
    let target = Target::Etcd(etcd.channel.clone());
    let mut workload = WriteWorkload::of(scale.etcd);
    eprintln!("etcd: {:.1} GB are written", scale.etcd as f64 / 1e9);
    fill(&mut workload, async |batch| target.write(batch).await.map(drop)).await?;
    eprintln!("etcd: writes");
    let pace = pace(&Writer::new(target, workload), scale).await?;
    let version = etcd.version.clone();
    drop(etcd);
    fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok((pace, version))
}

/// Writes at the rate of the goal for a while, and then as fast as it goes.
async fn pace(writer: &Writer, scale: Scale) -> Result<Pace, String> {
    let paced = Seen::of(&load::open(writer, WRITES, scale.paced).await?);
    let (writes_per_s, mb_per_s) = full_speed(writer, scale.length).await?;
    Ok(Pace { writes_per_s, mb_per_s, paced })
}

/// Writes as fast as it goes for a while; batches and megabytes a second.
async fn full_speed(writer: &Writer, length: Duration) -> Result<(f64, f64), String> {
    let before = writer.written().bytes;
    let run = load::closed(writer, WRITERS, length).await?;
    let seconds = run.wall_ns as f64 / 1e9;
    let bytes = writer.written().bytes - before;
    Ok((run.calls as f64 / seconds, bytes as f64 / 1e6 / seconds))
}
