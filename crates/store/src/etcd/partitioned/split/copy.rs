//! Copies records from one part to another as they stand, and compares them.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    super::{
        super::{client::Again, failure::Failure, load::Scan, proto::TxnRequest},
        change,
        cluster::Cluster,
        convert::MAX_BYTES,
        sweep::{MAX_KEYS, carry},
    },
    Move, SplitEvent,
};

/// How many records are asked for at once by name: bounds an answer to 16 MB.
const ASKED: usize = 64;

/// A record with its number, as it stands in etcd.
type Record = (Arc<str>, Bytes);

pub(super) struct Copier<'a> {
    plan: &'a Move,
    progress: &'a mpsc::Sender<SplitEvent>,
    copied: u64,
}

impl<'a> Copier<'a> {
    pub(super) fn new(plan: &'a Move, progress: &'a mpsc::Sender<SplitEvent>) -> Self {
        Self { plan, progress, copied: 0 }
    }

    /// Copies every record that is moved, each as it is when it is read.
    pub(super) async fn everything(&mut self) -> Result<(), Failure> {
        let mut source = Records::of(self.plan.source(), self.plan);
        while let Some(records) = source.page().await? {
            self.write(records.into_iter().map(|(key, value)| (key, Some(value))).collect()).await?;
        }
        Ok(())
    }

    /// Copies what is at these keys now, be it nothing.
    pub(super) async fn keys(&mut self, keys: &BTreeSet<Arc<str>>) -> Result<(), Failure> {
        let keys: Vec<_> = keys.iter().cloned().collect();
        for keys in keys.chunks(ASKED) {
            let records = read(self.plan.source(), keys).await?;
            self.write(keys.iter().cloned().zip(records).collect()).await?;
        }
        Ok(())
    }

    /// One of these keys that differs, if any does.
    pub(super) async fn differs(&self, keys: &BTreeSet<Arc<str>>) -> Result<Option<Arc<str>>, Failure> {
        let keys: Vec<_> = keys.iter().cloned().collect();
        for keys in keys.chunks(ASKED) {
            let (source, target) =
                (read(self.plan.source(), keys).await?, read(&self.plan.target, keys).await?);
            let differs = source.iter().zip(&target).position(|(source, target)| source != target);
            if let Some(i) = differs {
                return Ok(Some(keys[i].clone()));
            }
        }
        Ok(None)
    }

    /// How many records are the same in both parts, and which are not.
    pub(super) async fn compare(&self) -> Result<(u64, Vec<Arc<str>>), Failure> {
        let mut source = Records::of(self.plan.source(), self.plan);
        let mut target = Records::of(&self.plan.target, self.plan);
        let (mut same, mut differing) = (0, Vec::new());
        loop {
            source.fill().await?;
            target.fill().await?;
            let (Some((ours, here)), Some((theirs, there))) = (source.read.front(), target.read.front())
            else {
                break;
            };
            let order = ours.cmp(theirs);
            match order == Ordering::Equal && here == there {
                true => same += 1,
                false => differing.push(if order.is_le() { ours.clone() } else { theirs.clone() }),
            }
            if order.is_le() {
                source.read.pop_front();
            }
            if order.is_ge() {
                target.read.pop_front();
            }
        }
        for mut rest in [source, target] {
            differing.extend(rest.read.drain(..).map(|(key, _)| key));
            while let Some(records) = rest.page().await? {
                differing.extend(records.into_iter().map(|(key, _)| key));
            }
        }
        Ok((same, differing))
    }

    /// Writes records in transactions within bounds.
    async fn write(&mut self, records: Vec<(Arc<str>, Option<Bytes>)>) -> Result<(), Failure> {
        let (target, mut txn, mut bytes) = (&self.plan.target, Vec::new(), 0);
        let count = records.len() as u64;
        for (key, value) in records {
            let size = key.len() + value.as_ref().map_or(0, Bytes::len);
            if txn.len() == MAX_KEYS || bytes + size > MAX_BYTES {
                carry(target, std::mem::take(&mut txn)).await?;
                bytes = 0;
            }
            bytes += size;
            txn.push((target.layout.record(&key), value));
        }
        if !txn.is_empty() {
            carry(target, txn).await?;
        }
        self.copied += count;
        // Writes may be held: who listens too slowly misses a count, and nobody waits for it.
        let _ = self.progress.try_send(SplitEvent::Copied(self.copied));
        Ok(())
    }
}

/// The records of a part that are moved, in order.
struct Records<'a> {
    cluster: &'a Cluster,
    plan: &'a Move,
    scan: Scan,
    read: VecDeque<Record>,
}

impl<'a> Records<'a> {
    fn of(cluster: &'a Cluster, plan: &'a Move) -> Self {
        Self { cluster, plan, scan: Scan::new(cluster.layout.records(), 0), read: VecDeque::new() }
    }

    /// Those of the next page; `None` behind the last.
    async fn page(&mut self) -> Result<Option<Vec<Record>>, Failure> {
        let Some(kvs) = self.scan.next(&self.cluster.client).await? else { return Ok(None) };
        let records = kvs.into_iter().filter_map(|kv| {
            let key = self.cluster.layout.record_at(&kv.key).filter(|key| self.plan.moves(key))?;
            Some((Arc::from(key), kv.value))
        });
        Ok(Some(records.collect()))
    }

    /// Reads on until there is a record, or none is left.
    async fn fill(&mut self) -> Result<(), Failure> {
        while self.read.is_empty() {
            let Some(records) = self.page().await? else { return Ok(()) };
            self.read.extend(records);
        }
        Ok(())
    }
}

/// What is at these keys now.
async fn read(cluster: &Cluster, keys: &[Arc<str>]) -> Result<Vec<Option<Bytes>>, Failure> {
    let reads = keys.iter().map(|key| change::read(cluster.layout.record(key)));
    let txn = TxnRequest { success: reads.collect(), ..TxnRequest::default() };
    let answer = cluster.client.txn(Again::Always, txn).await?;
    Ok(change::found(answer).map(|kv| kv.map(|kv| kv.value)).collect())
}
