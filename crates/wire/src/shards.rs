//! Shard maps as parts, manifests and chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey, ServiceName, ShardMap};

/// Encodes a map as every key that it stands at: a manifest and its chunks for `ranges` and for each region that holds
/// a copy. A writer deletes the keys of the map before that are not among them.
pub fn encode_map(service: &ServiceName, map: &ShardMap) -> BTreeMap<RecordKey, Bytes> {
    let _ = (service, map);
    unimplemented!()
}

/// Puts a map together from what stands below its prefix; other keys are skipped, as are chunks that no manifest names.
///
/// `None` where there is no manifest at all. Regions that are not given are simply absent from the map, which suits a
/// caller that reads its own region only. Copies come back grouped by region.
pub fn decode_map(
    entries: impl IntoIterator<Item = (RecordKey, Bytes)>,
) -> Result<Option<ShardMap>, Invalid> {
    let _ = entries.into_iter();
    unimplemented!()
}
