//! The writer thread: takes batches from the queue and commits them in groups.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError,
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
    state::{Access, FileState},
};
use crate::{StoreError, WriteError};

/// Maximum number of batches in the queue.
const MAX_QUEUED: usize = 4096;
/// Maximum size of keys and values in the queue, in bytes.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Maximum number of batches per transaction. It bounds how long the first batch waits for the last one.
const MAX_GROUP: usize = 512;
/// Maximum size of keys and values per transaction, in bytes.
const MAX_GROUP_BYTES: usize = 8 << 20;

/// A queued batch.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) batch: Batch,
    pub(super) bytes: usize,
    pub(super) response: oneshot::Sender<Result<u64, WriteError>>,
}

/// Sends batches to the writer thread. The thread ends when the queue is dropped and every queued batch is written.
#[derive(Debug)]
pub(super) struct Queue {
    requests: mpsc::Sender<WriteRequest>,
    bytes: Arc<AtomicUsize>,
}

impl Queue {
    /// Enqueues a batch, or refuses it if the queue is full.
    pub(super) fn push(&self, request: WriteRequest, shared: &FileState) -> Result<(), WriteError> {
        let bytes = request.bytes;
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let rejection = match self.requests.try_reserve() {
            Ok(permit) if waiting <= MAX_QUEUED_BYTES => {
                permit.send(request);
                return Ok(());
            }
            Ok(_) | Err(mpsc::error::TrySendError::Full(())) => {
                WriteError::Overloaded { location: shared.location() }
            }
            Err(mpsc::error::TrySendError::Closed(())) => shared.closed(),
        };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Err(rejection)
    }
}

/// Starts the writer thread.
pub(super) fn start(shared: Arc<FileState>) -> io::Result<(Queue, JoinHandle<()>)> {
    let (requests, queue) = mpsc::channel(MAX_QUEUED);
    let bytes = Arc::new(AtomicUsize::new(0));
    let mut writer = Writer { shared, queue, bytes: bytes.clone(), uncertain: Vec::new() };
    let thread = thread::Builder::new().name("fairmesh-store".into()).spawn(move || writer.run())?;
    Ok((Queue { requests, bytes }, thread))
}

struct Writer {
    shared: Arc<FileState>,
    queue: mpsc::Receiver<WriteRequest>,
    bytes: Arc<AtomicUsize>,
    /// Commits of a failed transaction, until it is known whether the transaction is durable.
    uncertain: Vec<Commit>,
}

/// A transaction being prepared.
#[derive(Default)]
struct StagedTransaction {
    /// The revision of each batch, or the conflict that refused it.
    results: Vec<Result<u64, Conflict>>,
    commits: Vec<Commit>,
}

