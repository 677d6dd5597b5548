//! The copy of another process's records on a replica's disk: a store file that is written seldom and whole.
//!
//! It has the format of a store, and one transaction takes it from one revision of its source to another, so that a
//! process that dies leaves one consistent revision. A transaction a change was rejected, with and without a sync: a
//! replica can get everything again from its upstream, and what is gathered for a second is written once.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::{Entry, Values};
use redb::{Database, Error, ReadableDatabase, ReadableTable};

use super::{
    backend::{self, OpenBackend},
    format::{self, ENTRIES, META, META_REVISION, META_STORE},
    lock, open,
};
use crate::StoreError;

/// When the copy was last known to be current, in milliseconds of Unix time.
const META_CURRENT: &str = "current";

/// What a copy held when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The revision of its source that it is.
    pub revision: Revision,
    /// When it was last known to be current, to the millisecond.
    pub at: SystemTime,
    /// All of it, by ascending key.
    pub entries: Vec<(Arc<str>, Entry)>,
}

/// What takes a copy to a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// What the copy is afterwards. One of another store than before replaces all that there was.
    pub revision: Revision,
    /// When this was last known to be current.
    pub at: SystemTime,
    /// Every key that changed since the revision before, with its entry now; `None` is gone.
    pub keys: Values,
}

/// The file of a copy, which this process holds alone.
#[derive(Debug)]
pub struct CopyFile {
    path: PathBuf,
    /// `None` since a write failed: redb gives up a file that failed once, so it is opened anew for the next.
    db: Option<Database>,
    /// Declared last: released after the database is closed.
    _lock: File,
}

impl CopyFile {
    /// Opens and verifies the copy at `path`, and creates it (and the directory) where there is none. Answers what it
    /// holds, if anything. Blocks on the disk.
    ///
    /// A file that is damaged, or of a later release, is moved aside with a warning: what it held is fetched again.
    ///
    /// # Errors
    /// When another process has it open, or the disk refuses.
    pub fn open(path: impl Into<PathBuf>) -> Result<(Self, Option<Copied>), StoreError> {
        let path = path.into();
        let lock = lock::take(&path)?;
        let (db, copied) = match load(&path) {
            Err(
                reason @ (StoreError::Corrupt { .. } | StoreError::Foreign { .. } | StoreError::Newer { .. }),
            ) => {
                let aside = path.with_extension("unreadable");
                tracing::warn!(%reason, aside = %aside.display(), "the copy is moved aside and fetched again");
                fs::rename(&path, &aside).map_err(|e| open::system_error(&path, e))?;
                load(&path)?
            }
            loaded => loaded?,
        };
        Ok((Self { path, db: Some(db), _lock: lock }, copied))
    }

    /// Takes the copy to another revision: whole and on disk when this returns, or not at all. Blocks on the disk.
    ///
    /// # Errors
    /// When the disk refuses. The changes are to be offered again, with those that came since.
    pub fn write(&mut self, changes: &Changes) -> Result<(), StoreError> {
        let db = match self.db.take() {
            Some(db) => db,
            None => open::writable(&self.path, &of_file(&self.path))?,
        };
        commit(&db, changes).map_err(|e| open::store_error(&self.path, e))?;
        self.db = Some(db);
        Ok(())
    }

    /// How many bytes the file takes now; 0 where that cannot be found out.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

fn of_file(path: &Path) -> OpenBackend {
    let path = path.to_owned();
    Box::new(move || backend::of_file(&path))
}

fn load(path: &Path) -> Result<(Database, Option<Copied>), StoreError> {
    if !path.try_exists().map_err(|e| open::system_error(path, e))? {
        open::create_file(path)?;
    }
    let backend = of_file(path);
    let meta = open::verify(path, &backend)?;
    let db = open::writable(path, &backend)?;
    if meta.revision == 0 {
        return Ok((db, None));
    }
    let read = || Ok((current(&db)?, format::load(&db)?));
    let (at, (number, entries)) = read().map_err(|e| open::store_error(path, e))?;
    let copied = Copied { revision: Revision { store: meta.id, partition: 0, number }, at, entries };
    Ok((db, Some(copied)))
}

/// When the copy was last known to be current; for ever ago where nobody noted it.
fn current(db: &Database) -> Result<SystemTime, Error> {
    let found = db.begin_read()?.open_table(META)?.get(META_CURRENT)?.map(|found| found.value());
    let millis = found.and_then(|millis| u64::try_from(millis).ok()).unwrap_or_default();
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(millis))
        .ok_or_else(|| Error::Io(io::Error::other("it is from a time that no clock shows")))
}

fn commit(db: &Database, changes: &Changes) -> Result<(), Error> {
    let mut transaction = format::begin(db)?;
    // A copy of gigabytes is opened after a crash without a walk through all of it to find out which pages are free.
    transaction.set_quick_repair(true);
    let StoreId(store) = changes.revision.store;
    let before = transaction.open_table(META)?.get(META_STORE)?.map(|found| found.value());
    if before != Some(store) {
        transaction.delete_table(ENTRIES)?;
    }
    {
        let mut entries = transaction.open_table(ENTRIES)?;
        for (key, entry) in &changes.keys {
            match entry {
                Some(entry) => drop(entries.insert(&**key, (entry.revision, &*entry.value))?),
                None => drop(entries.remove(&**key)?),
            }
        }
        let at = changes.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_STORE, store)?;
        meta.insert(META_REVISION, u128::from(changes.revision.number))?;
        meta.insert(META_CURRENT, at.as_millis())?;
    }
    Ok(transaction.commit()?)
}
