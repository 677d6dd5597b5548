//! The shard map of one service: its parts as records, or the map that the agent shared.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey, Revision, ShardPart};
use fairmesh_router::ShardTable;
use fairmesh_wire::shard_encoding;

use super::shard_maps::LARGE;

/// Maximum number of pending versions of a large map that are tracked separately.
const MAX_PENDING: usize = 64;

/// A shard map. A small map consists of its parts and the map compiled from them. A large map consists of its version
/// record and the map that the agent shared.
#[derive(Debug, Default)]
pub(super) struct ShardParts {
    parts: BTreeMap<RecordKey, Bytes>,
    compiled: Option<Arc<ShardTable>>,
    changed: bool,
    /// Whether an agent may share maps.
    offered: bool,
    /// Whether the agent cannot share maps now, so that this process reads the parts itself until the agent can.
    read_locally: bool,
    /// Whether the map is large enough to be shared; `None` until this is known.
    large: Option<bool>,
    /// Latest announced version of the map.
    announced: u64,
    /// Announced versions that are not in use yet, in ascending order, each with the last revision before it.
    pending: VecDeque<(u64, Option<Revision>)>,
    shared: Option<Arc<ShardTable>>,
    /// Latest unusable version.
    failed: u64,
}

impl ShardParts {
    /// Creates an empty map. `offered` means that an agent may share large maps.
    pub(super) fn new(offered: bool) -> Self {
        Self { offered, ..Self::default() }
    }

    /// Whether the version record suffices: the map itself comes from the agent, or its size is not known yet.
    pub(super) fn is_version_enough(&self) -> bool {
        self.offered && !self.read_locally && self.large != Some(false)
    }

    /// Whether the agent should share the map. True even while this process reads the parts itself because the agent
    /// does not share them.
    pub(super) fn is_shareable(&self) -> bool {
        self.offered && self.large == Some(true)
    }

    /// Records that the version record's prefix was delivered. If the size is still unknown, there is no map.
    pub(super) fn version_arrived(&mut self) {
        self.large.get_or_insert(false);
    }

    /// Compiles the map if a part has changed. Parts that do not fit together leave the previous map in place.
    pub(super) fn compile(&mut self) -> Result<(), Invalid> {
        let is_shared = self.is_version_enough();
        if std::mem::take(&mut self.changed) && !is_shared {
            let map =
                shard_encoding::decode_map(self.parts.iter().map(|(key, part)| (key.clone(), part.clone())))?;
            // The parts are read here after all, since the agent shares no newer map.
            (self.compiled, self.shared) = (map.map(|map| Arc::new(ShardTable::compile(&map))), None);
        }
        Ok(())
    }

    /// The map last shared or compiled.
    pub(super) fn last(&self) -> Option<&Arc<ShardTable>> {
        self.shared.as_ref().or(self.compiled.as_ref())
    }

    /// Sets the map that the agent shared.
    pub(super) fn set_shared(&mut self, shards: Arc<ShardTable>) {
        (self.shared, self.compiled, self.read_locally) = (Some(shards), None, false);
        self.drop_reached();
    }

    /// Records that this version is unusable. The previous map stays in use; without one, this process reads the
    /// parts.
    pub(super) fn set_failed(&mut self, version: u64) {
        self.failed = self.failed.max(version);
        self.drop_reached();
        self.read_locally();
    }

    /// Switches to reading the parts in this process, unless the agent shared a current map. Returns whether anything
    /// changed.
    pub(super) fn read_locally(&mut self) -> bool {
        (self.shared.is_none() || self.lags()) && !std::mem::replace(&mut self.read_locally, true)
    }

    /// Whether the map in use is older than the announced version, which is still on its way.
    pub(super) fn lags(&self) -> bool {
        self.shared
            .as_ref()
            .is_some_and(|shared| shared.version() < self.announced && self.failed < self.announced)
    }

    /// Records `before` as the last revision before the announced version.
    pub(super) fn announced_after(&mut self, before: Option<Revision>) {
        if self.large != Some(true) || self.announced <= self.reached() {
            return;
        }
        // Versions restart if the control plane has a different store.
        if self.pending.back().is_some_and(|(version, _)| *version > self.announced) {
            self.pending.clear();
        }
        let full = self.pending.len() == MAX_PENDING;
        match self.pending.back_mut() {
            Some((version, _)) if *version == self.announced => {}
            // Both are acknowledged together, which is later than possible but never too early.
            Some((version, _)) if full => *version = self.announced,
            _ => self.pending.push_back((self.announced, before)),
        }
    }

    /// The revision up to which decisions include all records while the map lags; `None` if it is not known. If
    /// versions arrive faster than tables are built, the map always lags, and unrelated records must not wait for a
    /// pause.
    pub(super) fn applied_before(&self) -> Option<Revision> {
        self.pending.front().and_then(|(_, before)| *before)
    }

    /// The version in use, or a later version that was found unusable.
    fn reached(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.version()).max(self.failed)
    }

    fn drop_reached(&mut self) {
        let reached = self.reached();
        self.pending.retain(|(version, _)| *version > reached);
    }

    pub(super) fn put(&mut self, key: &RecordKey, value: &Bytes) -> Result<(), Invalid> {
        if let RecordKey::ShardManifest(_, ShardPart::Ranges) = key {
            let manifest = shard_encoding::read_manifest(value)?;
            self.announced = manifest.version;
            self.large = Some(match self.large {
                None => manifest.rows >= LARGE,
                // Hysteresis: a map near the bound keeps its mode.
                Some(was) => was || manifest.rows >= 2 * LARGE,
            });
        }
        self.parts.insert(key.clone(), value.clone());
        self.changed = true;
        Ok(())
    }

    pub(super) fn delete(&mut self, key: &RecordKey) {
        self.changed |= self.parts.remove(key).is_some();
        if let RecordKey::ShardManifest(_, ShardPart::Ranges) = key {
            self.clear();
        }
    }

    /// Clears the map: the service no longer has one.
    pub(super) fn clear(&mut self) {
        (self.shared, self.large, self.announced) = (None, Some(false), 0);
        self.pending.clear();
    }

    pub(super) fn remove_all(&mut self, gone: impl Fn(&str) -> bool) {
        let before = self.parts.len();
        self.parts.retain(|key, _| !gone(&key.to_string()));
        self.changed |= self.parts.len() != before;
    }
}
