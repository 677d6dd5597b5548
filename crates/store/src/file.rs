//! The store of one machine: a redb file and the one thread that writes it.

mod backend;
mod copy;
mod format;
mod lock;
mod open;
mod shared;
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

use crate::{BoxFuture, Commits, Loaded, Store, StoreError, WriteError};
pub use backend::OpenBackend;
pub use copy::{Changes, Copied, CopyFile};
use shared::Shared;
use writer::{Queue, Request};

/// The one partition of a store on one machine.
const PARTITION: u32 = 0;

/// A store in one redb file, which this process holds alone. Dropping it waits for the writes under way.
#[derive(Debug)]
pub struct RedbStore {
    shared: Arc<Shared>,
    queue: Option<Queue>,
    writer: Option<JoinHandle<()>>,
}

impl RedbStore {
    /// Opens the store at `path`, and creates it (and the directory) where there is none. Blocks on the disk.
    ///
    /// The whole file is verified first, without writing to it. A file beside it, `path` with `.lock` added, keeps
    /// other processes out.
    ///
    /// # Errors
    /// [`StoreError`] when the file is not a sound store of a known format; it is then left as it was.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let lock = lock::take(&path)?;
        if !path.try_exists().map_err(|e| open::system_error(&path, e))? {
            open::create_file(&path)?;
        }
        let file = path.clone();
        let backend = Box::new(move || backend::of_file(&file));
        Self::start(Shared::open(path, backend, Some(lock))?)
    }

    /// Gives the store at `path` a new id, and answers it. Blocks on the disk.
    ///
    /// To be done once to a copy that is put back, before it is served: readers that saw later revisions of the old id
    /// would otherwise wait for it to catch up, and then take two histories for one. With a new id they start over.
    ///
    /// # Errors
    /// As [`RedbStore::open`]; a file that is not there is an error too.
    pub fn renew_id(path: impl Into<PathBuf>) -> Result<StoreId, StoreError> {
        let path = path.into();
        let _lock = lock::take(&path)?;
        let file = path.clone();
        let backend: OpenBackend = Box::new(move || backend::of_file(&file));
        open::verify(&path, &backend)?;
        let db = open::writable(&path, &backend)?;
        format::renew(&db).map_err(|e| open::store_error(&path, e))
    }

    /// Opens or creates a store on something else than a file, under a name for messages: for crash tests.
    #[doc(hidden)]
    pub fn with_backend(name: impl Into<PathBuf>, backend: OpenBackend) -> Result<Self, StoreError> {
        let name = name.into();
        open::create_on(&name, &backend)?;
        Self::start(Shared::open(name, backend, None)?)
    }

    fn start(shared: Shared) -> Result<Self, StoreError> {
        let shared = Arc::new(shared);
        let (queue, writer) = writer::start(shared.clone())
            .map_err(|source| StoreError::Unreadable { place: shared.place(), source })?;
        Ok(Self { shared, queue: Some(queue), writer: Some(writer) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The entries of `keys`, by ascending key. For who keeps more than is held in memory.
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
            return Ok(self.revision(self.shared.history.newest()));
        }
        batch.validate()?;
        let bytes =
            batch.ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, |value| value.len())).sum();
        let (answer, verdict) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(|| self.shared.closed())?;
        queue.push(Request { batch, bytes, answer }, &self.shared)?;
        let number = verdict.await.map_err(|_| self.shared.closed())??;
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

    fn load(&self) -> BoxFuture<'_, Result<Loaded, StoreError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let place = shared.place();
            tokio::task::spawn_blocking(move || shared.load()).await.unwrap_or_else(|stopped| {
                Err(StoreError::Unreadable { place, source: io::Error::other(stopped) })
            })
        })
    }

    fn commits(&self, after: u64) -> Commits {
        self.shared.history.subscribe(after)
    }

    fn verify(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let place = shared.place();
            tokio::task::spawn_blocking(move || shared.verify()).await.unwrap_or_else(|stopped| {
                Err(StoreError::Unreadable { place, source: io::Error::other(stopped) })
            })
        })
    }

    fn failing(&self) -> Option<String> {
        self.shared.failing()
    }

    fn broken(&self) -> Option<&str> {
        self.shared.broken()
    }

    fn disk_bytes(&self) -> u64 {
        std::fs::metadata(&self.shared.path).map_or(0, |file| file.len())
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        // The writer ends with its queue, and closes the file properly only when it is waited for.
        self.queue.take();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the writer of the store had stopped early");
        }
    }
}
