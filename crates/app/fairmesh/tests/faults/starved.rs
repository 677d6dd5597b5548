//! An agent with two percent of a CPU and little memory (ServiceRouter §3.2).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::Protocol;
use fairmesh_wire::{handshake, transport::Address};
use rustix::process::Pid;

use crate::harness::{Kind, Load, PATIENCE, Spec, World, alone, skipped, until};

/// CPU quota per period, in microseconds. An agent that has used up its quota pauses for the rest of the period, and a
/// process that waits for the agent waits about that long.
const QUOTA_US: u32 = 2_000;
const PERIOD_US: u32 = 100_000;
/// Memory limit in bytes; an unoptimized agent needs about half of it.
const MEMORY: u32 = 48 << 20;

/// Message if the test is skipped.
const NO_GROUP: &str = "a process cannot be put into a control group";

/// A cgroup. Its last process must have ended before it is removed.
struct Group {
    /// One folder with cgroup v2, or one folder per controller with v1.
    folders: Vec<PathBuf>,
}

impl Group {
    /// # Errors
    /// If this process may not create cgroups, such as in a container.
    fn new() -> io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("fairmesh-faults-{}", std::process::id());
        let mut group = Self { folders: Vec::new() };
        if root.join("cgroup.controllers").exists() {
            fs::write(root.join("cgroup.subtree_control"), "+cpu +memory")?;
            let folder = group.add(root.join(name))?;
            fs::write(folder.join("cpu.max"), format!("{QUOTA_US} {PERIOD_US}"))?;
            fs::write(folder.join("memory.max"), MEMORY.to_string())?;
        } else {
            let folder = group.add(root.join("cpu").join(&name))?;
            fs::write(folder.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(folder.join("cpu.cfs_quota_us"), QUOTA_US.to_string())?;
            let folder = group.add(root.join("memory").join(&name))?;
            fs::write(folder.join("memory.limit_in_bytes"), MEMORY.to_string())?;
        }
        Ok(group)
    }

    fn add(&mut self, folder: PathBuf) -> io::Result<PathBuf> {
        fs::create_dir(&folder)?;
        self.folders.push(folder.clone());
        Ok(folder)
    }

    fn take(&self, process: Pid) -> io::Result<()> {
        let pid = process.as_raw_nonzero().to_string();
        self.folders.iter().try_for_each(|folder| fs::write(folder.join("cgroup.procs"), &pid))
    }

    /// Number of periods in which the quota was used up.
    fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.folders[0].join("cpu.stat")).unwrap();
        text.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            // After a failure, the agent may not have exited yet.
            let removed = (0..100).any(|_| {
                fs::remove_dir(folder).is_ok() || {
                    std::thread::sleep(Duration::from_millis(10));
                    false
                }
            });
            if !removed {
                eprintln!("the control group {} is left; remove it with rmdir", folder.display());
            }
        }
    }
}

/// Keeps an agent busy until `stop` is set.
async fn pester(agent: Address, stop: Arc<AtomicBool>) {
    while !stop.load(Relaxed) {
        // The test does not depend on a timely response.
        let _ = tokio::time::timeout(PATIENCE, handshake::connect(&Default::default(), &agent, "pest")).await;
    }
}

async fn p99(callers: &Load) -> Duration {
    callers.tally().took.lock().unwrap().clear();
    callers.goes_on(1000).await;
    let mut took = callers.tally().took.lock().unwrap().clone();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starved_agent_does_not_slow_calls() {
    let _machine = alone().await;
    let group = match Group::new() {
        Ok(group) => group,
        Err(error) => return skipped(NO_GROUP, error),
    };
    let mut world = World::start("").await;
    let mut callers = Vec::new();
    let (mesh, mut servers) = (world.mesh().await, Vec::new());
    // The servers use another agent, since the test is about callers.
    let (_agent, elsewhere) = world.another_agent("elsewhere").await;
    for (name, protocol) in [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2)] {
        for instance in ["a", "b"] {
            servers.push(Spec::new(name, instance, protocol).serve(elsewhere.clone()).await);
        }
        callers.extend(Load::of(&mesh.service(name).unwrap(), &[(Kind::Get, 1), (Kind::Post, 1)]));
    }
    let load = Load::start(callers);
    load.goes_on(100).await;
    let before = p99(&load).await;

    if let Err(error) = group.take(world.agent.pid()) {
        return skipped(NO_GROUP, error);
    }
    let stop = Arc::<AtomicBool>::default();
    let pests = [0; 2].map(|_| tokio::spawn(pester(world.agent_address(), stop.clone())));
    until("the agent is throttled", async || group.throttled() >= 5).await;
    // A later change must reach the callers, however late.
    world.apply("{kind: Policy, service: shop/one, timeout: 4s}").await.ok();
    let starved = p99(&load).await;
    let throttled = group.throttled();
    world.apply("{kind: Policy, service: shop/two, timeout: 4s}").await.ok();
    until("the agent is throttled on", async || group.throttled() > throttled).await;
    stop.store(true, Relaxed);
    for pest in pests {
        pest.await.unwrap();
    }

    assert!(world.agent.has_ended().is_none(), "it lives within its memory: {}", world.agent.log());
    world.agent.kill().await;
    load.stop_unharmed().await;
    // A call takes one or two milliseconds here. A call that waits for the agent waits for most of a period. Half a
    // period tells the two apart, even on a disturbed machine; on an even more disturbed machine, three times the
    // latency without the limit does.
    let bound = Duration::from_micros(u64::from(PERIOD_US / 2)).max(3 * before);
    assert!(starved < bound, "p99 was {before:?} and is {starved:?}");
}
