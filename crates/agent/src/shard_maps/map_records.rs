use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, KeyRange, Prefix, RecordKey, Region, ShardPart, StoreId};
use fairmesh_rib::cache::Cache;
use fairmesh_wire::shards::{Manifest, read_manifest};

use super::store::Store;

/// What a map is made of, at one moment.
pub(super) struct Source {
    pub(super) store: StoreId,
    manifests: BTreeMap<ShardPart, Bytes>,
    chunks: HashMap<(ShardPart, ChunkHash), Place>,
    cache: Arc<Cache>,
}

/// Where a chunk is.
enum Place {
    Memory(Bytes),
    Disk(Prefix, Arc<str>),
}

/// The parts of a map, of one version.
pub(super) struct Parts {
    pub(super) version: u64,
    pub(super) interval: KeyRange,
    pub(super) ranges: Manifest,
    pub(super) regions: BTreeMap<Region, Manifest>,
}

/// Why no tables can be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The map in the RIB is at fault.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// A chunk that was on disk is not there or damaged: it is to be fetched.
    #[error("chunk {0} is missing on disk")]
    Lost(ChunkHash),
    /// There is no memory, or no file descriptor left.
    #[error("no table can be made: {0}; check the limits of memory and of open files of the agent")]
    Memory(#[from] std::io::Error),
    /// What was made cannot be read back.
    #[error("{0}")]
    Unfit(#[from] fairmesh_router::Unfit),
}

impl Source {
    pub(super) fn new(store: StoreId, stores: Vec<(Prefix, &Store)>, cache: Arc<Cache>) -> Self {
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
                        true => Place::Disk(prefix, key),
                        false => Place::Memory(entry.value),
                    };
                    source.chunks.insert((part, hash), place);
                }
                _ => {}
            }
        }
        source
    }

    /// The manifests; `None` where the service has no map.
    pub(super) fn parts(&self) -> Result<Option<Parts>, Invalid> {
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
        Ok(Some(Parts { version: ranges.version, interval: ranges.interval, ranges, regions }))
    }

    pub(super) fn chunk(&self, part: &ShardPart, hash: ChunkHash) -> Result<Bytes, Broken> {
        match self.chunks.get(&(part.clone(), hash)) {
            Some(Place::Memory(value)) => Ok(value.clone()),
            Some(Place::Disk(prefix, key)) => {
                self.cache.chunk(prefix, key).ok().flatten().ok_or(Broken::Lost(hash))
            }
            None => {
                let problem = format!("chunk {hash} is missing");
                Err(Invalid::new(part.to_string(), problem, "write the shard map again").into())
            }
        }
    }

    /// Whether a chunk was read from disk, where a crash may have left half of it.
    pub(super) fn is_on_disk(&self, part: &ShardPart, hash: ChunkHash) -> bool {
        matches!(self.chunks.get(&(part.clone(), hash)), Some(Place::Disk(..)))
    }
}
