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
use fairmesh_rib::{DEFAULT_LOG, Entry, Values};
use redb::{
    Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use super::{
    backend::{self, OpenBackend},
    format::{self, ENTRIES, META, META_REVISION, META_STORE},
    lock, open,
};
use crate::StoreError;

/// When the copy was last known to be current, in milliseconds of Unix time.
const META_CURRENT: &str = "current";
/// Changes after this number are all in the log.
const META_FLOOR: &str = "floor";
/// Which keys changed lately: each with the number of the write that brought it, which is not below that of its change.
const LOG: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("fairmesh.log");

/// What a copy held when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The revision of its source that it is.
    pub revision: Revision,
    /// When it was last known to be current, to the millisecond.
    pub at: SystemTime,
    /// All of it, by ascending key.
    pub entries: Vec<(Arc<str>, Entry)>,
    /// Changes after this number are all in `log`.
    pub floor: u64,
    /// The keys that changed, in order, each with a number not below that of its change: so that watchers which return
    /// after a restart are sent what they missed, and not everything.
    pub log: Vec<(u64, Arc<str>)>,
}

/// What takes a copy to a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// What the copy is afterwards. One of another store than before replaces all that there was.
    pub revision: Revision,
    /// When this was last known to be current.
    pub at: SystemTime,
    /// The number after which the source knows all that changed: the log of the copy never reaches further back.
    pub floor: u64,
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
    let read = || Ok((current(&db)?, log(&db)?, format::load(&db)?));
    let (at, (floor, log), (number, entries)) = read().map_err(|e| open::store_error(path, e))?;
    let revision = Revision { store: meta.id, partition: 0, number };
    // A file that was no copy so far knows of no changes.
    let floor = floor.unwrap_or(number);
    let copied = Copied { revision, at, entries, floor, log };
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

/// Keys in the order in which they changed, with the number of the write.
type Log = Vec<(u64, Arc<str>)>;

/// From where on the log is whole, and the log.
fn log(db: &Database) -> Result<(Option<u64>, Log), Error> {
    let transaction = db.begin_read()?;
    let floor = transaction.open_table(META)?.get(META_FLOOR)?.map(|found| found.value());
    let log = match transaction.open_table(LOG) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((None, Vec::new())),
        log => log?,
    };
    let rows = log.iter()?.map(|row| {
        let (key, _) = row?;
        let (number, key) = key.value();
        Ok((number, Arc::from(key)))
    });
    Ok((floor.and_then(|floor| u64::try_from(floor).ok()), rows.collect::<Result<_, Error>>()?))
}

/// Notes which keys changed, as far back as is known and for as many as are kept.
fn extend_log(transaction: &WriteTransaction, changes: &Changes) -> Result<(), Error> {
    let number = changes.revision.number;
    let mut meta = transaction.open_table(META)?;
    let before = meta.get(META_FLOOR)?.and_then(|floor| u64::try_from(floor.value()).ok());
    let mut floor = before.unwrap_or(number).max(changes.floor);
    if changes.keys.len() > DEFAULT_LOG {
        floor = number;
    }
    let mut log = transaction.open_table(LOG)?;
    if floor < number {
        for (key, _) in &changes.keys {
            log.insert((number, &**key), ())?;
        }
    }
    loop {
        let Some(oldest) = log.first()?.map(|(key, _)| key.value().0) else { break };
        if oldest > floor && log.len()? <= DEFAULT_LOG as u64 {
            break;
        }
        log.pop_first()?;
        floor = floor.max(oldest);
    }
    meta.insert(META_FLOOR, u128::from(floor))?;
    Ok(())
}

fn commit(db: &Database, changes: &Changes) -> Result<(), Error> {
    let mut transaction = format::begin(db)?;
    // A copy of gigabytes is opened after a crash without a walk through all of it to find out which pages are free.
    transaction.set_quick_repair(true);
    let StoreId(store) = changes.revision.store;
    let before = transaction.open_table(META)?.get(META_STORE)?.map(|found| found.value());
    if before != Some(store) {
        transaction.delete_table(ENTRIES)?;
        transaction.delete_table(LOG)?;
        transaction.open_table(META)?.remove(META_FLOOR)?;
    }
    extend_log(&transaction, changes)?;
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
