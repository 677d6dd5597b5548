//! The file `imbalance.redb`, next to the store.
//!
//! | key | value |
//! |---|---|
//! | `open/<minute>/<tenant>/<service>/<part>` | `OpenUsages`: reports of instances for a minute that may still change |
//! | `minute/<minute>/<tenant>/<service>` | `ImbalanceRow` of a closed minute |
//! | `hour/…`, `day/…` | `ImbalanceRow` of all closed minutes of an hour or a day, keyed by its first minute |
//!
//! A service's minute is closed in one batch: its row, the sums to which the row is added, and the deletion
//! of its open parts. The minute is therefore counted exactly once, even if the power fails in between.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::{Bound, Range},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_imbalance::{MeasuredInstance, Minute, OpenMinutes, Row, Tier, Usage};
use fairmesh_model::{InstanceId, Location, ServiceName};
use fairmesh_rib::{Batch, Entry, Op};
use fairmesh_store::{RedbStore, Store, StoreError};
use fairmesh_wire::v1;
use prost::Message as _;
use tokio::task::spawn_blocking;

use super::{HistoryError, convert};

/// Maximum total size of keys and values, in bytes. Above it the oldest entries are deleted: minutes before
/// hours before days.
const MAX_BYTES: usize = 128 << 20;
/// Maximum number of instances in one part of a minute, which limits the size of a value.
const MAX_INSTANCES_PER_PART: usize = 1_000;
/// Maximum number of keys deleted by one batch.
const MAX_DELETES: usize = 1_000;

/// Key prefix of open minutes. Closed rows have the prefix of their tier.
const OPEN: &str = "open";

/// Maximum number of operations, and of bytes, in one batch.
const MAX_OPS: usize = 2_000;
const MAX_BATCH_BYTES: usize = 1 << 20;

/// The usages of a service's instances in one minute.
type Usages = Vec<(InstanceId, Arc<Location>, Usage)>;
/// Rows by service.
type Rows = Vec<(ServiceName, Row)>;
/// Rows by first minute and service.
type TimedRows = Vec<(Minute, ServiceName, Row)>;

/// The file and an index of its keys.
#[derive(Debug)]
pub(super) struct HistoryFile {
    store: Arc<RedbStore>,
    index: Mutex<Index>,
    max_bytes: usize,
}

/// The keys of all entries in the file, with their sizes.
#[derive(Debug, Default)]
struct Index {
    /// All keys, each with the total size of key and value.
    keys: BTreeMap<Arc<str>, usize>,
    bytes: usize,
}

impl Index {
    fn note(&mut self, key: Arc<str>, value: Option<usize>) {
        let before = match value {
            Some(value) => {
                let bytes = key.len() + value;
                self.bytes += bytes;
                self.keys.insert(key, bytes)
            }
            None => self.keys.remove(&key),
        };
        self.bytes -= before.unwrap_or(0);
    }

    fn within(&self, keys: &Range<String>) -> impl DoubleEndedIterator<Item = &Arc<str>> {
        let bounds = (Bound::Included(keys.start.as_str()), Bound::Excluded(keys.end.as_str()));
        self.keys.range::<str, _>(bounds).map(|(key, _)| key)
    }
}

impl HistoryFile {
    /// Opens or creates the file, and restores its open minutes into `open`.
    pub(super) async fn open(path: &Path, open: &mut OpenMinutes) -> Result<Self, StoreError> {
        Self::bounded(path, open, MAX_BYTES).await
    }

    pub(super) async fn bounded(
        path: &Path,
        open: &mut OpenMinutes,
        max_bytes: usize,
    ) -> Result<Self, StoreError> {
        let file = path.to_owned();
        let opened = spawn_blocking(move || RedbStore::open(file)).await;
        let store = opened.unwrap_or_else(|stopped| {
            Err(StoreError::Io { location: path.into(), source: std::io::Error::other(stopped) })
        })?;
        let (_, entries) = store.load().await?;
        let mut index = Index::default();
        for (key, entry) in &entries {
            index.note(key.clone(), Some(entry.value.len()));
            if key.starts_with(OPEN) {
                restore(open, key, entry);
            }
        }
        let history = Self { store: Arc::new(store), index: Mutex::new(index), max_bytes };
        if let Some(newest) = history.newest(Tier::Minute) {
            open.close_through(newest);
        }
        Ok(history)
    }

