use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, KeyRange, Prefix, RecordKey, Region, ShardPart, StoreId};
use fairmesh_rib::disk_cache::Cache;
use fairmesh_wire::shard_encoding::{Manifest, read_manifest};

use super::prefix_records::PrefixRecords;

/// The records of a map at one revision.
pub(super) struct MapRecords {
    pub(super) store: StoreId,
    manifests: BTreeMap<ShardPart, Bytes>,
    chunks: HashMap<(ShardPart, ChunkHash), ChunkLocation>,
    cache: Arc<Cache>,
}

/// Location of a chunk's value.
enum ChunkLocation {
    Memory(Bytes),
    Disk(Prefix, Arc<str>),
}

/// The manifests of one version of a map.
pub(super) struct Manifests {
    pub(super) version: u64,
    pub(super) interval: KeyRange,
    pub(super) ranges: Manifest,
    pub(super) regions: BTreeMap<Region, Manifest>,
}

/// Why tables cannot be built.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    /// The map in the RIB is invalid.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// A chunk is missing or damaged on disk, and must be fetched again.
    #[error("chunk {0} is missing on disk")]
    ChunkMissing(ChunkHash),
    /// No memory or no file descriptor is left.
    #[error("cannot create a table: {0}; check the agent's limits of memory and open files")]
    Memory(#[from] std::io::Error),
    /// The new table cannot be read back.
    #[error("{0}")]
    InvalidTable(#[from] fairmesh_router::InvalidTable),
}

impl MapRecords {
    pub(super) fn new(store: StoreId, stores: Vec<(Prefix, &PrefixRecords)>, cache: Arc<Cache>) -> Self {
        let mut source = Self { store, manifests: BTreeMap::new(), chunks: HashMap::new(), cache };
        for (prefix, entries) in stores
            .into_iter()
            .flat_map(|(prefix, store)| store.entries().into_iter().map(move |entry| (prefix.clone(), entry)))
        {
            let (key, entry) = entries;
            match RecordKey::parse(&key) {
                Ok(RecordKey::ShardManifest(_, part)) => {
                    source.manifests.insert(part, entry.value);
                }
                Ok(RecordKey::ShardChunk(_, part, hash)) => {
                    let place = match entry.value.is_empty() {
                        true => ChunkLocation::Disk(prefix, key),
                        false => ChunkLocation::Memory(entry.value),
                    };
                    source.chunks.insert((part, hash), place);
                }
                _ => {}
            }
        }
        source
    }

    /// The manifests; `None` if the service has no map.
    pub(super) fn parts(&self) -> Result<Option<Manifests>, Invalid> {
        let read =
            |part: &ShardPart, value: &Bytes| read_manifest(value).map_err(|e| e.within(part.to_string()));
        let Some(ranges) = self.manifests.get(&ShardPart::Ranges) else { return Ok(None) };
        let ranges = read(&ShardPart::Ranges, ranges)?;
        let mut regions = BTreeMap::new();
        for (part, value) in &self.manifests {
            let ShardPart::Region(region) = part else { continue };
            let manifest = read(part, value)?;
            if (manifest.version, manifest.interval) != (ranges.version, ranges.interval) {
                let problem = format!("is {}, and that of 'ranges' is {}", manifest.version, ranges.version);
                let invalid = Invalid::new("version", problem, "write the shard map again");
                return Err(invalid.within(region.as_str()));
            }
            regions.insert(region.clone(), manifest);
        }
        Ok(Some(Manifests { version: ranges.version, interval: ranges.interval, ranges, regions }))
    }

    pub(super) fn chunk(&self, part: &ShardPart, hash: ChunkHash) -> Result<Bytes, BuildError> {
        match self.chunks.get(&(part.clone(), hash)) {
            Some(ChunkLocation::Memory(value)) => Ok(value.clone()),
            Some(ChunkLocation::Disk(prefix, key)) => {
                self.cache.chunk(prefix, key).ok().flatten().ok_or(BuildError::ChunkMissing(hash))
            }
            None => {
                let problem = format!("chunk {hash} is missing");
                Err(Invalid::new(part.to_string(), problem, "write the shard map again").into())
            }
        }
    }

    /// Whether a chunk is read from disk, where a crash may have left half of it.
    pub(super) fn is_on_disk(&self, part: &ShardPart, hash: ChunkHash) -> bool {
        matches!(self.chunks.get(&(part.clone(), hash)), Some(ChunkLocation::Disk(..)))
    }
}
