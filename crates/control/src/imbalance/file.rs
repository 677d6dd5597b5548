//! The file beside the store: `imbalance.redb`.
//!
//! | key | value |
//! |---|---|
//! | `open/<minute>/<tenant>/<service>/<part>` | `OpenUsages`: what instances said of a minute that may still change |
//! | `minute/<minute>/<tenant>/<service>` | `ImbalanceRow` of a closed minute |
//! | `hour/…`, `day/…` | the same of all closed minutes of an hour or a day, by its first minute |
//!
//! A service's minute is closed within one batch: its row, the sums that it is added to, and the end of its open parts. So it
//! is counted once, wherever the power fails.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::{Bound, Range},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_imbalance::{Minute, OpenMinutes, Row, Tier, Usage};
use fairmesh_model::{InstanceId, Location, ServiceName};
use fairmesh_rib::{Batch, Entry, Op};
use fairmesh_store::{RedbStore, Store, StoreError};
use fairmesh_wire::v1;
use prost::Message as _;
use tokio::task::spawn_blocking;

use super::{HistoryError, message};

/// How many bytes of keys and values are kept; above that the oldest go, minutes before hours before days.
const MAX_BYTES: usize = 128 << 20;
/// How many instances one part of a minute holds, so that its value stays within bounds.
const PART: usize = 1_000;
/// How many keys are taken away at once.
const MAX_DELETES: usize = 1_000;

/// Open parts, as the tiers are named.
const OPEN: &str = "open";

/// How much one batch of the file holds.
const MAX_OPS: usize = 2_000;
const MAX_BATCH_BYTES: usize = 1 << 20;

/// What instances of one service used in one minute.
type Usages = Vec<(InstanceId, Arc<Location>, Usage)>;
/// Services with what is known of them.
type Rows = Vec<(ServiceName, Row)>;
/// The same with the first minute of the time that it is about.
type TimedRows = Vec<(Minute, ServiceName, Row)>;

/// What is kept on disk.
#[derive(Debug)]
pub(super) struct History {
    store: Arc<RedbStore>,
    index: Mutex<Index>,
    max_bytes: usize,
}

/// What the file holds, without the values.
#[derive(Debug, Default)]
struct Index {
    /// Every key and how many bytes it takes with its value.
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

impl History {
    /// Opens the file, or creates it, and puts what was open back into `open`.
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

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys(&self, keys: &Range<String>) -> Vec<Arc<str>> {
        self.index().within(keys).cloned().collect()
    }

    /// How many bytes keys and values take.
    pub(super) fn bytes(&self) -> usize {
        self.index().bytes
    }

    /// The store's own number, one more for each batch.
    #[cfg(test)]
    pub(super) async fn revision(&self) -> u64 {
        self.store.load().await.unwrap().0
    }

    fn newest(&self, tier: Tier) -> Option<Minute> {
        let index = self.index();
        let newest = index.within(&between(tier.name(), Minute(0), Minute(u32::MAX))).next_back().cloned();
        newest.and_then(|key| split(&key).map(|(minute, _)| minute))
    }

    /// Writes down what is known of services in minutes that are still open.
    pub(super) async fn note(&self, noted: Vec<(Minute, ServiceName, Usages)>) -> Result<(), HistoryError> {
        let mut writes = Writes::to(self);
        for (minute, service, usages) in noted {
            for (number, part) in usages.chunks(PART).enumerate() {
                let key = format!("{}/{number:04}", key(OPEN, minute, &service));
                writes.add(vec![Op::put(key, message::open_usages(part).encode_to_vec())]).await?;
            }
        }
        writes.finish().await
    }

    /// Makes rows of a minute for good. Whoever was closed before a crash is not among `rows` any more.
    pub(super) async fn close(&self, minute: Minute, rows: Rows) -> Result<(), HistoryError> {
        // What is left are services that were only heard of for a moment.
        let left = self.close_services(minute, rows).await?;
        self.delete(left).await
    }

