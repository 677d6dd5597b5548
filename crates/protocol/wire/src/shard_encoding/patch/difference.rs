//! Creates patches, in processes that serve watchers.

use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardPart};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Change, Patch,
    chunk::{by_id, by_shard, chunk_of, rows},
};
use crate::{
    convert, record_encoding,
    shard_encoding::{part, replicas::ChunkWriter},
    v1::{self, RangeChunk, ReplicaChunk, ShardChunkPatch, shard_chunk_patch::Rows},
};

/// Maximum number of chunks of a part that are compared. Each comparison takes about a millisecond, while watchers
/// wait.
const MAX_CHUNKS: usize = 16;

/// Returns patches that replace some of the changes up to `revision`, and the keys that each patch covers.
/// [`Patch::apply`] yields exactly the values of these keys. Other changes, where parts gain or lose chunks or change
/// completely, are sent unpatched.
pub fn differences(changes: &BTreeMap<Arc<str>, Change>, revision: u64) -> Vec<(Patch, Vec<String>)> {
    let manifests = changes.keys().filter_map(|key| match RecordKey::parse(key) {
        Ok(RecordKey::ShardManifest(service, part)) => Some((service, part)),
        _ => None,
    });
    let differences = manifests.filter_map(|(service, part)| {
        let patch = Patch::between(service, part, changes, revision).ok()??;
        let held = |key: &str| changes.get(key)?.before.clone();
        // Another writer may have encoded the map differently.
        let patched = patch.apply(revision, held).ok()?;
        let same = patched
            .iter()
            .all(|(key, after)| changes.get(key.as_str()).is_some_and(|change| change.after == *after));
        let keys: Vec<_> = patched.into_iter().map(|(key, _)| key).collect();
        let whole = keys.iter().filter_map(|key| changes.get(key.as_str())?.after.as_ref());
        let shorter = patch.message.encoded_len() < whole.map(|(value, _)| value.len()).sum();
        (same && shorter).then_some((patch, keys))
    });
    differences.collect()
}

impl Patch {
    /// Creates a patch; `None` if a patch cannot express the change.
    fn between(
        service: ServiceName,
        part: ShardPart,
        changes: &BTreeMap<Arc<str>, Change>,
        revision: u64,
    ) -> Result<Option<Self>, Invalid> {
        let written = |by: u64| if by == revision { 0 } else { by };
        let message = v1::ShardPatch {
            service: service.to_string(),
            part: part.to_string(),
            ..v1::ShardPatch::default()
        };
        let mut patch = Self { message, service, part };
        let change = changes.get(patch.manifest().as_str());
        let Some(Change { before: Some(before), after: Some((after, by)) }) = change else { return Ok(None) };
        let (old, new) = (part::read_manifest(before)?, part::read_manifest(after)?);
        let pairs = old.chunks.iter().zip(&new.chunks).zip(0..).filter(|((old, new), _)| old != new);
        if old.chunks.len() != new.chunks.len() || pairs.clone().count() > MAX_CHUNKS {
            return Ok(None);
        }
        patch.message.version = new.version;
        patch.message.check = xxh3_64(after);
        patch.message.revision = written(*by);
        for ((old, new), position) in pairs {
            let at = |hash| convert::read_u128("chunks", hash).map(|hash| patch.chunk(ChunkHash(hash)));
            let (old, new) = (changes.get(at(old)?.as_str()), changes.get(at(new)?.as_str()));
            let (Some(Change { before: Some(before), .. }), Some(Change { after: Some((after, by)), .. })) =
                (old, new)
            else {
                return Ok(None);
            };
            let patched = difference(&patch.part, before, after)?;
            patch.message.chunks.push(v1::ShardChunkPatch { position, revision: written(*by), ..patched });
        }
        Ok(Some(patch))
    }
}

/// The patch from chunk `before` to chunk `after`.
fn difference(part: &ShardPart, before: &[u8], after: &[u8]) -> Result<ShardChunkPatch, Invalid> {
    match part {
        ShardPart::Ranges => starts(&record_encoding::message(before)?, &record_encoding::message(after)?),
        ShardPart::Region(_) => copies(&record_encoding::message(before)?, &record_encoding::message(after)?),
    }
}

fn starts(before: &RangeChunk, after: &RangeChunk) -> Result<ShardChunkPatch, Invalid> {
    let (before, after) = (by_id(before)?, by_id(after)?);
    let (removed, new) = compare(&before, &after);
    Ok(ShardChunkPatch { removed, rows: Some(Rows::Starts(chunk_of(new))), ..ShardChunkPatch::default() })
}

fn copies(before: &ReplicaChunk, after: &ReplicaChunk) -> Result<ShardChunkPatch, Invalid> {
    let (rows, rows_after) = (rows(before, None)?, rows(after, None)?);
    let (removed, new) = compare(&by_shard(&rows), &by_shard(&rows_after));
    let mut writer = ChunkWriter::after(before);
    new.iter().flat_map(|(_, rows)| rows.iter()).for_each(|row| writer.push(*row));
    Ok(ShardChunkPatch { removed, rows: Some(Rows::Copies(writer.chunk)), ..ShardChunkPatch::default() })
}

/// Returns the removed keys, and the added or changed entries.
fn compare<V: Copy + PartialEq>(
    before: &BTreeMap<u32, V>,
    after: &BTreeMap<u32, V>,
) -> (Vec<u32>, Vec<(u32, V)>) {
    let removed = before.keys().filter(|key| !after.contains_key(key)).copied().collect();
    let new = after.iter().filter(|(key, value)| before.get(key) != Some(value));
    (removed, new.map(|(key, value)| (*key, *value)).collect())
}
