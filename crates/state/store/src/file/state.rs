use std::{
    fmt,
    fs::File,
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard},
};

use fairmesh_model::StoreId;
use fairmesh_rib::Entry;
use redb::Database;

use super::{
    backend::{self, OpenBackend},
    format::{self, Meta},
    open,
};
use crate::{StoreError, StoreLocation, StoreSnapshot, WriteError, commit_log::CommitLog};

/// State shared by the writer thread and the readers of one store.
pub(super) struct FileState {
    pub(super) path: PathBuf,
    pub(super) id: StoreId,
    pub(super) commit_log: CommitLog,
    backend: OpenBackend,
    access: RwLock<Access>,
    /// Why the writer thread ended.
    fatal_error: OnceLock<String>,
    /// Why the last write failed; `None` once a write succeeds.
    write_failure: Mutex<Option<String>>,
    /// Lock held while the file is written or verified.
    pub(super) writing: Mutex<()>,
    /// Must be the last field: fields are dropped in order, and the lock is released after the database is closed.
    lock: Option<File>,
}

/// Operations that the file currently allows.
pub(super) enum Access {
    /// Reads and writes.
    ReadWrite(Database),
    /// Reads only, because a write failed.
    ReadOnly(Database),
    /// None, because the last attempt to open the file failed.
    Closed,
}

impl FileState {
    /// Verifies and opens an existing file.
    pub(super) fn open(path: PathBuf, backend: OpenBackend, lock: Option<File>) -> Result<Self, StoreError> {
        let Meta { id, revision, .. } = open::verify(&path, &backend)?;
        let db = open::writable(&path, &backend)?;
        let commit_log = CommitLog::after(revision);
        Ok(Self {
            path,
            id,
            commit_log,
            backend,
            access: RwLock::new(Access::ReadWrite(db)),
            fatal_error: OnceLock::new(),
            write_failure: Mutex::default(),
            writing: Mutex::default(),
            lock,
        })
    }

    /// Returns the path of the file, for messages.
    pub(super) fn location(&self) -> StoreLocation {
        self.path.as_path().into()
    }

    pub(super) fn access(&self) -> RwLockReadGuard<'_, Access> {
        // After a panic under this lock, the database returns an error for every call, as a failed disk does.
        self.access.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the writer thread has ended, so that no more writes are possible.
    pub(super) fn fail(&self, reason: String) {
        // Only the first reason is kept, because it is the cause of later ones.
        let _ = self.fatal_error.set(reason);
        self.commit_log.close();
    }

    /// Records why a write failed, or that it succeeded (`None`). Returns the previous value.
    pub(super) fn set_write_failure(&self, failure: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.write_failure.lock().unwrap_or_else(PoisonError::into_inner), failure)
    }

    pub(super) fn write_failure(&self) -> Option<String> {
        self.write_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why no more writes are possible; `None` while the writer runs.
    pub(super) fn fatal_error(&self) -> Option<&str> {
        self.fatal_error.get().map(String::as_str)
    }

    /// Returns the error for a batch after the writer has ended.
    pub(super) fn closed(&self) -> WriteError {
        let reason = self.fatal_error().unwrap_or("it is closed").to_owned();
        WriteError::Failed { location: self.location(), source: io::Error::other(reason) }
    }

    /// Verifies the file through a separate view, while nothing is written. Does not touch the open database.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let _no_writes = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path.clone();
        let read_only: OpenBackend = Box::new(move || backend::open_read_only(&path));
        // A store without a lock is not a file; its backend can be opened a second time.
        let backend = if self.lock.is_some() { &read_only } else { &self.backend };
        let Meta { revision, .. } = open::verify(&self.path, backend)?;
        // If the pages of the last commit are damaged, redb falls back to the previous commit.
        match revision >= self.commit_log.newest() {
            true => Ok(()),
            false => Err(StoreError::Corrupt {
                location: self.location(),
                problem: "its last commit cannot be read".into(),
            }),
        }
    }

    pub(super) fn load(&self) -> Result<StoreSnapshot, StoreError> {
        match &*self.access() {
            Access::ReadWrite(db) | Access::ReadOnly(db) => {
                format::load(db).map_err(|e| open::store_error(&self.path, e))
            }
            Access::Closed => {
                Err(open::system_error(&self.path, io::Error::other("the disk failed earlier")))
            }
        }
    }

    pub(super) fn range(&self, keys: Range<String>) -> Result<Vec<(Arc<str>, Entry)>, StoreError> {
        match &*self.access() {
            Access::ReadWrite(db) | Access::ReadOnly(db) => {
                format::range(db, keys).map_err(|e| open::store_error(&self.path, e))
            }
            Access::Closed => {
                Err(open::system_error(&self.path, io::Error::other("the disk failed earlier")))
            }
        }
    }

    /// Reopens the file after a failed write, and returns the durable revision.
    ///
    /// The failed transaction may be present as a whole or not at all, and reads may come only from the page cache.
    /// Another synced transaction settles both questions before anything is acknowledged. While that transaction
    /// fails, the file stays open for reads.
    pub(super) fn recover(&self) -> Result<u64, StoreError> {
        let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
        // redb must release the file before it can be opened again.
        *access = Access::Closed;
        match self.reopen() {
            Ok((db, revision)) => {
                *access = Access::ReadWrite(db);
                Ok(revision)
            }
            Err(failure) => {
                if let Ok(db) = open::open_read_only(&self.path, &self.backend) {
                    *access = Access::ReadOnly(db);
                }
                Err(failure)
            }
        }
    }

    fn reopen(&self) -> Result<(Database, u64), StoreError> {
        let failed = |e| open::store_error(&self.path, e);
        let db = open::writable(&self.path, &self.backend)?;
        let found = format::meta(&db).map_err(failed)?.filter(|meta| meta.id == self.id);
        let revision = found.map(|meta| meta.revision).ok_or_else(|| StoreError::Corrupt {
            location: self.location(),
            problem: "another file replaced it".into(),
        })?;
        let settle = || {
            let transaction = format::begin(&db)?;
            format::set_revision(&transaction, revision)?;
            Ok(transaction.commit()?)
        };
        settle().map_err(failed)?;
        Ok((db, revision))
    }
}

impl fmt::Debug for FileState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileState").field("path", &self.path).field("id", &self.id).finish_non_exhaustive()
    }
}
