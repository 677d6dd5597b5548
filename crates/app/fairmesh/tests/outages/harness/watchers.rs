use std::{
    mem::take,
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_model::Prefix;
use fairmesh_rib::{
    Entry, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::transport::Address;
use tokio::runtime;

use super::{Recorder, registers};
use crate::checker::{Cell, Key, State, Step, Watch};

/// Watches all registers, as a router watches its services, and records every update.
pub(crate) struct Watcher {
    pub(crate) name: String,
    seen: Arc<Mutex<Seen>>,
    _handle: FollowerHandle,
}

#[derive(Debug, Default)]
struct Seen {
    from: State,
    state: State,
    steps: Vec<Step>,
    /// Number of snapshots received.
    snapshots: usize,
}

struct Note {
    name: String,
    recorder: Arc<Recorder>,
    seen: Arc<Mutex<Seen>>,
}

impl Watcher {
    pub(crate) fn start(
        runtime: &runtime::Handle,
        recorder: &Arc<Recorder>,
        name: &str,
        addresses: &[Address],
    ) -> Self {
        let config = FollowerConfig {
            transport: Default::default(),
            addresses: addresses.to_vec(),
            software: format!("test {name}"),
            backoff: Backoff { longest: Duration::from_millis(500), ..Backoff::default() },
            // As in the library.
            refuse_lagging: false,
        };
        let seen = Arc::<Mutex<Seen>>::default();
        let note = Note { name: name.into(), recorder: recorder.clone(), seen: seen.clone() };
        let _within = runtime.enter();
        let handle = Follower::spawn(config, note);
        handle.subscribe(registers::folder());
        Self { name: name.into(), seen, _handle: handle }
    }

    /// Whether the watcher has this state.
    pub(crate) fn holds(&self, state: &State) -> bool {
        self.seen.lock().unwrap().state.cells == state.cells
    }

    /// Revision that the watcher has reached.
    pub(crate) fn at(&self) -> u64 {
        self.seen.lock().unwrap().state.at
    }

    pub(crate) fn snapshots(&self) -> usize {
        self.seen.lock().unwrap().snapshots
    }

    /// Takes the updates received since the last call.
    pub(crate) fn take(&self) -> Watch {
        let mut seen = self.seen.lock().unwrap();
        let state = seen.state.clone();
        let from = std::mem::replace(&mut seen.from, state);
        Watch { name: self.name.clone(), from, steps: take(&mut seen.steps) }
    }
}

impl Sink for Note {
    fn update(&mut self, update: Update) {
        let time = self.recorder.time();
        let mut seen = self.seen.lock().unwrap();
        let whole = !update.snapshots.is_empty();
        let snapshots = update.snapshots.into_iter().flat_map(|snapshot| snapshot.entries);
        let puts: Vec<_> = snapshots.chain(update.puts).map(cell).collect();
        let deletes: Vec<Key> = update.deletes.iter().map(|key| registers::read_key(key)).collect();
        let step = Step { time, revision: update.revision.number, whole, puts, deletes };
        seen.take(step);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        println!("{}: {prefix} was refused: {reason}", self.name);
    }
}

impl Seen {
    fn take(&mut self, step: Step) {
        self.snapshots += usize::from(step.whole);
        if step.whole {
            self.state.cells.clear();
        }
        for key in &step.deletes {
            self.state.cells.remove(key);
        }
        self.state.cells.extend(step.puts.iter().copied());
        self.state.at = step.revision;
        self.steps.push(step);
    }
}

fn cell((key, entry): (Arc<str>, Entry)) -> (Key, Cell) {
    let cell = Cell { value: registers::read_value(&entry.value), revision: entry.revision };
    (registers::read_key(&key), cell)
}
