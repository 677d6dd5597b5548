//! Repeatedly kills a replica that follows a stream of writes, always with the same state folder. After each kill,
//! the replica's copy must open and equal exactly one revision of the upstream.
//!
//! The test runs itself as the child process. After a kill only a duplicate of the file is read, so that the next
//! child opens the original as the kill left it.
#![allow(clippy::unwrap_used, reason = "a failed precondition fails the test")]

#[path = "../../rib/tests/watch/support.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod support;

use std::{
    collections::BTreeMap,
    env, fs,
    future::pending,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fairmesh_replica::ReplicaConfig;
use fairmesh_rib::Entry;
use fairmesh_store::ReplicaFile;
use fairmesh_wire::transport::Address;
use support::{BOUND, Memory, Server, prefix};
use tokio::time::Instant;

const ROUNDS: u64 = 20;
const CHILD: &str = "FAIRMESH_REPLICA_KILL_TEST";
/// Number of keys. Each value takes about a page, so that a write takes long enough to be interrupted.
const KEYS: u64 = 400;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(folder) = env::var_os(CHILD) {
        return runtime.block_on(child(&PathBuf::from(folder)));
    }
    // Lists this test when the test runner asks, like the standard harness. No test is ignored here.
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("kill: test");
        }
        return;
    }
    // Arguments that name other tests.
    if arguments.iter().any(|argument| !argument.starts_with('-') && argument != "kill") {
        return;
    }
    let found = runtime.block_on(rounds());
    println!("{ROUNDS} kills: the copy is always one revision, at last {found}");
    // Prints the same line as the standard harness, so that this test is counted.
    println!("test result: ok. 1 passed; 0 failed");
}

fn upstream(folder: &Path) -> Address {
    Address::Unix(folder.join("control.sock"))
}

/// Runs a replica until it is killed.
async fn child(folder: &Path) {
    let config = ReplicaConfig {
        transport: Default::default(),
        upstreams: vec![upstream(folder)],
        listen: vec![Address::Unix(folder.join("replica.sock"))],
        state_dir: folder.join("state"),
        advertise: Vec::new(),
        name: "killed".into(),
        region: None,
        metrics: None,
    };
    fairmesh_replica::run(config, pending()).await.unwrap();
}

async fn rounds() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::new(1);
    let control = Server::start(memory.clone(), &upstream(folder.path()).to_string()).await;
    let mut last = 0;
    // A fixed seed; its value does not matter.
    let mut dice = 7_u64;
    for round in 0..ROUNDS {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Kills the replica during the first write after a start, during later writes, and between writes.
        let life = Duration::from_micros((dice >> 33) % if round % 4 == 0 { 2_500_000 } else { 150_000 });
        run_and_kill(folder.path(), &memory, life).await;
        let found = check(folder.path(), round);
        assert!(found >= last, "round {round}: from {last} back to {found}");
        last = found;
    }
    assert!(last > ROUNDS, "the kills came too early to prove anything: {last}");
    control.stop().await;
    last
}

/// Starts a replica, writes while it follows, and kills it after `life`.
async fn run_and_kill(folder: &Path, memory: &Memory, life: Duration) {
    let mut child =
        KilledOnDrop(Command::new(env::current_exe().unwrap()).env(CHILD, folder).spawn().unwrap());
    let started = Instant::now();
    while memory.node.watchers(&prefix("/")).is_empty() {
        assert!(started.elapsed() < BOUND, "the replica follows");
        write(memory).await;
    }
    let following = Instant::now();
    while following.elapsed() < life {
        write(memory).await;
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    // Waits until the watcher is gone, so that the next replica is not mistaken for this one.
    let mut left = memory.node.acks();
    while !memory.node.watchers(&prefix("/")).is_empty() {
        left.changed().await.unwrap();
    }
}

/// Commits the changes of the next revision; called some thousand times per second.
async fn write(memory: &Memory) {
    let changes = changes(memory.node.revision().number + 1);
    memory.commit(changes.iter().map(|(key, value)| (key.as_str(), value.clone())));
    tokio::time::sleep(Duration::from_micros(300)).await;
}

/// Returns the changes of a revision: some keys are written, one is deleted.
fn changes(revision: u64) -> Vec<(String, Option<Bytes>)> {
    let key = |number: u64| format!("/k/{:03}", number % KEYS);
    let value = Bytes::from(format!("{revision:04096}"));
    let mut changes: Vec<_> = (0..5).map(|i| (key(revision * 5 + i), Some(value.clone()))).collect();
    changes.push((key(revision * 5 + 200), None));
    changes
}

/// Opens a duplicate of the file, compares it with the content expected at its revision, and returns the revision.
fn check(folder: &Path, round: u64) -> u64 {
    let (file, aside) = (folder.join("state/copy.redb"), folder.join(format!("copy-{round}.redb")));
    if !file.exists() {
        return 0;
    }
    fs::copy(&file, &aside).unwrap();
    let (opened, copied) = ReplicaFile::open(&aside).unwrap();
    drop(opened);
    fs::remove_file(&aside).unwrap();
    assert!(!aside.with_extension("unreadable").exists(), "round {round}: the copy is damaged");
    let Some(copied) = copied else { return 0 };
    // The last revision of each key in the log.
    let logged: BTreeMap<&str, u64> = copied.log.iter().map(|(number, key)| (&**key, *number)).collect();
    let mut expected = BTreeMap::new();
    for revision in 1..=copied.revision.number {
        for (key, value) in changes(revision) {
            let known = logged.get(&*key).is_some_and(|number| *number >= revision);
            assert!(
                known || revision <= copied.floor,
                "round {round}: {key} of {revision} is not in the log"
            );
            match value {
                Some(value) => drop(expected.insert(Arc::from(key), Entry { value, revision })),
                None => drop(expected.remove(&*key)),
            }
        }
    }
    let found: BTreeMap<Arc<str>, Entry> = copied.entries.into_iter().collect();
    assert!(found == expected, "round {round}: the content differs from revision {}", copied.revision);
    copied.revision.number
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
