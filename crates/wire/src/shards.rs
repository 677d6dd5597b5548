//! Shard maps as they stand in the RIB: parts, manifests, chunks.
//!
//! A map is a part `ranges` (where shards start) and a part for each region (which of its endpoints hold which shards),
//! so that a caller may read one region's copies only (ServiceRouter §3.2). A part is a list of chunks, named by what is in them, and a
//! manifest that lists them. Chunks are cut by content: a shard whose hashed id says so starts one. A move or a split
//! therefore changes the chunk that it is in and no other, and only that chunk and the manifests travel. Cutting after a
//! fixed number of shards was rejected: one split would shift, and so rename, every chunk behind it.

mod cut;
mod part;
mod patch;
mod piece;
mod ranges;
mod replicas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardMap, ShardPart};
use part::Part;
pub use patch::{Change, Patch, Value, differences, is_patched};
pub use piece::{Copies, Manifest, read_copies, read_manifest, read_ranges};

use crate::{convert, records, v1};

/// Encodes a map as every key that it stands at: a manifest and its chunks for `ranges` and for each region that holds
/// a copy. A writer deletes the keys of the map before that are not among them.
pub fn encode_map(service: &ServiceName, map: &ShardMap) -> BTreeMap<RecordKey, Bytes> {
    let mut entries = BTreeMap::new();
    let ranges = ranges::encode(&map.shards);
    part::write(service, ShardPart::Ranges, map, ranges, &mut entries);
    for (region, rows) in replicas::by_region(&map.shards) {
        part::write(service, ShardPart::Region(region.clone()), map, replicas::encode(&rows), &mut entries);
    }
    entries
}

/// Puts a map together from what stands below its prefix; other keys are skipped, as are chunks that no manifest names.
///
/// `None` where there is no manifest at all. Regions that are not given are simply absent from the map, which suits a
/// caller that reads its own region only. The copies of a shard come back grouped by region, in the order within each
/// in which they were.
///
/// # Errors
/// [`Invalid`] where a chunk is missing or damaged, where parts come from two versions of the map, where the part
/// `ranges` is missing, and where the whole does not validate.
pub fn decode_map(
    entries: impl IntoIterator<Item = (RecordKey, Bytes)>,
) -> Result<Option<ShardMap>, Invalid> {
    let mut parts = part::gather(entries)?;
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
    let mut adder = replicas::Adder::new(&map.shards);
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
        let problem = format!("is {}, and that of 'ranges' is {}", region.version, ranges.version);
        return Err(Invalid::new("version", problem, "read all parts at one revision"));
    }
    if (&ranges.first_key, &ranges.last_key) != (&region.first_key, &region.last_key) {
        return Err(Invalid::new("first_key", "the interval is not that of 'ranges'", "write the map again"));
    }
    Ok(())
}

/// Checks a manifest by itself.
pub(crate) fn check_manifest(part: &ShardPart, value: &[u8]) -> Result<(), Invalid> {
    let manifest = part::read_manifest(value)?;
    if *part == ShardPart::Ranges && manifest.shards == 0 {
        return Err(Invalid::new("shards", "there is none", "declare at least one shard"));
    }
    Ok(())
}

/// Checks a chunk by itself: that it is named by its content and that its rows are well formed.
pub(crate) fn check_chunk(part: &ShardPart, hash: ChunkHash, value: &[u8]) -> Result<(), Invalid> {
    part::check_hash(hash, value)?;
    match part {
        ShardPart::Ranges => ranges::check(&records::message::<v1::RangeChunk>(value)?),
        ShardPart::Region(_) => replicas::check(&records::message::<v1::ReplicaChunk>(value)?),
    }
}
