//! The audit log: who wrote which records, and their earlier values. Append-only, chained by hashes, bounded in size.
//!
//! The log is a file of this control plane, `audit.log` in its data directory, and not part of the store: a
//! writer of records could otherwise rewrite its own entries. Frequent events, such as registrations, have a
//! separate file and chain, so that they do not push out other entries ([`Log`]); each author has a quota for
//! the same reason. Each line contains the SHA-256 of its content, which includes the previous line's hash,
//! so changes, insertions and removals inside the log are detected. To detect a truncated end, the last hash
//! must be stored elsewhere.

mod author_quotas;
mod committed_changes;
mod entry;
mod file;

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Audit, RecordKind, Revision, StoreId};
use fairmesh_rib::{Commit, Node};
use fairmesh_store::write_author;
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::timeout,
};

use committed_changes::CommittedChanges;
pub use entry::hex;
pub use entry::{AuditChange, AuditEntry, AuditEvent, AuditValue, BrokenChain, ChainReader};
use fairmesh_rib::wall_clock::now_ms;
use file::AuditFile;

/// Minimum time between two entries about the same reader of the log.
const READ_INTERVAL_MS: u64 = 600_000;
/// Maximum length of the reason of a refusal, in bytes.
const MAX_REASON: usize = 300;

/// One of the logs, with its own files and chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Writes of configuration, roles and identities, and creation of tokens.
    Security,
    /// Writes of endpoints and shard maps, refused calls, issued certificates, and reads of the logs.
    Activity,
}

impl Log {
    /// Both logs.
    pub const ALL: [Self; 2] = [Self::Security, Self::Activity];

    /// Name of the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Security => "security",
            Self::Activity => "activity",
        }
    }

    /// Name of the current file.
    const fn current(self) -> &'static str {
        match self {
            Self::Security => "audit.log",
            Self::Activity => "audit-activity.log",
        }
    }

    /// Name of the previous file.
    const fn former(self) -> &'static str {
        match self {
            Self::Security => "audit.1.log",
            Self::Activity => "audit-activity.1.log",
        }
    }
}

/// Maximum number of entries waiting for the disk. When it is reached, writers wait, so that a slow disk loses no
/// entry.
const QUEUE: usize = 1024;
/// Time for which a reader waits until entries of earlier writes are on disk.
const READ_WAIT: Duration = Duration::from_secs(2);
/// Maximum size of the entries in one response, in bytes.
const MAX_PAGE: usize = 2 << 20;

/// The audit log. Clones share the same log.
#[derive(Clone, Debug)]
pub struct AuditLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    queue: mpsc::Sender<Queued>,
    changes: CommittedChanges,
    /// Number of entries that could not be written.
    lost: Arc<AtomicU64>,
}

/// An item waiting for the disk.
#[derive(Debug)]
enum Queued {
    Draft(Draft),
    /// A reader that waits. Dropping the sender tells it that all earlier items are written.
    Reader(oneshot::Sender<()>),
}

/// An entry without a number yet.
#[derive(Clone, Debug)]
struct Draft {
    at_ms: u64,
    who: String,
    revision: u64,
    store: String,
    message: Option<String>,
    changes: Vec<AuditChange>,
    event: Option<AuditEvent>,
}

impl Draft {
    fn of_event(at_ms: u64, who: String, event: AuditEvent) -> Self {
        let (store, changes) = (String::new(), Vec::new());
        Self { at_ms, who, revision: 0, store, message: None, changes, event: Some(event) }
    }

    /// The log to which the entry belongs.
    fn log(&self) -> Log {
        match &self.event {
            Some(AuditEvent::Denied { .. } | AuditEvent::Certificate { .. } | AuditEvent::Read { .. }) => {
                Log::Activity
            }
            Some(_) => Log::Security,
            None if self.changes.iter().all(|change| is_active(&change.key)) => Log::Activity,
            None => Log::Security,
        }
    }
}

fn is_active(key: &str) -> bool {
    RecordKind::of(key).is_some_and(|kind| kind.rules().audit == Audit::Activity)
}

