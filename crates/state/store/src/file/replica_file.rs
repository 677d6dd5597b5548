//! A replica's on-disk copy of the records: a store file that is written rarely, one revision at a time.
//!
//! The file has the format of a store. One transaction updates it from one upstream revision to another, so that a
//! crash always leaves one consistent revision. One transaction per change was rejected, with and without sync: a
//! replica can fetch everything from its upstream again, and the changes of a second are written together.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::{DEFAULT_LOG_LEN, Entry, Values};
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

/// Metadata key: when the copy was last known to be current, in milliseconds of Unix time.
const META_CURRENT: &str = "current";
/// Metadata key: the revision after which the log contains all changes.
const META_FLOOR: &str = "floor";
/// Recently changed keys. The revision is that of the write that contained the change. It is never lower than the
/// change's own revision.
const LOG: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("fairmesh.log");

/// Contents of a replica file when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaContents {
    /// Revision of the upstream that the file reflects.
    pub revision: Revision,
    /// When the copy was last known to be current, to the millisecond.
    pub at: SystemTime,
    /// All entries, by ascending key.
    pub entries: Vec<(Arc<str>, Entry)>,
    /// Revision after which `log` contains all changes.
    pub floor: u64,
    /// The changed keys in order, each with a revision at or after its change. Watchers that reconnect are sent the
    /// later changes instead of a snapshot.
    pub log: Vec<(u64, Arc<str>)>,
}

/// Updates a replica file to another revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaUpdate {
    /// The new revision. If it belongs to another store, the update replaces the whole contents.
    pub revision: Revision,
    /// When the copy was last known to be current.
    pub at: SystemTime,
    /// Revision after which the upstream knows all changes. The file's log never reaches further back.
    pub floor: u64,
    /// Every key changed since the previous revision, with its current entry; `None` if deleted.
    pub keys: Values,
}

/// A replica's on-disk copy, locked by this process.
#[derive(Debug)]
pub struct ReplicaFile {
    path: PathBuf,
    /// `None` after a failed write. redb gives up a file after one failure, so the next write reopens it.
    db: Option<Database>,
    /// Must be the last field: fields are dropped in order, and the lock is released after the database is closed.
    _lock: File,
}

impl ReplicaFile {
    /// Opens and verifies the file at `path`, or creates it and its directory if absent. Returns its contents, if
    /// any. Blocks on the disk.
    ///
    /// A damaged file, or a file of a later release, is moved aside with a warning: its contents are fetched again.
    ///
    /// # Errors
    /// When another process has the file open, or the disk fails.
    pub fn open(path: impl Into<PathBuf>) -> Result<(Self, Option<ReplicaContents>), StoreError> {
        let path = path.into();
        let lock = lock::acquire(&path)?;
        let (db, contents) = match load(&path) {
            Err(
                reason @ (StoreError::Corrupt { .. }
                | StoreError::Foreign { .. }
                | StoreError::NewerFormat { .. }),
            ) => {
                let moved_to = path.with_extension("unreadable");
                tracing::warn!(%reason, moved_to = %moved_to.display(), "the copy on disk is unreadable; it is moved aside and fetched again");
                fs::rename(&path, &moved_to).map_err(|e| open::system_error(&path, e))?;
                load(&path)?
            }
            loaded => loaded?,
        };
        open::make_private(&path);
        Ok((Self { path, db: Some(db), _lock: lock }, contents))
    }

    /// Applies an update to the file, durably as a whole or not at all. Blocks on the disk.
    ///
    /// # Errors
    /// When the disk fails. Retry with these changes and any later ones.
    pub fn write(&mut self, changes: &ReplicaUpdate) -> Result<(), StoreError> {
        let db = match self.db.take() {
            Some(db) => db,
            None => open::writable(&self.path, &backend_of(&self.path))?,
        };
        commit(&db, changes).map_err(|e| open::store_error(&self.path, e))?;
        self.db = Some(db);
        Ok(())
    }

    /// Returns the size of the file in bytes; 0 if unknown.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

fn backend_of(path: &Path) -> OpenBackend {
    let path = path.to_owned();
    Box::new(move || backend::of_file(&path))
}

fn load(path: &Path) -> Result<(Database, Option<ReplicaContents>), StoreError> {
    if !path.try_exists().map_err(|e| open::system_error(path, e))? {
        open::create_file(path)?;
    }
    let backend = backend_of(path);
    let meta = open::verify(path, &backend)?;
    let db = open::writable(path, &backend)?;
    if meta.revision == 0 {
        return Ok((db, None));
    }
    let read = || Ok((current_at(&db)?, log(&db)?, format::load(&db)?));
    let (at, (floor, log), (number, entries)) = read().map_err(|e| open::store_error(path, e))?;
    let revision = Revision { store: meta.id, partition: 0, number };
    // A file without a log has no recorded changes.
    let floor = floor.unwrap_or(number);
    let contents = ReplicaContents { revision, at, entries, floor, log };
    Ok((db, Some(contents)))
}

/// Reads when the copy was last known to be current; the Unix epoch if not recorded.
fn current_at(db: &Database) -> Result<SystemTime, Error> {
    let found = db.begin_read()?.open_table(META)?.get(META_CURRENT)?.map(|found| found.value());
    let millis = found.and_then(|millis| u64::try_from(millis).ok()).unwrap_or_default();
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(millis))
        .ok_or_else(|| Error::Io(io::Error::other("the recorded time is out of range")))
}

/// Keys in the order of their changes, each with the revision of the write.
type Log = Vec<(u64, Arc<str>)>;

/// Reads the log and its floor.
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

/// Adds the changed keys to the log, and drops entries before the floor or beyond the maximum size.
fn extend_log(transaction: &WriteTransaction, changes: &ReplicaUpdate) -> Result<(), Error> {
    let number = changes.revision.number;
    let mut meta = transaction.open_table(META)?;
    let before = meta.get(META_FLOOR)?.and_then(|floor| u64::try_from(floor.value()).ok());
    let mut floor = before.unwrap_or(number).max(changes.floor);
    if changes.keys.len() > DEFAULT_LOG_LEN {
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
        if oldest > floor && log.len()? <= DEFAULT_LOG_LEN as u64 {
            break;
        }
        log.pop_first()?;
        floor = floor.max(oldest);
    }
    meta.insert(META_FLOOR, u128::from(floor))?;
    Ok(())
}

fn commit(db: &Database, changes: &ReplicaUpdate) -> Result<(), Error> {
    let mut transaction = format::begin(db)?;
    // After a crash, a copy of gigabytes can be opened without a full scan for free pages.
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
