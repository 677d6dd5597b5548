//! The one thread that writes the file: it gathers the batches that wait and commits them together.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use fairmesh_rib::{Batch, Commit, Conflict, Expect};
use redb::{Error, ReadableTable, Table};
use tokio::sync::{mpsc, oneshot};

use super::{
    format::{self, ENTRIES},
    open::is_full,
    shared::{Shared, State},
};
use crate::{StoreError, WriteError};

/// How many batches may wait.
const MAX_WAITING: usize = 4096;
/// How many bytes of keys and values they may hold.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// How many batches share a transaction: bounds how long the first waits for the last.
const MAX_GROUP: usize = 512;
/// How many bytes of keys and values they may hold.
const MAX_GROUP_BYTES: usize = 8 << 20;

/// A batch that waits for the disk.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) batch: Batch,
    pub(super) bytes: usize,
    pub(super) answer: oneshot::Sender<Result<u64, WriteError>>,
}

/// The way to the writer. The writer ends when this is dropped and everything that waits is written.
#[derive(Debug)]
pub(super) struct Queue {
    requests: mpsc::Sender<Request>,
    bytes: Arc<AtomicUsize>,
}

impl Queue {
    /// Hands a batch over, or refuses it where too much waits already.
    pub(super) fn push(&self, request: Request, shared: &Shared) -> Result<(), WriteError> {
        let bytes = request.bytes;
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let refusal = match self.requests.try_reserve() {
            Ok(place) if waiting <= MAX_WAITING_BYTES => {
                place.send(request);
                return Ok(());
            }
            Ok(_) | Err(mpsc::error::TrySendError::Full(())) => {
                WriteError::Overloaded { place: shared.place() }
            }
            Err(mpsc::error::TrySendError::Closed(())) => shared.closed(),
        };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Err(refusal)
    }
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<(Queue, JoinHandle<()>)> {
    let (requests, waiting) = mpsc::channel(MAX_WAITING);
    let bytes = Arc::new(AtomicUsize::new(0));
    let mut writer = Writer { shared, waiting, bytes: bytes.clone(), unsettled: Vec::new() };
    let thread = thread::Builder::new().name("fairmesh-store".into()).spawn(move || writer.run())?;
    Ok((Queue { requests, bytes }, thread))
}

struct Writer {
    shared: Arc<Shared>,
    waiting: mpsc::Receiver<Request>,
    bytes: Arc<AtomicUsize>,
    /// What a failed transaction would have written, until it is known whether it did.
    unsettled: Vec<Commit>,
}

/// A transaction in the making.
#[derive(Default)]
struct Staged {
    /// For each batch its revision, or why it has none.
    verdicts: Vec<Result<u64, Conflict>>,
    commits: Vec<Commit>,
}

impl Writer {
    fn run(&mut self) {
        while let Some(first) = self.waiting.blocking_recv() {
            let group = self.gather(first);
            let mut staged = Staged::default();
            match catch_unwind(AssertUnwindSafe(|| self.write(&group, &mut staged))) {
                Ok(Ok(())) => {
                    if self.shared.wrote(None).is_some() {
                        tracing::info!(path = %self.shared.path.display(), "the store takes writes again");
                    }
                    answer(group, staged.verdicts);
                }
                Err(panic) => return self.break_down(group, &*panic),
                Ok(Err(failure)) => {
                    // Once: each that waits is refused with it, and /readyz says it for as long as it lasts.
                    if self.shared.wrote(Some(self.refusal(&failure).to_string())).is_none() {
                        let path = self.shared.path.display();
                        tracing::error!(%path, error = %failure, "a write to the store failed");
                    }
                    refuse(group, || self.refusal(&failure));
                }
            }
        }
    }

    /// Ends with the reason: what the database in memory is worth after a panic, nobody knows, so it is not written again.
    /// The file is as the last commit left it, and is verified when it is opened next.
    fn break_down(&self, group: Vec<Request>, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say why");
        tracing::error!(path = %self.shared.path.display(), text, "the writer of the store broke down; nothing is written any more");
        // Before anybody is refused, so that all are told why.
        self.shared.broke(format!("its writer broke down: {text}; start the process again"));
        refuse(group, || self.shared.closed());
    }

