//! Writes on a large store. A control plane with 12 GB of records receives writes as ServiceRouter's RIB does
//! (ServiceRouter §4.1), durably and through its API, while a watcher of all records checks that every write arrives.
//! Compared with plain etcd, and with our control plane on a store in etcd.

mod delivery_check;
mod etcd_cost;
mod memory_check;
mod scratch_dir;
mod summary;
mod write_target;
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
    load_generator::{self, Seen},
    process_usage::resident,
    report::Report,
    role_process::RoleProcess,
};
use delivery_check::DeliveryCheck;
use scratch_dir::ScratchDir;
use write_target::{Target, Writer, fill};
use write_workload::WriteWorkload;

/// Goals: batches per second, and megabytes per second.
const WRITES: u64 = 335;
const MEGABYTES: f64 = 39.0;
/// Number of concurrent writers at full speed.
const WRITERS: usize = 32;
/// Maximum time for a control plane to start serving.
const START: Duration = Duration::from_secs(900);
/// Pause between attempts to connect.
const LOOK: Duration = Duration::from_millis(20);
/// Options of etcd: transactions of up to 10,001 operations, and the largest backend quota that etcd's makers
/// recommend.
const ETCD: [&str; 2] = ["--max-txn-ops=10001", "--quota-backend-bytes=8589934592"];

/// Sizes and durations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Bytes of all records.
    store: u64,
    /// Bytes of all records for plain etcd and for both sides of the ratio: etcd keeps overwritten values until it is
    /// compacted, and all must stay below its quota.
    etcd: u64,
    /// Duration of writes at the goal's rate, and of writes at full speed.
    paced: Duration,
    length: Duration,
    /// Turns of each side of the ratio, and the duration of a turn.
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

    /// Required bytes of disk, with a margin: the file took 1.3 times its records, since its pages are powers of two.
    fn disk(&self) -> u64 {
        self.store * 7 / 4 + 1_000_000_000
    }

    /// Required bytes of memory, with a margin: all records, their keys twice, allocator overhead, and this process.
    fn memory(&self) -> u64 {
        self.store * 3 / 2 + 1_000_000_000
    }
}

/// Results of writing.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Writes per second at full speed.
    writes_per_s: f64,
    mb_per_s: f64,
    /// Latency of writes at the goal's rate.
    paced: Seen,
}

/// Results of our side.
struct Ours {
    pace: Pace,
    store: u64,
    start: Duration,
    /// Resident bytes once the control plane served, resident bytes after the writes, and bytes on disk.
    memory_at_start: u64,
    memory: u64,
    disk: u64,
    /// Number of times the watcher got a new snapshot of everything.
    anew: usize,
    /// CPU time per write in seconds, including the work for the watcher.
    cpu: f64,
}

/// Measures our side, then plain etcd, then our control plane on both stores.
pub(super) async fn run(quick: bool, report: &mut Report) -> Result<(), String> {
    let scale = Scale::new(quick);
    memory_check::require_available(scale.memory())?;
    let room = ScratchDir::take(scale.disk())?;
    let ours = ours(&room.path().join("large"), scale).await?;
    let (etcd, version) = etcd(&room.path().join("etcd"), scale).await?;
    summary::add(scale, quick, &ours, etcd, report);
    let ratio = etcd_cost::measure(&room.path().join("ratio"), scale).await?;
    ratio.report(report);
    report.peer("etcd", version);
    Ok(())
}

/// Measures a control plane whose store file is filled before it opens it.
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
    let memory_at_start = resident(pid).ok_or("the control plane has ended")?;
    let mut watch = DeliveryCheck::start(address, revision).await;
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
    let memory = resident(pid).ok_or("the control plane has ended")?;
    let disk = fs::metadata(&file).map_err(|e| format!("{}: {e}", file.display()))?.blocks() * 512;
    drop(root);
    // Frees the disk space for etcd.
    fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(Ours { pace, store, start, memory_at_start, memory, disk, anew, cpu })
}

/// Connects to a starting control plane as soon as it responds.
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

/// Writes a workload to a new file. Returns its last revision, and the number of bytes.
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

/// Measures plain etcd with the same batches.
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

/// Writes at the goal's rate for a while, and then at full speed.
async fn pace(writer: &Writer, scale: Scale) -> Result<Pace, String> {
    let paced = Seen::of(&load_generator::open(writer, WRITES, scale.paced).await?);
    let (writes_per_s, mb_per_s) = full_speed(writer, scale.length).await?;
    Ok(Pace { writes_per_s, mb_per_s, paced })
}

/// Writes at full speed for `length`. Returns batches and megabytes per second.
async fn full_speed(writer: &Writer, length: Duration) -> Result<(f64, f64), String> {
    let before = writer.written().bytes;
    let run = load_generator::closed(writer, WRITERS, length).await?;
    let seconds = run.wall_ns as f64 / 1e9;
    let bytes = writer.written().bytes - before;
    Ok((run.calls as f64 / seconds, bytes as f64 / 1e6 / seconds))
}
