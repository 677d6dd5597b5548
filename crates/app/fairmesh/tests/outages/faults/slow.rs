//! A watcher that accepts no updates for a while.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use fairmesh_model::Prefix;
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, Sink},
};

use crate::harness::{Suite, registers};

/// More keys than a replica remembers for one watcher, with large values, so that a replica that buffers them shows in
/// its memory.
const BATCHES: u64 = 6;
const KEYS: u64 = 700;
const BYTES: usize = 1000;
/// Number of times that all keys are written while the watcher sleeps.
const ROUNDS: u64 = 4;

/// A sink that blocks in the middle of an update until it is woken.
struct Sleeper {
    asleep: Arc<Asleep>,
    held: BTreeMap<Arc<str>, u64>,
    last: u64,
    /// Number of keys with the last value.
    current: Arc<AtomicUsize>,
    snapshots: Arc<AtomicUsize>,
}

/// Whether the sink shall block.
#[derive(Default)]
struct Asleep(Mutex<bool>, Condvar);

/// Wakes the sink on drop, also when the test fails; otherwise its thread could never end.
struct Wake(Arc<Asleep>);

impl Drop for Wake {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }
}

impl Sink for Sleeper {
    fn update(&mut self, update: Update) {
        let Asleep(asleep, woken) = &*self.asleep;
        drop(woken.wait_while(asleep.lock().unwrap(), |asleep| *asleep).unwrap());
        assert!(update.revision.number >= self.last, "a slow watcher was taken back");
        self.last = update.revision.number;
        self.snapshots.fetch_add(update.snapshots.len(), Relaxed);
        for snapshot in update.snapshots {
            self.held.clear();
            let entries = snapshot.entries.into_iter();
            self.held.extend(entries.map(|(key, entry)| (key, registers::read_value(&entry.value))));
        }
        for (key, entry) in update.puts {
            self.held.insert(key, registers::read_value(&entry.value));
        }
        for key in update.deletes {
            self.held.remove(&key);
        }
        self.current.store(self.held.values().filter(|value| **value == ROUNDS).count(), Relaxed);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}

pub(super) fn watcher(suite: &Suite) -> String {
    let root = &suite.fleet.root;
    let asleep = Arc::<Asleep>::default();
    let (current, snapshots) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let sleeper = Sleeper {
        asleep: asleep.clone(),
        held: BTreeMap::new(),
        last: 0,
        current: current.clone(),
        snapshots: snapshots.clone(),
    };
    let config = FollowerConfig {
        transport: Default::default(),
        addresses: vec![root.address()],
        software: "a slow watcher".into(),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    // A separate thread, since the watcher blocks its thread.
    let runtime = suite.fleet.desk.runtime();
    let within = runtime.handle.enter();
    let handle = Follower::spawn(config, sleeper);
    drop(within);
    handle.subscribe(registers::bulk_folder());
    suite.until("the watcher follows", || snapshots.load(Relaxed) >= 1);
    let wake = Wake(asleep);
    *wake.0.0.lock().unwrap() = true;
    suite.bulk(0..BATCHES, KEYS, (0, BYTES));
    // The second replica shows the memory needed without a slow watcher.
    let memory = || [root, &suite.fleet.us].map(|replica| replica.daemon.memory());
    let before = memory();
    for round in 1..=ROUNDS {
        suite.bulk(0..BATCHES, KEYS, (round, BYTES));
    }
    suite.goes_on();
    let [grown, usual] = [0, 1].map(|replica| memory()[replica].saturating_sub(before[replica]));
    let written = ROUNDS * BATCHES * KEYS * BYTES as u64;
    assert!(
        grown < usual + written * 2 / 3,
        "the replica grew by {grown} bytes and another by {usual}, while {written} were written"
    );
    drop(wake);
    let all = usize::try_from(BATCHES * KEYS).unwrap();
    suite.until("the slow watcher has everything", || current.load(Relaxed) == all);
    drop(handle);
    suite.bulk(0..BATCHES, KEYS, (0, 0));
    format!(
        "{} MB were written past it, its replica grew by {} MB and another by {} MB; it took {} snapshots in all",
        written >> 20,
        grown >> 20,
        usual >> 20,
        snapshots.load(Relaxed)
    )
}
