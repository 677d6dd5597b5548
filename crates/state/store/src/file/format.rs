//! Tables of the store file.

use std::{fs::File, io::Read, ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_model::StoreId;
use fairmesh_rib::Entry;
use redb::{
    Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use crate::StoreSnapshot;

/// The format that this release writes, and the newest format that it reads.
pub(super) const FORMAT: u128 = 1;

/// Metadata of the store by name.
pub(super) const META: TableDefinition<'_, &str, u128> = TableDefinition::new("fairmesh.meta");
/// Every key, with the revision that wrote it and its value.
pub(super) const ENTRIES: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("fairmesh.entries");

const META_FORMAT: &str = "format";
pub(super) const META_STORE: &str = "store";
pub(super) const META_REVISION: &str = "revision";

/// Contents of the meta table.
pub(super) struct Meta {
    pub(super) format: u128,
    pub(super) id: StoreId,
    pub(super) revision: u64,
}

/// Begins a write transaction that is durable once committed.
///
/// The commit has two phases: pages reach the disk before the header that refers to them. A header therefore never
/// refers to pages lost in a power failure or a failed sync. If the newest state is damaged later, redb refuses the
/// file. With one-phase commits, redb would silently fall back to an older state.
pub(super) fn begin(db: &Database) -> Result<WriteTransaction, Error> {
    let mut transaction = db.begin_write()?;
    transaction.set_durability(redb::Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Creates an empty store with a new id.
pub(super) fn initialize(db: &Database) -> Result<(), Error> {
    let StoreId(id) = random_id()?;
    let transaction = begin(db)?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_FORMAT, FORMAT)?;
        meta.insert(META_STORE, id)?;
        meta.insert(META_REVISION, 0)?;
        transaction.open_table(ENTRIES)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Gives a store a new id.
pub(super) fn regenerate_id(db: &Database) -> Result<StoreId, Error> {
    let id = random_id()?;
    let transaction = begin(db)?;
    transaction.open_table(META)?.insert(META_STORE, id.0)?;
    transaction.commit()?;
    Ok(id)
}

fn random_id() -> Result<StoreId, Error> {
    let mut id = [0; 16];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id)).map_err(Error::Io)?;
    Ok(StoreId(u128::from_be_bytes(id)))
}

/// Reads the meta table; `None` if the file is not a store.
pub(super) fn meta(db: &Database) -> Result<Option<Meta>, Error> {
    let transaction = db.begin_read()?;
    let table = match transaction.open_table(META) {
        Err(redb::TableError::TableDoesNotExist(_) | redb::TableError::TableTypeMismatch { .. }) => {
            return Ok(None);
        }
        table => table?,
    };
    let value = |name| table.get(name).map(|found| found.map(|found| found.value()));
    let (Some(format), Some(id)) = (value(META_FORMAT)?, value(META_STORE)?) else { return Ok(None) };
    let revision = value(META_REVISION)?.and_then(|number| u64::try_from(number).ok());
    Ok(revision.map(|revision| Meta { format, id: StoreId(id), revision }))
}

/// Records the newest revision within a transaction.
pub(super) fn set_revision(transaction: &WriteTransaction, revision: u64) -> Result<(), Error> {
    transaction.open_table(META)?.insert(META_REVISION, u128::from(revision))?;
    Ok(())
}

/// Reads the whole store at one revision.
pub(super) fn load(db: &Database) -> Result<StoreSnapshot, Error> {
    let transaction = db.begin_read()?;
    let revision = transaction.open_table(META)?.get(META_REVISION)?.map_or(0, |found| found.value());
    let table = transaction.open_table(ENTRIES)?;
    let loaded = entries(table.iter()?, usize::try_from(table.len()?).unwrap_or(0))?;
    let revision = u64::try_from(revision).map_err(|e| Error::Corrupted(format!("revision: {e}")))?;
    Ok((revision, loaded))
}

/// Reads the entries of a range of keys.
pub(super) fn range(db: &Database, keys: Range<String>) -> Result<Vec<(Arc<str>, Entry)>, Error> {
    let table = db.begin_read()?.open_table(ENTRIES)?;
    entries(table.range(keys.start.as_str()..keys.end.as_str())?, 0)
}

/// Collects table rows as entries; `count` is a capacity hint.
fn entries(
    rows: redb::Range<'_, &'static str, (u64, &'static [u8])>,
    count: usize,
) -> Result<Vec<(Arc<str>, Entry)>, Error> {
    let mut entries = Vec::with_capacity(count);
    for row in rows {
        let (key, row) = row?;
        let (revision, value) = row.value();
        entries.push((Arc::from(key.value()), Entry { value: Bytes::copy_from_slice(value), revision }));
    }
    Ok(entries)
}
