//! Copies records from one partition to another verbatim, and compares them.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    super::{
        super::{call_error::CallError, client::RetryPolicy, load::RangeScan, proto::TxnRequest},
        cluster::Cluster,
        conditional_write,
        convert::MAX_BYTES_PER_TXN,
        garbage_collection::{MAX_KEYS_PER_TXN, write_keys},
    },
    PartitionMove, SplitEvent,
};

/// Maximum number of keys per read. It bounds a response to 16 MB.
const KEYS_PER_READ: usize = 64;

/// A record as encoded in etcd.
type Record = (Arc<str>, Bytes);

pub(super) struct Copier<'a> {
    plan: &'a PartitionMove,
    progress: &'a mpsc::Sender<SplitEvent>,
    copied: u64,
}

impl<'a> Copier<'a> {
    pub(super) fn new(plan: &'a PartitionMove, progress: &'a mpsc::Sender<SplitEvent>) -> Self {
        Self { plan, progress, copied: 0 }
    }

    /// Copies every record of the move at its newest revision.
    pub(super) async fn copy_all(&mut self) -> Result<(), CallError> {
        let mut source = RecordScan::new(self.plan.source(), self.plan);
        while let Some(records) = source.page().await? {
            self.write(records.into_iter().map(|(key, value)| (key, Some(value))).collect()).await?;
        }
        Ok(())
    }

    /// Copies the current values of these keys; deletes copies of absent keys.
    pub(super) async fn copy_keys(&mut self, keys: &BTreeSet<Arc<str>>) -> Result<(), CallError> {
        let keys: Vec<_> = keys.iter().cloned().collect();
        for keys in keys.chunks(KEYS_PER_READ) {
            let records = read(self.plan.source(), keys).await?;
            self.write(keys.iter().cloned().zip(records).collect()).await?;
        }
        Ok(())
    }

    /// Returns one of these keys whose values differ between the partitions, if any.
    pub(super) async fn first_difference(
        &self,
        keys: &BTreeSet<Arc<str>>,
    ) -> Result<Option<Arc<str>>, CallError> {
        let keys: Vec<_> = keys.iter().cloned().collect();
        for keys in keys.chunks(KEYS_PER_READ) {
            let (source, target) =
                (read(self.plan.source(), keys).await?, read(&self.plan.target, keys).await?);
            let differs = source.iter().zip(&target).position(|(source, target)| source != target);
            if let Some(i) = differs {
                return Ok(Some(keys[i].clone()));
            }
        }
        Ok(None)
    }

    /// Returns the number of records that are equal in both partitions, and the keys of all other records.
    pub(super) async fn compare(&self) -> Result<(u64, Vec<Arc<str>>), CallError> {
        let mut source = RecordScan::new(self.plan.source(), self.plan);
        let mut target = RecordScan::new(&self.plan.target, self.plan);
        let (mut same, mut differing) = (0, Vec::new());
        loop {
            source.fill().await?;
            target.fill().await?;
            let (Some((ours, here)), Some((theirs, there))) =
                (source.buffered.front(), target.buffered.front())
            else {
                break;
            };
            let order = ours.cmp(theirs);
            match order == Ordering::Equal && here == there {
                true => same += 1,
                false => differing.push(if order.is_le() { ours.clone() } else { theirs.clone() }),
            }
            if order.is_le() {
                source.buffered.pop_front();
            }
            if order.is_ge() {
                target.buffered.pop_front();
            }
        }
        for mut rest in [source, target] {
            differing.extend(rest.buffered.drain(..).map(|(key, _)| key));
            while let Some(records) = rest.page().await? {
                differing.extend(records.into_iter().map(|(key, _)| key));
            }
        }
        Ok((same, differing))
    }

    /// Writes records, split into transactions within the bounds.
    async fn write(&mut self, records: Vec<(Arc<str>, Option<Bytes>)>) -> Result<(), CallError> {
        let (target, mut txn, mut bytes) = (&self.plan.target, Vec::new(), 0);
        let count = records.len() as u64;
        for (key, value) in records {
            let size = key.len() + value.as_ref().map_or(0, Bytes::len);
            if txn.len() == MAX_KEYS_PER_TXN || bytes + size > MAX_BYTES_PER_TXN {
                write_keys(target, std::mem::take(&mut txn)).await?;
                bytes = 0;
            }
            bytes += size;
            txn.push((target.layout.record_key(&key), value));
        }
        if !txn.is_empty() {
            write_keys(target, txn).await?;
        }
        self.copied += count;
        // Writes may be paused, so a slow receiver misses a count instead of delaying the copy.
        let _ = self.progress.try_send(SplitEvent::Copied(self.copied));
        Ok(())
    }
}

/// Reads the records of a partition that the move includes, in order.
struct RecordScan<'a> {
    cluster: &'a Cluster,
    plan: &'a PartitionMove,
    scan: RangeScan,
    buffered: VecDeque<Record>,
}

impl<'a> RecordScan<'a> {
    fn new(cluster: &'a Cluster, plan: &'a PartitionMove) -> Self {
        Self {
            cluster,
            plan,
            scan: RangeScan::new(cluster.layout.record_range(), 0),
            buffered: VecDeque::new(),
        }
    }

    /// Returns the records of the move on the next page; `None` after the last page.
    async fn page(&mut self) -> Result<Option<Vec<Record>>, CallError> {
        let Some(kvs) = self.scan.next(&self.cluster.client).await? else { return Ok(None) };
        let records = kvs.into_iter().filter_map(|kv| {
            let key = self.cluster.layout.parse_record_key(&kv.key).filter(|key| self.plan.moves(key))?;
            Some((Arc::from(key), kv.value))
        });
        Ok(Some(records.collect()))
    }

    /// Reads pages until a record is buffered or no page is left.
    async fn fill(&mut self) -> Result<(), CallError> {
        while self.buffered.is_empty() {
            let Some(records) = self.page().await? else { return Ok(()) };
            self.buffered.extend(records);
        }
        Ok(())
    }
}

/// Reads the current values of these keys.
async fn read(cluster: &Cluster, keys: &[Arc<str>]) -> Result<Vec<Option<Bytes>>, CallError> {
    let reads = keys.iter().map(|key| conditional_write::read(cluster.layout.record_key(key)));
    let txn = TxnRequest { success: reads.collect(), ..TxnRequest::default() };
    let response = cluster.client.txn(RetryPolicy::Repeatable, txn).await?;
    Ok(conditional_write::read_results(response).map(|kv| kv.map(|kv| kv.value)).collect())
}
