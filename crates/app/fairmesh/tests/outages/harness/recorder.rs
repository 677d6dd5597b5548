use std::{
    mem::take,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::RwLock;

use super::now;
use crate::checker::{Expect, History, Outcome, Read, Revision, State, Time, Write};

/// Records the operations of writers and readers.
#[derive(Debug)]
pub(crate) struct Recorder {
    began: Instant,
    writes: Mutex<Vec<Write>>,
    reads: Mutex<Vec<Read>>,
    /// Locked shared for each write and read, and exclusively at quiet moments.
    pub(crate) gate: RwLock<()>,
    /// State at the last quiet moment, at which the next history starts.
    start: Mutex<State>,
    acknowledged: AtomicU64,
    /// Newest revision acknowledged to any writer.
    newest: AtomicU64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            began: now(),
            writes: Mutex::default(),
            reads: Mutex::default(),
            gate: RwLock::default(),
            start: Mutex::default(),
            acknowledged: AtomicU64::new(0),
            newest: AtomicU64::new(0),
        }
    }

    pub(crate) fn time(&self) -> Time {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    pub(crate) fn wrote(&self, write: Write) {
        if let Outcome::Done(revision) = write.outcome {
            self.newest.fetch_max(revision, Relaxed);
            self.acknowledged.fetch_add(1, Relaxed);
        }
        self.writes.lock().unwrap().push(write);
    }

    pub(crate) fn read(&self, read: Read) {
        self.reads.lock().unwrap().push(read);
    }

    /// Newest revision acknowledged to any writer.
    pub(crate) fn newest(&self) -> Revision {
        self.newest.load(Relaxed)
    }

    /// Number of answered reads since the last quiet moment.
    pub(crate) fn reads(&self) -> usize {
        self.reads.lock().unwrap().len()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Relaxed)
    }

    /// Returns the history since the last quiet moment; `end` is the current state. Writes with unknown outcome may
    /// still be applied, and are therefore also part of the next history.
    pub(crate) fn close(&self, end: State) -> History {
        let start = std::mem::replace(&mut *self.start.lock().unwrap(), end.clone());
        let (writes, reads) =
            (take(&mut *self.writes.lock().unwrap()), take(&mut *self.reads.lock().unwrap()));
        let open = |write: &&Write| write.outcome == Outcome::Unknown && !is_in(write, &end);
        self.writes.lock().unwrap().extend(writes.iter().filter(open).cloned());
        History { start, writes, reads, watches: Vec::new(), end }
    }
}

/// Whether the state contains the batch's mark, which no other write overwrites.
fn is_in(write: &Write, state: &State) -> bool {
    let marks = write.ops.iter().filter(|op| op.value.is_some() && op.expect == Expect::Absent);
    let mut found = marks.filter_map(|op| Some((op.value, state.cells.get(&op.key)?.value)));
    found.any(|(written, there)| written == Some(there))
}