/// The last revision of a store according to the logs in a folder, if their last entries belong to that
/// store. A store with a lower revision was restored from a backup.
pub async fn last_revision(folder: &Path, store: StoreId) -> Option<u64> {
    let (folder, store) = (folder.to_owned(), store.to_string());
    // An unreadable log does not prevent the start.
    let last = move |log| file::last_entry(&folder, log).ok().flatten();
    let last = spawn_blocking(move || Log::ALL.map(last)).await.ok()?;
    let of_store = last.into_iter().flatten().filter(|entry| entry.store.as_ref() == Some(&store));
    of_store.map(|entry| entry.revision).max()
}

impl AuditLog {
    /// Opens the logs in a folder to continue them. If a log is unreadable, the process logs an error and
    /// starts nevertheless.
    pub fn open(folder: &Path) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
        let lost = Arc::<AtomicU64>::default();
        let (path, counted) = (folder.to_owned(), Arc::clone(&lost));
        spawn_blocking(move || write_all(&path, queued, &counted));
        let shared = Shared { folder: folder.to_owned(), queue, changes: CommittedChanges::default(), lost };
        Self { shared: Arc::new(shared) }
    }

    /// Records a commit that the node has not applied yet.
    pub fn observe(&self, commit: &Commit, node: &Node) {
        self.shared.changes.observe(commit, node);
    }

    /// Logs a write of this process, with its author and reason, once the node has applied it.
    pub async fn record(&self, (author, message): (Option<Arc<str>>, Option<Arc<str>>), revision: Revision) {
        let Revision { store, number: revision, .. } = revision;
        let changes = self.shared.changes.take(revision);
        if changes.is_empty() {
            return;
        }
        let who = author.map_or_else(caller, |author| author.to_string());
        let (at_ms, store) = (now_ms(), store.to_string());
        let message = message.map(|message| message.to_string());
        let (active, other): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| is_active(&change.key));
        for changes in [other, active].into_iter().filter(|changes| !changes.is_empty()) {
            let (who, store, message) = (who.clone(), store.clone(), message.clone());
            self.send(Draft { at_ms, who, revision, store, message, changes, event: None }).await;
        }
    }

    /// Logs an event for the caller of this task.
    pub async fn note(&self, event: AuditEvent) {
        self.send(Draft::of_event(now_ms(), caller(), event)).await;
    }

    /// Logs a refused call.
    pub fn note_denied(&self, who: &str, method: &str, reason: &str) {
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_REASON)].to_owned();
        let event = AuditEvent::Denied { method: cut(method), reason: cut(reason) };
        self.note_at_once(who.to_owned(), event);
    }

    /// Logs a certificate that was issued to the caller of this task.
    pub fn note_certificate(&self, identity: String) {
        self.note_at_once(caller(), AuditEvent::Certificate { identity });
    }

    /// Logs an event without waiting. While the disk is behind, the entry is dropped and counted as lost.
    fn note_at_once(&self, who: String, event: AuditEvent) {
        let draft = Draft::of_event(now_ms(), who, event);
        if self.shared.queue.try_send(Queued::Draft(draft)).is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    async fn send(&self, draft: Draft) {
        if self.shared.queue.send(Queued::Draft(draft)).await.is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Number of entries that could not be written.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// Lines after the entry with this number, oldest first, and whether the last line is among them.
    /// Includes all writes acknowledged before, unless the disk is too slow.
    ///
    /// # Errors
    /// The files cannot be read.
    pub async fn read(&self, log: Log, after: u64) -> io::Result<(Vec<String>, bool)> {
        self.read_with(log, move |folder| file::read(folder, log, after, MAX_PAGE)).await
    }

    /// The newest lines, oldest first: at most `most`, and at most a page of them. Like [`read`](Self::read)
    /// otherwise.
    ///
    /// # Errors
    /// The files cannot be read.
    pub async fn read_newest(&self, log: Log, most: usize) -> io::Result<Vec<String>> {
        self.read_with(log, move |folder| file::read_newest(folder, log, (most, MAX_PAGE))).await
    }

    /// Reads the files, and logs who read them.
    async fn read_with<T: Send + 'static>(
        &self,
        log: Log,
        read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.note(AuditEvent::Read { log: log.as_str().into() }).await;
        let (told, written) = oneshot::channel();
        let flushed = async {
            if self.shared.queue.send(Queued::Reader(told)).await.is_ok() {
                // Always an error: the other end is dropped without sending.
                let _ = written.await;
            }
        };
        let _ = timeout(READ_WAIT, flushed).await;
        let folder = self.shared.folder.clone();
        spawn_blocking(move || read(&folder)).await.map_err(io::Error::other)?
    }
}

