//! Repeatedly kills a process that writes to the same file. No acknowledged batch may be missing, no batch stored in
//! part, and no revision left out.
//!
//! The test runs itself as the child process. After a kill only a copy of the file is read, so that each child finds
//! the file as its predecessor left it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use fairmesh_store::{RedbStore, Store};
use fairmesh_test_support::is_soak;
use support::{
    Random,
    workload::{self, Acknowledged, Mark, WRITERS},
};

const CHILD: &str = "FAIRMESH_STORE_KILL_TEST";
/// Time limit for a child's next acknowledgement.
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() {
    if let Some(path) = env::var_os(CHILD) {
        return child(PathBuf::from(path));
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut random = Random::new(7);
    let mut acknowledged = Vec::new();
    let rounds = if is_soak() { 200 } else { 50 };
    for round in 0..rounds {
        run_and_kill(&path, &mut random, &mut acknowledged);
        let copy = folder.path().join(format!("copy-{round}"));
        fs::copy(&path, &copy).unwrap();
        let loaded = load(&copy);
        fs::remove_file(&copy).unwrap();
        workload::check(&loaded, &acknowledged).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    assert!(acknowledged.len() as u64 > rounds * 5, "the kills came too early to prove anything");
    println!("{rounds} kills: {} acknowledged batches are all there and whole", acknowledged.len());
    // Prints the same line as the standard harness, so that this test is counted.
    println!("test result: ok. 1 passed; 0 failed");
}

fn load(path: &Path) -> fairmesh_store::StoreSnapshot {
    let store = RedbStore::open(path).unwrap();
    runtime().block_on(store.load()).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Starts a child, kills it shortly after a random number of acknowledgements, and records every acknowledgement that
/// it printed.
fn run_and_kill(path: &Path, random: &mut Random, acknowledged: &mut Vec<Acknowledged>) {
    let mut child = KilledOnDrop(
        Command::new(env::current_exe().unwrap()).env(CHILD, path).stdout(Stdio::piped()).spawn().unwrap(),
    );
    let (report, reports) = mpsc::channel();
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            // A line truncated by the kill is not an acknowledgement.
            let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
            if let [writer, number, revision, 0] = numbers[..] {
                report.send(Acknowledged { writer, number, revision }).unwrap();
            }
        }
    });
    for _ in 0..random.below(40) {
        acknowledged.push(reports.recv_timeout(TIMEOUT).expect("the child writes"));
    }
    // Waits for no condition: each kill hits another point of the next write.
    std::thread::sleep(Duration::from_micros(random.below(4000)));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    reader.join().unwrap();
    acknowledged.extend(reports.try_iter());
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes endlessly and prints acknowledgements to standard output.
fn child(path: PathBuf) {
    let store = Arc::new(RedbStore::open(path).unwrap());
    runtime().block_on(async move {
        let marks: Vec<Mark> = workload::check(&store.load().await.unwrap(), &[]).unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for (writer, mark) in (0..WRITERS).zip(marks) {
            writers.spawn(workload::write(store.clone(), writer, mark, u64::MAX, |a| {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{} {} {} 0", a.writer, a.number, a.revision).unwrap();
                out.flush().unwrap();
            }));
        }
        writers.join_all().await;
    });
}
