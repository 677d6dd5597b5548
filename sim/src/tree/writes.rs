//! What is written, batch by batch.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, arith::Generator};
use fairmesh_rib::{Batch, Commit, Expect, MAX_BATCH_BYTES, MAX_OPS, Op};

use super::{catalogue::Catalogue, scenario::Writes};
use crate::chance::exponential;

/// The most bytes that one change adds to a batch: a chunk with its manifest.
const LARGEST: usize = 500_000;

/// The writers, taken together.
#[derive(Debug)]
pub(super) struct Writers {
    spec: Writes,
    random: Generator,
    /// How often a chunk was written anew.
    writings: HashMap<u64, u64>,
    /// Bytes of maps and of all else.
    sharded: u64,
    others: u64,
    /// Of all batches.
    pub(super) batches: u64,
    pub(super) records: u64,
}

/// A batch that grows.
#[derive(Default)]
struct Growing {
    ops: BTreeMap<Arc<str>, Option<Bytes>>,
    bytes: usize,
}

impl Growing {
    fn put(&mut self, key: Arc<str>, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.ops.insert(key, value);
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_BATCH_BYTES && self.ops.len() + 3 <= MAX_OPS
    }
}

impl Writers {
    pub(super) fn new(spec: &Writes, seed: u64) -> Self {
        let random = Generator::new(seed);
        let spec = spec.clone();
        Self { spec, random, writings: HashMap::new(), sharded: 0, others: 0, batches: 0, records: 0 }
    }

    /// When the next batch comes, in nanoseconds from now.
    pub(super) fn pause(&mut self) -> u64 {
        (exponential(&mut self.random) * 1e9 / self.spec.batches) as u64
    }

    /// Bytes of keys and values written.
    pub(super) fn bytes(&self) -> u64 {
        self.sharded + self.others
    }

    /// The next batch as it is committed.
    ///
    /// # Errors
    /// Where a name that the simulation makes up is none.
    pub(super) fn batch(&mut self, revision: u64, catalogue: &Catalogue) -> Result<Commit, Invalid> {
        let wanted = (exponential(&mut self.random) * self.spec.bytes / self.spec.batches) as usize;
        let mut batch = Growing::default();
        while batch.ops.is_empty() || (batch.bytes < wanted && batch.has_room(LARGEST)) {
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

    /// A batch of endpoints of all services, as large as a batch may be and of at most this many; also how many.
    ///
    /// # Errors
    /// As [`Writers::batch`].
    pub(super) fn burst(
        &mut self,
        revision: u64,
        most: u32,
        catalogue: &Catalogue,
    ) -> Result<(Commit, u32), Invalid> {
        let mut batch = Growing::default();
        let mut written = 0;
        while written < most && batch.has_room(MAX_BATCH_BYTES / 100) {
            let (service, server) = catalogue.server(self.random.below(catalogue.servers()));
            let (key, value) = catalogue.endpoint(service, server, self.random.next())?;
            batch.put(key, Some(value));
            written += 1;
        }
        self.others += batch.bytes as u64;
        Ok((self.commit(revision, batch), written))
    }

    fn commit(&mut self, revision: u64, batch: Growing) -> Commit {
        self.batches += 1;
        self.records += batch.ops.len() as u64;
        let ops = batch.ops.into_iter().map(|(key, value)| Op { key, value, expect: Expect::Any }).collect();
        let batch = Batch { ops };
        debug_assert_eq!(batch.validate(), Ok(()));
        batch.into_commit(revision)
    }

    /// A shard moves: its chunk has another content and so another name, and the manifest lists it.
    fn move_shard(&mut self, catalogue: &Catalogue, revision: u64, batch: &mut Growing) {
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

    /// Some servers of one service change, one after the other in number.
    fn change_endpoints(
        &mut self,
        catalogue: &Catalogue,
        revision: u64,
        batch: &mut Growing,
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