    /// The same for some services; what is open of others. A service that has its row already is not counted again: the
    /// minute of all of them stays open when the write of one fails, and is closed anew later.
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
        let mut writes = Writes::to(self);
        for (service, row) in rows.into_iter().filter(|(service, _)| !closed.contains(service)) {
            let put = |tier: Tier, at: Minute, row: &Row| {
                Op::put(key(tier.name(), at, &service), message::row(row).encode_to_vec())
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

    /// The services that have a row of this minute. The file is asked, since a write that failed may be found there.
    pub(super) async fn closed(&self, minute: Minute) -> Result<HashSet<ServiceName>, HistoryError> {
        let entries = self.store.range(between(Tier::Minute.name(), minute, minute)).await?;
        let services = entries.iter().filter_map(|(key, _)| ServiceName::new(split(key)?.1).ok());
        Ok(services.collect())
    }

    /// The keys of what was open of a minute, by service.
    fn parts(&self, minute: Minute) -> HashMap<String, Vec<Arc<str>>> {
        let mut parts: HashMap<String, Vec<Arc<str>>> = HashMap::new();
        for key in self.keys(&between(OPEN, minute, minute)) {
            if let Some((service, _)) = split(&key).and_then(|(_, rest)| rest.rsplit_once('/')) {
                parts.entry(service.to_owned()).or_default().push(key.clone());
            }
        }
        parts
    }

    /// The rows of some buckets, those of one service one after the other.
    pub(super) async fn rows(&self, tier: Tier, from: Minute, to: Minute) -> Result<TimedRows, HistoryError> {
        let entries = self.store.range(between(tier.name(), from, to)).await?;
        let rows = entries.iter().filter_map(|(key, entry)| {
            let (minute, service) = split(key)?;
            // What a later release wrote in another way is left alone.
            Some((minute, ServiceName::new(service).ok()?, message::read_row(&entry.value)?))
        });
        Ok(rows.collect())
    }

    /// Takes away what is past its time.
    pub(super) async fn thin_out(&self, now: Minute) -> Result<(), HistoryError> {
        for tier in Tier::ALL {
            let last = tier.bucket(now.before(tier.kept() + tier.minutes()));
            self.delete(self.keys(&between(tier.name(), Minute(0), last))).await?;
        }
        Ok(())
    }

    /// Takes away the oldest where there is too much.
    pub(super) async fn keep_within_bounds(&self) -> Result<(), HistoryError> {
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

/// Gathers what is to be written, so that many services take few batches: each batch waits for the disk.
struct Writes<'a> {
    history: &'a History,
    ops: Vec<Op>,
    bytes: usize,
}

impl<'a> Writes<'a> {
    fn to(history: &'a History) -> Self {
        Self { history, ops: Vec::new(), bytes: 0 }
    }

    /// Adds what is written all or none.
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

/// Minutes have ten digits, so that keys stand in the order of time.
fn key(folder: &str, minute: Minute, service: &ServiceName) -> String {
    format!("{folder}/{:010}/{service}", minute.0)
}

/// All keys of these minutes, the last included: what follows a minute, '/', stands before every digit.
fn between(folder: &str, from: Minute, to: Minute) -> Range<String> {
    format!("{folder}/{:010}", from.0)..format!("{folder}/{:010}0", to.0)
}

/// The minute of a key and what follows it.
fn split(key: &str) -> Option<(Minute, &str)> {
    let (minute, rest) = key.split_once('/')?.1.split_once('/')?;
    Some((Minute(minute.parse().ok()?), rest))
}

fn restore(open: &mut OpenMinutes, key: &str, entry: &Entry) {
    let Some((minute, rest)) = split(key) else { return };
    let service = rest.rsplit_once('/').and_then(|(service, _)| ServiceName::new(service).ok());
    let usages = v1::OpenUsages::decode(&*entry.value).ok();
    let (Some(service), Some(usages)) = (service, usages) else { return };
    for (instance, place, usage) in message::read_open(usages) {
        open.restore((&service, &instance, &place), (minute, usage));
    }
}
