//! The log of writes: who wrote what, and what was there before. Append-only, chained by hashes, bounded in size.
//!
//! It is a file of this control plane, `audit.log` in its data directory, and not in the store: what may write records
//! could otherwise rewrite what it wrote. Each line has the SHA-256 of its content, which names that of the line before, so
//! that a change, an insertion and a removal in between show; the end of the log has to be kept elsewhere to show that it
//! was cut.

mod changes;
mod entry;
mod file;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::{Commit, Node};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::timeout,
};

use changes::CommittedChanges;
pub(crate) use entry::hex;
pub use entry::{AuditChange, AuditEntry, AuditValue, BrokenChain, ChainReader};
use file::AuditFile;

/// Entries that wait for the disk. Writers wait for room, so that a slow disk loses none.
const QUEUE: usize = 1024;
/// How long a reader waits for entries of writes before it.
const READ_WAIT: Duration = Duration::from_secs(2);
/// The most bytes of entries in one response.
const MAX_PAGE: usize = 2 << 20;

/// The log of writes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AuditLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    queue: mpsc::Sender<Queued>,
    changes: CommittedChanges,
    /// Entries that could not be written.
    lost: Arc<AtomicU64>,
}

/// What waits for the disk.
#[derive(Debug)]
enum Queued {
    Draft(Draft),
    /// A reader, which is told by the end of this that all before is written.
    Reader(oneshot::Sender<()>),
}

/// An entry that has no number yet.
#[derive(Debug)]
struct Draft {
    at_ms: u64,
    who: String,
    revision: u64,
    store: String,
    message: Option<String>,
    changes: Vec<AuditChange>,
}

/// The last revision of a store that the log in a folder has, if its last entry is of that store. A store that is behind it
/// was restored from a copy.
pub(crate) async fn last_revision(folder: &Path, store: StoreId) -> Option<u64> {
    let folder = folder.to_owned();
    // A log that cannot be read is no reason not to start.
    let last = spawn_blocking(move || file::last_entry(&folder)).await.ok()?.ok()??;
    (last.store? == store.to_string()).then_some(last.revision)
}

impl AuditLog {
    /// Continues the log in a folder. A log that cannot be read is an error in the process's own log, and no reason not to
    /// start.
    pub(crate) fn open(folder: &Path) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
        let lost = Arc::<AtomicU64>::default();
        let (path, counted) = (folder.to_owned(), Arc::clone(&lost));
        spawn_blocking(move || write_all(&path, queued, &counted));
        let shared = Shared { folder: folder.to_owned(), queue, changes: CommittedChanges::default(), lost };
        Self { shared: Arc::new(shared) }
    }

    /// Notes a commit that the node does not have yet.
    pub(crate) fn observe(&self, commit: &Commit, node: &Node) {
        self.shared.changes.observe(commit, node);
    }

    /// Logs a write of this process, once the node has it, with its author and the reason that this one gave.
    pub(crate) async fn record(
        &self,
        (author, message): (Option<Arc<str>>, Option<Arc<str>>),
        revision: Revision,
    ) {
        let Revision { store, number: revision, .. } = revision;
        let changes = self.shared.changes.take(revision);
        if changes.is_empty() {
            return;
        }
        let who = author.map_or_else(|| "control plane".to_owned(), |author| author.to_string());
        let (at_ms, store) = (crate::admin::now_ms(), store.to_string());
        let message = message.map(|message| message.to_string());
        let draft = Draft { at_ms, who, revision, store, message, changes };
        if self.shared.queue.send(Queued::Draft(draft)).await.is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Entries that could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// Lines after the entry with this number, oldest first, and whether none follows: all writes that were acknowledged
    /// before, unless the disk is too slow.
    pub(crate) async fn read(&self, after: u64) -> std::io::Result<(Vec<String>, bool)> {
        let (told, written) = oneshot::channel();
        let flushed = async {
            if self.shared.queue.send(Queued::Reader(told)).await.is_ok() {
                // The other end is dropped, and sends nothing.
                let _ = written.await;
            }
        };
        let _ = timeout(READ_WAIT, flushed).await;
        let folder = self.shared.folder.clone();
        spawn_blocking(move || file::read(&folder, after, MAX_PAGE)).await.map_err(std::io::Error::other)?
    }
}

/// Writes entries until the log is dropped.
fn write_all(folder: &Path, mut queue: mpsc::Receiver<Queued>, lost: &AtomicU64) {
    let mut file = AuditFile::open(folder);
    while let Some(queued) = queue.blocking_recv() {
        let draft = match queued {
            Queued::Draft(draft) => draft,
            Queued::Reader(_) => continue,
        };
        let mut reader = None;
        if let Err(error) = &file {
            tracing::error!(%error, folder = %folder.display(), "the log of writes cannot be opened; retrying");
            file = AuditFile::open(folder);
        }
        let written = match &mut file {
            Ok(file) => {
                let mut written = file.append(draft);
                while written.is_ok()
                    && reader.is_none()
                    && let Ok(queued) = queue.try_recv()
                {
                    match queued {
                        Queued::Draft(draft) => written = file.append(draft),
                        Queued::Reader(waiting) => reader = Some(waiting),
                    }
                }
                written.and_then(|()| file.sync())
            }
            Err(_) => Err(std::io::Error::other("it is not open")),
        };
        if let Err(error) = written {
            lost.fetch_add(1, Relaxed);
            tracing::error!(%error, "a write is missing in the log of writes; free space on its disk");
            // A line may be there in part, which opening removes.
            file = AuditFile::open(folder);
        }
        drop(reader);
    }
}
