//! Encoding of shard maps in the RIB as parts, manifests and chunks.
//!
//! A map has a part `ranges` with the starts of shards, and a part per region with the region's endpoints and the
//! shards that they hold. A caller can therefore read the copies of one region only (ServiceRouter §3.2). A part is a
//! list of chunks, named by the hash of their content, and a manifest that lists these names. Chunk boundaries are
//! content-defined: a shard whose hashed id meets a condition starts a chunk. A move or a split therefore changes
//! only the chunk of its shard, and only this chunk and the manifests are transferred. Chunks with a fixed number of
//! shards were rejected: one split would shift, and therefore rename, all later chunks.

mod chunker;
mod part;
mod part_reader;
mod patch;
mod ranges;
mod replicas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardMap, ShardPart};
use part::Part;
pub use part_reader::{Copies, Manifest, read_copies, read_manifest, read_ranges};
#[cfg(any(feature = "server", test))]
pub use patch::differences;
pub use patch::{Change, Patch, Value, is_patchable};

use crate::{convert, record_encoding, v1};

/// Encodes a map as entries: the manifest and chunks for `ranges`, and for each region that holds a copy. The writer
/// deletes keys of the previous map that are not returned.
pub fn encode_map(service: &ServiceName, map: &ShardMap) -> BTreeMap<RecordKey, Bytes> {
    let mut entries = BTreeMap::new();
    let ranges = ranges::encode(&map.shards);
    part::write(service, ShardPart::Ranges, map, ranges, &mut entries);
    for (region, rows) in replicas::by_region(&map.shards) {
        part::write(service, ShardPart::Region(region.clone()), map, replicas::encode(&rows), &mut entries);
    }
    entries
}

/// Assembles a map from the entries below its prefix. Other keys, and chunks without a manifest, are skipped.
///
/// Returns `None` if there is no manifest. The copies of regions whose entries are not given are absent, for callers
/// that read only their own region. The copies of a shard are grouped by region, in stable order within each.
///
/// # Errors
/// [`Invalid`] if a chunk is missing or damaged, if parts have different versions, if the part `ranges` is missing,
/// or if the map as a whole is invalid.
pub fn decode_map(
    entries: impl IntoIterator<Item = (RecordKey, Bytes)>,
) -> Result<Option<ShardMap>, Invalid> {
    let mut parts = part::group(entries)?;
    if parts.is_empty() {
        return Ok(None);
    }
    let Some(whole) = parts.remove(&ShardPart::Ranges) else {
        return Err(Invalid::new("ranges", "the manifest is missing", "read the part 'ranges' too"));
    };
    let interval = convert::interval(&whole.manifest.first_key, &whole.manifest.last_key)?;
    let version = whole.manifest.version;
    let shards = ranges::decode(&whole).map_err(|e| e.within("ranges"))?;
    let mut map = ShardMap { version, interval, shards };
    let mut adder = replicas::ReplicaMerger::new(&map.shards);
    for (part, content) in parts {
        let ShardPart::Region(region) = part else { continue };
        same_map(&whole, &content)
            .and_then(|()| adder.add(&region, &content, &mut map.shards))
            .map_err(|e| e.within(region.as_str()))?;
    }
    map.validate()?;
    Ok(Some(map))
}

fn same_map(ranges: &Part, region: &Part) -> Result<(), Invalid> {
    let (ranges, region) = (&ranges.manifest, &region.manifest);
    if ranges.version != region.version {
        let problem = format!("is {}, but that of 'ranges' is {}", region.version, ranges.version);
        return Err(Invalid::new("version", problem, "read all parts at one revision"));
    }
    if (&ranges.first_key, &ranges.last_key) != (&region.first_key, &region.last_key) {
        return Err(Invalid::new("first_key", "the interval is not that of 'ranges'", "write the map again"));
    }
    Ok(())
}

/// Validates a manifest.
pub(crate) fn check_manifest(part: &ShardPart, value: &[u8]) -> Result<(), Invalid> {
    let manifest = part::read_manifest(value)?;
    if *part == ShardPart::Ranges && manifest.shards == 0 {
        return Err(Invalid::new("shards", "the list is empty", "declare at least one shard"));
    }
    Ok(())
}

/// Validates a chunk: its name must be the hash of its content, and its rows must be well-formed.
pub(crate) fn check_chunk(part: &ShardPart, hash: ChunkHash, value: &[u8]) -> Result<(), Invalid> {
    part::check_hash(hash, value)?;
    match part {
        ShardPart::Ranges => ranges::check(&record_encoding::message::<v1::RangeChunk>(value)?),
        ShardPart::Region(_) => replicas::check(&record_encoding::message::<v1::ReplicaChunk>(value)?),
    }
}
