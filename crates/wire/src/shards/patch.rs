//! Patches between two versions of a shard map, for watchers that hold the earlier one.
//!
//! A move of one shard rewrites a chunk of tens of kilobytes, and a manifest for each part. A patch has only the
//! changed rows, and both sides encode the chunk from its rows, so that a move takes some hundred bytes. Binary
//! patches were rejected: names in a chunk are numbered by first use, so that one move shifts most numbers; and with
//! stable numbers, the content hashes of chunks, which the receiver computes itself, would still be sent twice each.

mod chunk;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardPart};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::part;
use crate::{convert, records, v1};

/// The most chunks of a part that are compared. Each takes about a millisecond, while watchers wait.
const MAX_CHUNKS: usize = 16;

/// The value of a key, and the number of the revision that wrote it.
pub type Value = (Bytes, u64);

/// A changed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The value that the watcher holds, if any.
    pub before: Option<Bytes>,
    /// The present value, if any.
    pub after: Option<Value>,
}

/// The difference between a part of a map and the version that a watcher holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    message: v1::ShardPatch,
    service: ServiceName,
    part: ShardPart,
}

/// Whether a key may be covered by patches, so that its previous value has to be kept.
pub fn is_patchable(key: &str) -> bool {
    // Parsing costs more than this test, and nearly all keys are of other kinds.
    key.contains("/shards/")
        && matches!(RecordKey::parse(key), Ok(RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)))
}

/// Patches that replace some of the changes up to `revision`, and the keys that they cover: [`Patch::apply`] gives
/// exactly their values. Other changes are sent as they are: parts that gain or lose chunks, or change completely.
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
    /// Decodes the output of [`Patch::encode`].
    ///
    /// # Errors
    /// [`Invalid`] if it is not a patch, or one of a newer release.
    pub fn read(bytes: &[u8]) -> Result<Self, Invalid> {
        let message: v1::ShardPatch = records::message(bytes)?;
        let service = message.service.parse()?;
        let part = ShardPart::read(&message.part)
            .ok_or_else(|| Invalid::new("part", "is not a part of a map", "upgrade the older side"))?;
        Ok(Self { message, service, part })
    }

    /// The encoded patch.
    pub fn encode(&self) -> Bytes {
        records::bytes(&self.message)
    }

    /// The key of the patched manifest.
    pub fn manifest(&self) -> String {
        RecordKey::ShardManifest(self.service.clone(), self.part.clone()).to_string()
    }

    /// The covered keys with their values at `revision`, `None` for deleted ones, computed from the values `held`.
    ///
    /// # Errors
    /// [`Invalid`] if the values held are not those that the patch was made for.
    pub fn apply(
        &self,
        revision: u64,
        held: impl Fn(&str) -> Option<Bytes>,
    ) -> Result<Vec<(String, Option<Value>)>, Invalid> {
        let held = |key: &str| held(key).ok_or_else(|| mismatch("there is no value to patch").within(key));
        let written = |by: u64| if by == 0 { revision } else { by };
        let mut manifest = part::read_manifest(&held(&self.manifest())?)?;
        let mut patched = Vec::new();
        for patch in &self.message.chunks {
            let position = manifest.chunks.get_mut(patch.position as usize);
            let position = position.ok_or_else(|| mismatch("the manifest has fewer chunks"))?;
            let old = self.chunk(ChunkHash(convert::read_u128("chunks", position)?));
            let (chunk, more, fewer) = chunk::apply(patch, &held(&old)?)?;
            let hash = part::hash(&chunk);
            *position = Bytes::copy_from_slice(&hash.0.to_be_bytes());
            manifest.shards = manifest.shards.wrapping_add(more).wrapping_sub(fewer);
            patched.push((old, None));
            patched.push((self.chunk(hash), Some((chunk, written(patch.revision)))));
        }
        manifest.version = self.message.version;
        let value = records::bytes(&manifest);
        if xxh3_64(&value) != self.message.check {
            return Err(mismatch("the manifest does not match its checksum"));
        }
        patched.push((self.manifest(), Some((value, written(self.message.revision)))));
        Ok(patched)
    }

    /// `None` if a patch cannot express the change.
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
            let patched = chunk::difference(&patch.part, before, after)?;
            patch.message.chunks.push(v1::ShardChunkPatch { position, revision: written(*by), ..patched });
        }
        Ok(Some(patch))
    }

    fn chunk(&self, hash: ChunkHash) -> String {
        RecordKey::ShardChunk(self.service.clone(), self.part.clone(), hash).to_string()
    }
}

fn mismatch(problem: &str) -> Invalid {
    Invalid::new("patch", problem, "read the shard map again")
}