    /// Verifies the checksums of the file.
    pub(super) async fn verify(&self) -> Result<(), StoreError> {
        self.store.verify().await
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys(&self, keys: &Range<String>) -> Vec<Arc<str>> {
        self.index().within(keys).cloned().collect()
    }

    /// Total size of keys and values, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.index().bytes
    }

    /// Revision of the file. Each batch increases it by one.
    #[cfg(test)]
    pub(super) async fn revision(&self) -> u64 {
        self.store.load().await.unwrap().0
    }

    fn newest(&self, tier: Tier) -> Option<Minute> {
        let index = self.index();
        let newest = index.within(&between(tier.name(), Minute(0), Minute(u32::MAX))).next_back().cloned();
        newest.and_then(|key| split(&key).map(|(minute, _)| minute))
    }

    /// Saves usages of open minutes.
    pub(super) async fn save_open(
        &self,
        noted: Vec<(Minute, ServiceName, Usages)>,
    ) -> Result<(), HistoryError> {
        let mut writes = BatchWriter::new(self);
        for (minute, service, usages) in noted {
            for (number, part) in usages.chunks(MAX_INSTANCES_PER_PART).enumerate() {
                let key = format!("{}/{number:04}", key(OPEN, minute, &service));
                writes.add(vec![Op::put(key, convert::open_usages(part).encode_to_vec())]).await?;
            }
        }
        writes.finish().await
    }

    /// Closes a minute. `rows` omits services that were already closed before a crash.
    pub(super) async fn close(&self, minute: Minute, rows: Rows) -> Result<(), HistoryError> {
        // The parts that remain belong to services without a row.
        let left = self.close_services(minute, rows).await?;
        self.delete(left).await
    }

    /// Closes a minute for some services, and returns the open parts of the other services. A service that
    /// already has a row is not counted again: if one write fails, the minute stays open for all services and
    /// is closed again later.
    pub(super) async fn close_services(
        &self,
        minute: Minute,
        rows: Rows,
    ) -> Result<Vec<Arc<str>>, HistoryError> {
        let mut parts = self.parts(minute);
        let closed = self.closed(minute).await?;
        let mut sums = Vec::new();
        for tier in [Tier::Hour, Tier::Day] {
            let bucket = tier.bucket(minute);
            let known = self.rows(tier, bucket, bucket).await?;
            let known: HashMap<_, _> = known.into_iter().map(|(_, service, row)| (service, row)).collect();
            sums.push((tier, bucket, known));
        }
        let mut writes = BatchWriter::new(self);
        for (service, row) in rows.into_iter().filter(|(service, _)| !closed.contains(service)) {
            let put = |tier: Tier, at: Minute, row: &Row| {
                Op::put(key(tier.name(), at, &service), convert::row(row).encode_to_vec())
            };
            let mut ops = vec![put(Tier::Minute, minute, &row)];
            for (tier, bucket, known) in &sums {
                let mut sum = known.get(&service).cloned().unwrap_or_default();
                sum.add(&row);
                ops.push(put(*tier, *bucket, &sum));
            }
            ops.extend(parts.remove(&service.to_string()).into_iter().flatten().map(Op::delete));
            writes.add(ops).await?;
        }
        writes.finish().await?;
        Ok(parts.into_values().flatten().collect())
    }

    /// Services that already have a row for this minute. Read from the file, because a failed write may still have
    /// reached the file.
    pub(super) async fn closed(&self, minute: Minute) -> Result<HashSet<ServiceName>, HistoryError> {
        let entries = self.store.range(between(Tier::Minute.name(), minute, minute)).await?;
        let services = entries.iter().filter_map(|(key, _)| ServiceName::new(split(key)?.1).ok());
        Ok(services.collect())
    }

    /// Keys of the open parts of a minute, by service.
    fn parts(&self, minute: Minute) -> HashMap<String, Vec<Arc<str>>> {
        let mut parts: HashMap<String, Vec<Arc<str>>> = HashMap::new();
        for key in self.keys(&between(OPEN, minute, minute)) {
            if let Some((service, _)) = split(&key).and_then(|(_, rest)| rest.rsplit_once('/')) {
                parts.entry(service.to_owned()).or_default().push(key.clone());
            }
        }
        parts
    }