fn caller() -> String {
    write_author::current().map_or_else(|| "control plane".to_owned(), |who| who.to_string())
}

/// Writes entries until the log is dropped.
fn write_all(folder: &Path, mut queue: mpsc::Receiver<Queued>, lost: &AtomicU64) {
    let mut writers = Log::ALL.map(|log| Writer { folder, log, file: AuditFile::open(folder, log) });
    let mut reads = HashMap::new();
    while let Some(mut queued) = queue.blocking_recv() {
        let mut reader = None;
        loop {
            match queued {
                Queued::Draft(draft) if is_repeated_read(&draft, &mut reads) => {}
                Queued::Draft(draft) => {
                    let log = draft.log();
                    let writer = writers.iter_mut().find(|writer| writer.log == log);
                    // There is one writer for each log.
                    writer.into_iter().for_each(|writer| writer.append(draft.clone(), lost));
                }
                Queued::Reader(waiting) => {
                    reader = Some(waiting);
                    break;
                }
            }
            match queue.try_recv() {
                Ok(next) => queued = next,
                Err(_) => break,
            }
        }
        writers.iter_mut().for_each(|writer| writer.sync(reader.is_some(), lost));
        drop(reader);
    }
    writers.iter_mut().for_each(|writer| writer.sync(true, lost));
}

/// Whether an entry says again that a caller has read a log. A follower of the log reads it every second.
fn is_repeated_read(draft: &Draft, reads: &mut HashMap<(String, String), u64>) -> bool {
    let Some(AuditEvent::Read { log }) = &draft.event else { return false };
    reads.retain(|_, at_ms| draft.at_ms.abs_diff(*at_ms) < READ_INTERVAL_MS);
    match reads.entry((draft.who.clone(), log.clone())) {
        Entry::Occupied(_) => true,
        Entry::Vacant(vacant) => {
            vacant.insert(draft.at_ms);
            false
        }
    }
}

/// Writes the file of a log. The file is opened again after an error.
struct Writer<'a> {
    folder: &'a Path,
    log: Log,
    file: io::Result<AuditFile>,
}

impl Writer<'_> {
    fn append(&mut self, draft: Draft, lost: &AtomicU64) {
        if let Err(error) = &self.file {
            tracing::error!(%error, folder = %self.folder.display(), "the log of writes cannot be opened; retrying");
            self.file = AuditFile::open(self.folder, self.log);
        }
        let written = match &mut self.file {
            Ok(file) => file.append(draft),
            Err(_) => Err(io::Error::other("it is not open")),
        };
        self.check(written, lost);
    }

    /// Syncs entries to disk, including pending counts if a reader waits.
    fn sync(&mut self, with_counted: bool, lost: &AtomicU64) {
        let Ok(file) = &mut self.file else { return };
        let counted = file.write_counted(now_ms(), with_counted);
        let synced = counted.and_then(|()| file.sync());
        self.check(synced, lost);
    }

    fn check(&mut self, written: io::Result<()>, lost: &AtomicU64) {
        if let Err(error) = written {
            lost.fetch_add(1, Relaxed);
            tracing::error!(%error, "a write is missing in the log of writes; free space on its disk");
            // A line may be incomplete; opening the file removes it.
            self.file = AuditFile::open(self.folder, self.log);
        }
    }
}