impl Writer {
    fn run(&mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let group = self.collect_group(first);
            let mut staged = StagedTransaction::default();
            match catch_unwind(AssertUnwindSafe(|| self.write(&group, &mut staged))) {
                Ok(Ok(())) => {
                    if self.shared.set_write_failure(None).is_some() {
                        tracing::info!(path = %self.shared.path.display(), "writes to the store succeed again");
                    }
                    respond(group, staged.results);
                }
                Err(panic) => return self.shut_down(group, &*panic),
                Ok(Err(failure)) => {
                    // Logged once: every refused batch carries the error, and /readyz reports it while it lasts.
                    if self.shared.set_write_failure(Some(self.rejection(&failure).to_string())).is_none() {
                        let path = self.shared.path.display();
                        tracing::error!(%path, error = %failure, "a write to the store failed");
                    }
                    reject(group, || self.rejection(&failure));
                }
            }
        }
    }

    /// Ends the thread after a panic, and records the panic's message as the reason. The database in memory can no
    /// longer be trusted and is not written again. The file is as the last commit left it, and is verified when it is
    /// next opened.
    fn shut_down(&self, group: Vec<WriteRequest>, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        tracing::error!(path = %self.shared.path.display(), text, "the writer thread of the store panicked; nothing is written any more");
        // Set before the batches are refused, so that each refusal names the reason.
        self.shared.fail(format!("its writer panicked: {text}; start the process again"));
        reject(group, || self.shared.closed());
    }

    fn collect_group(&mut self, first: WriteRequest) -> Vec<WriteRequest> {
        let mut bytes = first.bytes;
        let mut group = vec![first];
        while group.len() < MAX_GROUP && bytes < MAX_GROUP_BYTES {
            let Ok(next) = self.queue.try_recv() else { break };
            bytes += next.bytes;
            group.push(next);
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        group
    }

    /// Commits a group and publishes its commits. After a failure, the file contains either the whole group or none
    /// of it.
    fn write(&mut self, group: &[WriteRequest], staged: &mut StagedTransaction) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        // A panic under this lock has ended the writer; the file may still be verified.
        let _writing = shared.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(&*self.shared.access(), Access::ReadWrite(_)) {
            self.recover()?;
        }
        let newest = self.shared.commit_log.newest();
        let outcome = match &*self.shared.access() {
            Access::ReadWrite(db) => commit(db, group, newest, staged),
            Access::ReadOnly(_) | Access::Closed => Err(Error::DatabaseClosed),
        };
        let commits = std::mem::take(&mut staged.commits);
        let Err(failure) = outcome else {
            self.shared.commit_log.publish(commits);
            return Ok(());
        };
        self.uncertain = commits;
        let persisted = self.recover().unwrap_or(false);
        if persisted { Ok(()) } else { Err(super::open::store_error(&self.shared.path, failure)) }
    }

    /// Reopens the file. Returns whether the failed transaction was durable after all; it is then published like any
    /// other.
    fn recover(&mut self) -> Result<bool, StoreError> {
        let revision = self.shared.recover()?;
        let uncertain = std::mem::take(&mut self.uncertain);
        let persisted = uncertain.last().is_some_and(|commit| commit.revision == revision);
        if persisted {
            self.shared.commit_log.publish(uncertain);
        }
        Ok(persisted)
    }

    fn rejection(&self, failure: &StoreError) -> WriteError {
        let location = self.shared.location();
        match failure {
            StoreError::DiskFull { .. } => WriteError::DiskFull { location },
            StoreError::Io { source, .. } if is_full(source) => WriteError::DiskFull { location },
            other => WriteError::Failed { location, source: io::Error::other(other.to_string()) },
        }
    }
}

fn commit(
    db: &redb::Database,
    group: &[WriteRequest],
    newest: u64,
    staged: &mut StagedTransaction,
) -> Result<(), Error> {
    let transaction = format::begin(db)?;
    let mut revision = newest;
    {
        let mut entries = transaction.open_table(ENTRIES)?;
        for WriteRequest { batch, .. } in group {
            if let Some(conflict) = conflict(&entries, batch, revision)? {
                staged.results.push(Err(conflict));
                continue;
            }
            revision += 1;
            apply(&mut entries, batch, revision)?;
            staged.commits.push(batch.clone().into_commit(revision));
            staged.results.push(Ok(revision));
        }
    }
    if revision == newest {
        return Ok(transaction.abort()?);
    }
    format::set_revision(&transaction, revision)?;
    Ok(transaction.commit()?)
}

/// Returns the conflict of the first expectation that does not hold.
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

/// Sends each writer of a group its result. Writers may have been cancelled.
fn respond(group: Vec<WriteRequest>, results: Vec<Result<u64, Conflict>>) {
    for (request, result) in group.into_iter().zip(results) {
        let _ = request.response.send(result.map_err(WriteError::from));
    }
}

fn reject(group: Vec<WriteRequest>, rejection: impl Fn() -> WriteError) {
    for request in group {
        let _ = request.response.send(Err(rejection()));
    }
}
