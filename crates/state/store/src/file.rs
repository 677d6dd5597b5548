//! The store of a single machine: a redb file, and one thread that writes it.

mod backend;
mod format;
mod lock;
mod open;
mod replica_file;
mod state;
mod writer;

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::{Batch, Entry};
use tokio::sync::oneshot;

use crate::{BoxFuture, Commits, Store, StoreError, StoreSnapshot, WriteError};
pub use backend::OpenBackend;
pub use replica_file::{ReplicaContents, ReplicaFile, ReplicaUpdate};
use state::FileState;
use writer::{Queue, WriteRequest};

/// The only partition of a store on one machine.
const PARTITION: u32 = 0;

/// A store in one redb file, locked by this process. Dropping the store waits for writes in flight.
#[derive(Debug)]
pub struct RedbStore {
    shared: Arc<FileState>,
    queue: Option<Queue>,
    writer: Option<JoinHandle<()>>,
}

impl RedbStore {
    /// Opens the store at `path`, or creates it and its directory if absent. Blocks on the disk.
    ///
    /// The whole file is verified first, without writing to it. A lock file, whose name is `path` with `.lock`
    /// appended, excludes other processes. If other users may read the file, their access is removed.
    ///
    /// # Errors
    /// [`StoreError`] when the file is not an undamaged store of a known format; the file stays unchanged.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let lock = lock::acquire(&path)?;
        if !path.try_exists().map_err(|e| open::system_error(&path, e))? {
            open::create_file(&path)?;
        }
        let file = path.clone();
        let backend = Box::new(move || backend::of_file(&file));
        let state = FileState::open(path, backend, Some(lock))?;
        open::make_private(&state.path);
        Self::start(state)
    }

    /// Gives the store at `path` a new id and returns it. Blocks on the disk.
    ///
    /// Do this once after restoring a backup, before serving it. Readers that saw later revisions under the old id
    /// would otherwise wait until the store catches up, and then mix two histories. With a new id they take a
    /// snapshot.
    ///
    /// # Errors
    /// As for [`RedbStore::open`]; a missing file is an error too.
    pub fn regenerate_id(path: impl Into<PathBuf>) -> Result<StoreId, StoreError> {
        let path = path.into();
        let _lock = lock::acquire(&path)?;
        let file = path.clone();
        let backend: OpenBackend = Box::new(move || backend::of_file(&file));
        open::verify(&path, &backend)?;
        let db = open::writable(&path, &backend)?;
        format::regenerate_id(&db).map_err(|e| open::store_error(&path, e))
    }

    /// Opens or creates a store on a storage backend instead of a file, for crash tests. Messages call it `name`.
    #[doc(hidden)]
    pub fn with_backend(name: impl Into<PathBuf>, backend: OpenBackend) -> Result<Self, StoreError> {
        let name = name.into();
        open::create_on(&name, &backend)?;
        Self::start(FileState::open(name, backend, None)?)
    }

    fn start(shared: FileState) -> Result<Self, StoreError> {
        let shared = Arc::new(shared);
        let (queue, writer) = writer::start(shared.clone())
            .map_err(|source| StoreError::Io { location: shared.location(), source })?;
        Ok(Self { shared, queue: Some(queue), writer: Some(writer) })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the entries in the key range `keys`, by ascending key; for callers whose data exceeds memory.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be read.
    pub async fn range(&self, keys: Range<String>) -> Result<Vec<(Arc<str>, Entry)>, StoreError> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || shared.range(keys))
            .await
            .unwrap_or_else(|stopped| Err(open::system_error(self.path(), io::Error::other(stopped))))
    }

    async fn submit(&self, batch: Batch) -> Result<Revision, WriteError> {
        if batch.ops.is_empty() {
            return Ok(self.revision(self.shared.commit_log.newest()));
        }
        batch.validate()?;
        let bytes =
            batch.ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, |value| value.len())).sum();
        let (response, result) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(|| self.shared.closed())?;
        queue.push(WriteRequest { batch, bytes, response }, &self.shared)?;
        let number = result.await.map_err(|_| self.shared.closed())??;
        Ok(self.revision(number))
    }

    fn revision(&self, number: u64) -> Revision {
        Revision { store: self.shared.id, partition: PARTITION, number }
    }
}

impl Store for RedbStore {
    fn id(&self) -> StoreId {
        self.shared.id
    }

    fn partition(&self, _key: &str) -> u32 {
        PARTITION
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(self.submit(batch))
    }

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let location = shared.location();
            tokio::task::spawn_blocking(move || shared.load())
                .await
                .unwrap_or_else(|stopped| Err(StoreError::Io { location, source: io::Error::other(stopped) }))
        })
    }

    fn commits(&self, after: u64) -> Commits {
        self.shared.commit_log.subscribe(after)
    }

    fn verify(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let state = self.shared.clone();
        Box::pin(async move {
            let location = state.location();
            tokio::task::spawn_blocking(move || state.verify())
                .await
                .unwrap_or_else(|stopped| Err(StoreError::Io { location, source: io::Error::other(stopped) }))
        })
    }

    fn write_failure(&self) -> Option<String> {
        self.shared.write_failure()
    }

    fn fatal_error(&self) -> Option<&str> {
        self.shared.fatal_error()
    }

    fn disk_bytes(&self) -> u64 {
        std::fs::metadata(&self.shared.path).map_or(0, |file| file.len())
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // The writer thread ends when its queue is closed and empty; joining it closes the file properly.
        self.queue.take();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the writer thread of the store had ended early");
        }
    }
}