    fn gather(&mut self, first: Request) -> Vec<Request> {
        let mut bytes = first.bytes;
        let mut group = vec![first];
        while group.len() < MAX_GROUP && bytes < MAX_GROUP_BYTES {
            let Ok(next) = self.waiting.try_recv() else { break };
            bytes += next.bytes;
            group.push(next);
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        group
    }

    /// Commits a group and publishes what it changed. Whatever goes wrong, the file is as before or holds all of it.
    fn write(&mut self, group: &[Request], staged: &mut Staged) -> Result<(), StoreError> {
        if !matches!(&*self.shared.state(), State::Open(_)) {
            self.recover()?;
        }
        let newest = self.shared.history.newest();
        let outcome = match &*self.shared.state() {
            State::Open(db) => commit(db, group, newest, staged),
            State::Readable(_) | State::Shut => Err(Error::DatabaseClosed),
        };
        let commits = std::mem::take(&mut staged.commits);
        let Err(failure) = outcome else {
            self.shared.history.publish(commits);
            return Ok(());
        };
        self.unsettled = commits;
        let arrived = self.recover().unwrap_or(false);
        if arrived { Ok(()) } else { Err(super::open::store_error(&self.shared.path, failure)) }
    }

    /// Opens the file anew, and answers whether the transaction that had failed is in it after all; it is then
    /// published like any other.
    fn recover(&mut self) -> Result<bool, StoreError> {
        let revision = self.shared.recover()?;
        let unsettled = std::mem::take(&mut self.unsettled);
        let arrived = unsettled.last().is_some_and(|commit| commit.revision == revision);
        if arrived {
            self.shared.history.publish(unsettled);
        }
        Ok(arrived)
    }

    fn refusal(&self, failure: &StoreError) -> WriteError {
        let place = self.shared.place();
        match failure {
            StoreError::Full { .. } => WriteError::Full { place },
            StoreError::Unreadable { source, .. } if is_full(source) => WriteError::Full { place },
            other => WriteError::Failed { place, source: io::Error::other(other.to_string()) },
        }
    }
}

fn commit(db: &redb::Database, group: &[Request], newest: u64, staged: &mut Staged) -> Result<(), Error> {
    let transaction = format::begin(db)?;
    let mut revision = newest;
    {
        let mut entries = transaction.open_table(ENTRIES)?;
        for Request { batch, .. } in group {
            if let Some(conflict) = conflict(&entries, batch, revision)? {
                staged.verdicts.push(Err(conflict));
                continue;
            }
            revision += 1;
            apply(&mut entries, batch, revision)?;
            staged.commits.push(batch.clone().into_commit(revision));
            staged.verdicts.push(Ok(revision));
        }
    }
    if revision == newest {
        return Ok(transaction.abort()?);
    }
    format::set_revision(&transaction, revision)?;
    Ok(transaction.commit()?)
}

/// The first expectation that the state does not meet.
fn conflict(
    entries: &impl ReadableTable<&'static str, (u64, &'static [u8])>,
    batch: &Batch,
    current: u64,
) -> Result<Option<Conflict>, Error> {
    for op in &batch.ops {
        if op.expect == Expect::Any {
            continue;
        }
        let found = entries.get(&*op.key)?.map(|row| row.value().0);
        let met = match op.expect {
            Expect::Any => true,
            Expect::Absent => found.is_none(),
            Expect::Revision(revision) => found == Some(revision),
        };
        if !met {
            return Ok(Some(Conflict { key: op.key.clone(), expected: op.expect, found, current }));
        }
    }
    Ok(None)
}

fn apply(entries: &mut Table<'_, &str, (u64, &[u8])>, batch: &Batch, revision: u64) -> Result<(), Error> {
    for op in &batch.ops {
        match &op.value {
            Some(value) => drop(entries.insert(&*op.key, (revision, &**value))?),
            None => drop(entries.remove(&*op.key)?),
        }
    }
    Ok(())
}

/// Tells every writer of a group what became of its batch. One that no longer listens does not matter.
fn answer(group: Vec<Request>, verdicts: Vec<Result<u64, Conflict>>) {
    for (request, verdict) in group.into_iter().zip(verdicts) {
        let _ = request.answer.send(verdict.map_err(WriteError::from));
    }
}

fn refuse(group: Vec<Request>, refusal: impl Fn() -> WriteError) {
    for request in group {
        let _ = request.answer.send(Err(refusal()));
    }
}
