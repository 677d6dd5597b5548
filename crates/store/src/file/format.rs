//! What stands in the file.

use std::{fs::File, io::Read, ops::Range, sync::Arc};

use bytes::Bytes;
use fairmesh_model::StoreId;
use fairmesh_rib::Entry;
use redb::{
    Database, Error, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use crate::Loaded;

/// The format that this release writes, and the newest that it reads.
pub(super) const FORMAT: u128 = 1;

/// Facts about the store, by name.
pub(super) const META: TableDefinition<'_, &str, u128> = TableDefinition::new("fairmesh.meta");
/// Every key with the revision that wrote it and its value.
pub(super) const ENTRIES: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("fairmesh.entries");

const META_FORMAT: &str = "format";
pub(super) const META_STORE: &str = "store";
pub(super) const META_REVISION: &str = "revision";

/// What the meta table says.
pub(super) struct Meta {
    pub(super) format: u128,
    pub(super) id: StoreId,
    pub(super) revision: u64,
}

/// Begins a transaction that is on disk once it is committed.
///
/// Two phases: the pages reach the disk before the header that names them does. So a header never names pages that a
/// power failure or a failed sync took away; and when the newest state is damaged later, redb refuses the file rather
/// than falling back to an older state in silence, as it does for one-phase commits.
pub(super) fn begin(db: &Database) -> Result<WriteTransaction, Error> {
    let mut transaction = db.begin_write()?;
    transaction.set_durability(redb::Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Lays down an empty store with an id of its own.
pub(super) fn initialize(db: &Database) -> Result<(), Error> {
    let StoreId(id) = draw()?;
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

/// Gives a store another id.
pub(super) fn renew(db: &Database) -> Result<StoreId, Error> {
    let id = draw()?;
    let transaction = begin(db)?;
    transaction.open_table(META)?.insert(META_STORE, id.0)?;
    transaction.commit()?;
    Ok(id)
}

fn draw() -> Result<StoreId, Error> {
    let mut id = [0; 16];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id)).map_err(Error::Io)?;
    Ok(StoreId(u128::from_be_bytes(id)))
}

/// The meta table, or `None` where the file holds something else.
pub(super) fn meta(db: &Database) -> Result<Option<Meta>, Error> {
    let transaction = db.begin_read()?;
    let table = match transaction.open_table(META) {
        Err(redb::TableError::TableDoesNotExist(_) | redb::TableError::TableTypeMismatch { .. }) => {
            return Ok(None);
        }
        table => table?,
    };
    let fact = |name| table.get(name).map(|found| found.map(|found| found.value()));
    let (Some(format), Some(id)) = (fact(META_FORMAT)?, fact(META_STORE)?) else { return Ok(None) };
    let revision = fact(META_REVISION)?.and_then(|number| u64::try_from(number).ok());
    Ok(revision.map(|revision| Meta { format, id: StoreId(id), revision }))
}

/// Notes the newest revision within a transaction.
pub(super) fn set_revision(transaction: &WriteTransaction, revision: u64) -> Result<(), Error> {
    transaction.open_table(META)?.insert(META_REVISION, u128::from(revision))?;
    Ok(())
}

/// Everything that the store holds, at one revision.
pub(super) fn load(db: &Database) -> Result<Loaded, Error> {
    let transaction = db.begin_read()?;
    let revision = transaction.open_table(META)?.get(META_REVISION)?.map_or(0, |found| found.value());
    let table = transaction.open_table(ENTRIES)?;
    let loaded = entries(table.iter()?, usize::try_from(table.len()?).unwrap_or(0))?;
    let revision = u64::try_from(revision).map_err(|e| Error::Corrupted(format!("revision: {e}")))?;
    Ok((revision, loaded))
}

/// The entries of some keys.
pub(super) fn range(db: &Database, keys: Range<String>) -> Result<Vec<(Arc<str>, Entry)>, Error> {
    let table = db.begin_read()?.open_table(ENTRIES)?;
    entries(table.range(keys.start.as_str()..keys.end.as_str())?, 0)
}

/// Reads rows of which there are about so many.
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