    /// The rows of a tier between two minutes, in key order.
    pub(super) async fn rows(&self, tier: Tier, from: Minute, to: Minute) -> Result<TimedRows, HistoryError> {
        let entries = self.store.range(between(tier.name(), from, to)).await?;
        let rows = entries.iter().filter_map(|(key, entry)| {
            let (minute, service) = split(key)?;
            // Rows that a newer release wrote in another format are skipped.
            Some((minute, ServiceName::new(service).ok()?, convert::read_row(&entry.value)?))
        });
        Ok(rows.collect())
    }

    /// Deletes expired rows.
    pub(super) async fn delete_expired(&self, now: Minute) -> Result<(), HistoryError> {
        for tier in Tier::ALL {
            let last = tier.bucket(now.before(tier.kept() + tier.minutes()));
            self.delete(self.keys(&between(tier.name(), Minute(0), last))).await?;
        }
        Ok(())
    }

    /// Deletes the oldest entries while the file exceeds its maximum size.
    pub(super) async fn enforce_max_bytes(&self) -> Result<(), HistoryError> {
        for tier in Tier::ALL {
            while self.bytes() > self.max_bytes {
                let all = between(tier.name(), Minute(0), Minute(u32::MAX));
                let oldest: Vec<_> = self.index().within(&all).take(MAX_DELETES).cloned().collect();
                if oldest.is_empty() {
                    break;
                }
                self.delete(oldest).await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, keys: Vec<Arc<str>>) -> Result<(), HistoryError> {
        for keys in keys.chunks(MAX_DELETES) {
            self.write(keys.iter().cloned().map(Op::delete).collect()).await?;
        }
        Ok(())
    }

    async fn write(&self, ops: Vec<Op>) -> Result<(), HistoryError> {
        let batch = Batch { ops };
        self.store.write(batch.clone()).await?;
        let mut index = self.index();
        batch.ops.into_iter().for_each(|op| index.note(op.key, op.value.map(|value| value.len())));
        Ok(())
    }
}

/// Groups writes into few batches, because each batch waits for the disk.
struct BatchWriter<'a> {
    history: &'a HistoryFile,
    ops: Vec<Op>,
    bytes: usize,
}

impl<'a> BatchWriter<'a> {
    fn new(history: &'a HistoryFile) -> Self {
        Self { history, ops: Vec::new(), bytes: 0 }
    }

    /// Adds operations that must be written in the same batch.
    async fn add(&mut self, ops: Vec<Op>) -> Result<(), HistoryError> {
        let size = |op: &Op| op.key.len() + op.value.as_ref().map_or(0, |value| value.len());
        let bytes: usize = ops.iter().map(size).sum();
        if self.ops.len() + ops.len() > MAX_OPS || self.bytes + bytes > MAX_BATCH_BYTES {
            self.flush().await?;
        }
        self.ops.extend(ops);
        self.bytes += bytes;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), HistoryError> {
        self.bytes = 0;
        match std::mem::take(&mut self.ops) {
            ops if ops.is_empty() => Ok(()),
            ops => self.history.write(ops).await,
        }
    }

    async fn finish(mut self) -> Result<(), HistoryError> {
        self.flush().await
    }
}

/// The key of a row. Minutes have ten digits, so that keys sort by time.
fn key(folder: &str, minute: Minute, service: &ServiceName) -> String {
    format!("{folder}/{:010}/{service}", minute.0)
}

/// Range of all keys of these minutes, including the last minute: '/', which follows a minute, sorts before all
/// digits.
fn between(folder: &str, from: Minute, to: Minute) -> Range<String> {
    format!("{folder}/{:010}", from.0)..format!("{folder}/{:010}0", to.0)
}

/// Splits a key into its minute and the rest.
fn split(key: &str) -> Option<(Minute, &str)> {
    let (minute, rest) = key.split_once('/')?.1.split_once('/')?;
    Some((Minute(minute.parse().ok()?), rest))
}

fn restore(open: &mut OpenMinutes, key: &str, entry: &Entry) {
    let Some((minute, rest)) = split(key) else { return };
    let service = rest.rsplit_once('/').and_then(|(service, _)| ServiceName::new(service).ok());
    let usages = v1::OpenUsages::decode(&*entry.value).ok();
    let (Some(service), Some(usages)) = (service, usages) else { return };
    for (instance, location, usage) in convert::read_open(usages) {
        let instance = MeasuredInstance { service: &service, instance: &instance, location: &location };
        open.restore(instance, (minute, usage));
    }
}
