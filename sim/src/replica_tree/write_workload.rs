//! The write workload, batch by batch.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, arith::Generator};
use fairmesh_rib::{Batch, Commit, Expect, MAX_BATCH_BYTES, MAX_OPS, Op};

use super::{catalogue::Catalogue, scenario::Writes};
use crate::sampling::exponential;

/// Maximum bytes that one change adds to a batch: a chunk with its manifest.
const MAX_CHANGE_BYTES: usize = 500_000;

/// All writers together.
#[derive(Debug)]
pub(super) struct WriteWorkload {
    spec: Writes,
    random: Generator,
    /// Version of each chunk.
    writings: HashMap<u64, u64>,
    /// Bytes written for shard maps, and for everything else.
    sharded: u64,
    others: u64,
    /// Totals over all batches.
    pub(super) batches: u64,
    pub(super) records: u64,
}

/// A batch under construction.
#[derive(Default)]
struct BatchBuilder {
    ops: BTreeMap<Arc<str>, Option<Bytes>>,
    bytes: usize,
}

impl BatchBuilder {
    fn put(&mut self, key: Arc<str>, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.ops.insert(key, value);
    }

    fn fits(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_BATCH_BYTES && self.ops.len() + 3 <= MAX_OPS
    }
}

impl WriteWorkload {
    pub(super) fn new(spec: &Writes, seed: u64) -> Self {
        let random = Generator::new(seed);
        let spec = spec.clone();
        Self { spec, random, writings: HashMap::new(), sharded: 0, others: 0, batches: 0, records: 0 }
    }

    /// Time until the next batch, in nanoseconds.
    pub(super) fn pause(&mut self) -> u64 {
        (exponential(&mut self.random) * 1e9 / self.spec.batches) as u64
    }

    /// Bytes of keys and values written.
    pub(super) fn bytes(&self) -> u64 {
        self.sharded + self.others
    }

    /// The next batch, as committed.
    ///
    /// # Errors
    /// If a generated name is invalid.
    pub(super) fn batch(&mut self, revision: u64, catalogue: &Catalogue) -> Result<Commit, Invalid> {
        let wanted = (exponential(&mut self.random) * self.spec.bytes / self.spec.batches) as usize;
        let mut batch = BatchBuilder::default();
        while batch.ops.is_empty() || (batch.bytes < wanted && batch.fits(MAX_CHANGE_BYTES)) {
            let before = batch.bytes;
            if catalogue.chunks() > 0 && (self.sharded as f64) < self.spec.sharded * self.others as f64 {
                self.move_shard(catalogue, revision, &mut batch);
                self.sharded += (batch.bytes - before) as u64;
            } else {
                self.change_endpoints(catalogue, revision, &mut batch)?;
                self.others += (batch.bytes - before) as u64;
            }
        }
        Ok(self.commit(revision, batch))
    }

    /// A batch of endpoints of all services, up to the maximum batch size and at most `most` records; also returns
    /// their number.
    ///
    /// # Errors
    /// As for [`WriteWorkload::batch`].
    pub(super) fn burst(
        &mut self,
        revision: u64,
        most: u32,
        catalogue: &Catalogue,
    ) -> Result<(Commit, u32), Invalid> {
        let mut batch = BatchBuilder::default();
        let mut written = 0;
        while written < most && batch.fits(MAX_BATCH_BYTES / 100) {
            let (service, server) = catalogue.server(self.random.below(catalogue.servers()));
            let (key, value) = catalogue.endpoint(service, server, self.random.next())?;
            batch.put(key, Some(value));
            written += 1;
        }
        self.others += batch.bytes as u64;
        Ok((self.commit(revision, batch), written))
    }

    fn commit(&mut self, revision: u64, batch: BatchBuilder) -> Commit {
        self.batches += 1;
        self.records += batch.ops.len() as u64;
        let ops = batch.ops.into_iter().map(|(key, value)| Op { key, value, expect: Expect::Any }).collect();
        let batch = Batch { ops };
        debug_assert_eq!(batch.validate(), Ok(()));
        batch.into_commit(revision)
    }

    /// Moves a shard: its chunk gets new content and therefore a new name, which the manifest then lists.
    fn move_shard(&mut self, catalogue: &Catalogue, revision: u64, batch: &mut BatchBuilder) {
        let chunk = self.random.below(catalogue.chunks());
        let writing = self.writings.entry(chunk).or_default();
        let (old, _) = catalogue.chunk_record(chunk, *writing);
        *writing += 1;
        let (new, value) = catalogue.chunk_record(chunk, *writing);
        batch.put(old, None);
        batch.put(new, Some(value));
        let (key, value) = catalogue.manifest(chunk, revision);
        batch.put(key, Some(value));
    }

    /// Changes some servers of one service, with consecutive numbers.
    fn change_endpoints(
        &mut self,
        catalogue: &Catalogue,
        revision: u64,
        batch: &mut BatchBuilder,
    ) -> Result<(), Invalid> {
        let (service, first) = catalogue.server(self.random.below(catalogue.servers()));
        let servers = catalogue.services[service].servers;
        let some = 1 + self.random.below(2 * u64::from(self.spec.together) - 1) as u32;
        for server in (first..first + some.min(servers)).map(|server| server % servers) {
            let (key, value) = catalogue.endpoint(service, server, revision)?;
            batch.put(key, Some(value));
        }
        Ok(())
    }
}
