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
use crate::{Loaded, Place, StoreError, WriteError, history::History};

/// What the writer and the readers of one store share.
pub(super) struct Shared {
    pub(super) path: PathBuf,
    pub(super) id: StoreId,
    pub(super) history: History,
    backend: OpenBackend,
    state: RwLock<State>,
    /// Why the writer ended before its time.
    broken: OnceLock<String>,
    /// Why the last write failed, until one succeeds.
    failing: Mutex<Option<String>>,
    /// Declared last: released after the database is closed.
    lock: Option<File>,
}

/// What can be done with the file now.
pub(super) enum State {
    /// Everything, as far as is known.
    Open(Database),
    /// It cannot be written since a write failed, but it can be read.
    Readable(Database),
    /// It could not even be read when that was last tried.
    Shut,
}

impl Shared {
    /// Verifies and opens what must be there already.
    pub(super) fn open(path: PathBuf, backend: OpenBackend, lock: Option<File>) -> Result<Self, StoreError> {
        let Meta { id, revision, .. } = open::verify(&path, &backend)?;
        let db = open::writable(&path, &backend)?;
        let history = History::after(revision);
        Ok(Self {
            path,
            id,
            history,
            backend,
            state: RwLock::new(State::Open(db)),
            broken: OnceLock::new(),
            failing: Mutex::default(),
            lock,
        })
    }

    /// The file, for messages.
    pub(super) fn place(&self) -> Place {
        self.path.as_path().into()
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        // A panic under the lock leaves a database that answers every call with an error, as a failed disk does.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer is gone, and nothing can be written any more.
    pub(super) fn broke(&self, reason: String) {
        // The first reason is the one that matters.
        let _ = self.broken.set(reason);
        self.history.close();
    }

    /// Why nothing can be written any more.
    /// Notes what became of a write: why it failed, or that it did not; returns the same of the one before.
    pub(super) fn wrote(&self, failure: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.failing.lock().unwrap_or_else(PoisonError::into_inner), failure)
    }

    pub(super) fn failing(&self) -> Option<String> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// What a batch gets that nobody will write.
    pub(super) fn closed(&self) -> WriteError {
        let reason = self.broken().unwrap_or("it is closed").to_owned();
        WriteError::Failed { place: self.place(), source: io::Error::other(reason) }
    }

    /// Verifies the file while nothing is written to it, over a view of its own: what is open is not touched.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let _alone = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let path = self.path.clone();
        let look: OpenBackend = Box::new(move || backend::look_at(&path));
        // Without a lock it is no file, and what it is can be opened again.
        let backend = if self.lock.is_some() { &look } else { &self.backend };
        let Meta { revision, .. } = open::verify(&self.path, backend)?;
        // Where the pages of the last commit do not match, what is found is the commit before.
        match revision >= self.history.newest() {
            true => Ok(()),
            false => Err(StoreError::Corrupt {
                place: self.place(),
                problem: "its last commit cannot be read".into(),
            }),
        }
    }

    pub(super) fn load(&self) -> Result<Loaded, StoreError> {
        match &*self.state() {
            State::Open(db) | State::Readable(db) => {
                format::load(db).map_err(|e| open::store_error(&self.path, e))
            }
            State::Shut => Err(open::system_error(&self.path, io::Error::other("the disk failed earlier"))),
        }
    }

    pub(super) fn range(&self, keys: Range<String>) -> Result<Vec<(Arc<str>, Entry)>, StoreError> {
        match &*self.state() {
            State::Open(db) | State::Readable(db) => {
                format::range(db, keys).map_err(|e| open::store_error(&self.path, e))
            }
            State::Shut => Err(open::system_error(&self.path, io::Error::other("the disk failed earlier"))),
        }
    }

    /// Opens the file anew after a failed write, and answers the revision that it holds durably.
    ///
    /// What the failed transaction wrote may be there whole or not at all, and what is read may be in the page cache
    /// only. One more synced transaction settles both, before anything is acknowledged. While that fails, the file is
    /// kept open to read.
    pub(super) fn recover(&self) -> Result<u64, StoreError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // redb has to give up the file before it is opened again.
        *state = State::Shut;
        match self.reopen() {
            Ok((db, revision)) => {
                *state = State::Open(db);
                Ok(revision)
            }
            Err(failure) => {
                if let Ok(db) = open::view(&self.path, &self.backend) {
                    *state = State::Readable(db);
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
            place: self.place(),
            problem: "another file took its place".into(),
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

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("path", &self.path).field("id", &self.id).finish_non_exhaustive()
    }
}
