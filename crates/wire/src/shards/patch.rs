//! What a change of a map tells those who hold the map before.
//!
//! A move of one shard makes a chunk of tens of kilobytes anew, and a manifest for each part. A patch says which rows are others
//! and both sides write the chunk from its rows, so that a move is told in some hundred bytes. Splices of bytes were rejected:
//! names in a chunk are numbered in the order in which they appear, so that one move shifts most numbers; and with numbers
//! that stay, the names of chunks by their content, which who writes them works out by itself, would still be sent twice each.

mod chunk;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardPart};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::part;
use crate::{convert, records, v1};

/// The most chunks of a part that are compared. Each costs about a millisecond, while watchers wait.
const MAX_CHUNKS: usize = 16;

/// What is at a key, and the number of the revision that wrote it.
pub type Value = (Bytes, u64);

/// One key that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What the watcher holds; `None` where that is nothing.
    pub before: Option<Bytes>,
    /// What is there now.
    pub after: Option<Value>,
}

/// How one part of a map differs from what a watcher holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    message: v1::ShardPatch,
    service: ServiceName,
    part: ShardPart,
}

/// Whether a key may be told by a patch: what was there before is worth remembering.
pub fn is_patched(key: &str) -> bool {
    // Parsing costs more than a look, and nearly all keys are others.
    key.contains("/shards/")
        && matches!(RecordKey::parse(key), Ok(RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)))
}

/// The patches that stand for some of the changes up to `revision`, and the keys that they stand for: [`Patch::apply`] gives
/// exactly what is there. The rest is to be told as it is: parts that gain or lose chunks, or change all over.
pub fn differences(changes: &BTreeMap<Arc<str>, Change>, revision: u64) -> Vec<(Patch, Vec<String>)> {
    let manifests = changes.keys().filter_map(|key| match RecordKey::parse(key) {
        Ok(RecordKey::ShardManifest(service, part)) => Some((service, part)),
        _ => None,
    });
    let differences = manifests.filter_map(|(service, part)| {
        let patch = Patch::between(service, part, changes, revision).ok()??;
        let held = |key: &str| changes.get(key)?.before.clone();
        // Who wrote the map may have written it in another way than it is written here.
        let told = patch.apply(revision, held).ok()?;
        let same = told
            .iter()
            .all(|(key, after)| changes.get(key.as_str()).is_some_and(|change| change.after == *after));
        let keys: Vec<_> = told.into_iter().map(|(key, _)| key).collect();
        let whole = keys.iter().filter_map(|key| changes.get(key.as_str())?.after.as_ref());
        let shorter = patch.message.encoded_len() < whole.map(|(value, _)| value.len()).sum();
        (same && shorter).then_some((patch, keys))
    });
    differences.collect()
}

impl Patch {
    /// Reads what [`Patch::encode`] wrote.
    ///
    /// # Errors
    /// [`Invalid`] where it is no patch, or one of a newer release.
    pub fn read(bytes: &[u8]) -> Result<Self, Invalid> {
        let message: v1::ShardPatch = records::message(bytes)?;
        let service = message.service.parse()?;
        let part = ShardPart::read(&message.part)
            .ok_or_else(|| Invalid::new("part", "is no part of a map", "upgrade the older side"))?;
        Ok(Self { message, service, part })
    }

    /// As it is sent.
    pub fn encode(&self) -> Bytes {
        records::bytes(&self.message)
    }

    /// The key of the manifest that it is about.
    pub fn manifest(&self) -> String {
        RecordKey::ShardManifest(self.service.clone(), self.part.clone()).to_string()
    }

    /// The keys that it stands for with what is there at `revision`, `None` for nothing, from what is `held`.
    ///
    /// # Errors
    /// [`Invalid`] where what is held is not what the patch was made for; nothing can be said then.
    pub fn apply(
        &self,
        revision: u64,
        held: impl Fn(&str) -> Option<Bytes>,
    ) -> Result<Vec<(String, Option<Value>)>, Invalid> {
        let held = |key: &str| held(key).ok_or_else(|| unfit("nothing is held of it").within(key));
        let written = |by: u64| if by == 0 { revision } else { by };
        let mut manifest = part::read_manifest(&held(&self.manifest())?)?;
        let mut told = Vec::new();
        for patch in &self.message.chunks {
            let place = manifest.chunks.get_mut(patch.place as usize);
            let place = place.ok_or_else(|| unfit("the manifest has fewer chunks"))?;
            let old = self.chunk(ChunkHash(convert::wide("chunks", place)?));
            let (chunk, more, fewer) = chunk::apply(patch, &held(&old)?)?;
            let hash = part::hash(&chunk);
            *place = Bytes::copy_from_slice(&hash.0.to_be_bytes());
            manifest.shards = manifest.shards.wrapping_add(more).wrapping_sub(fewer);
            told.push((old, None));
            told.push((self.chunk(hash), Some((chunk, written(patch.revision)))));
        }
        manifest.version = self.message.version;
        let value = records::bytes(&manifest);
        if xxh3_64(&value) != self.message.check {
            return Err(unfit("the manifest is not what it should be"));
        }
        told.push((self.manifest(), Some((value, written(self.message.revision)))));
        Ok(told)
    }

    /// `None` where a patch cannot tell it.
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
        for ((old, new), place) in pairs {
            let at = |hash| convert::wide("chunks", hash).map(|hash| patch.chunk(ChunkHash(hash)));
            let (old, new) = (changes.get(at(old)?.as_str()), changes.get(at(new)?.as_str()));
            let (Some(Change { before: Some(before), .. }), Some(Change { after: Some((after, by)), .. })) =
                (old, new)
            else {
                return Ok(None);
            };
            let told = chunk::difference(&patch.part, before, after)?;
            patch.message.chunks.push(v1::ShardChunkPatch { place, revision: written(*by), ..told });
        }
        Ok(Some(patch))
    }

    fn chunk(&self, hash: ChunkHash) -> String {
        RecordKey::ShardChunk(self.service.clone(), self.part.clone(), hash).to_string()
    }
}

fn unfit(problem: &str) -> Invalid {
    Invalid::new("patch", problem, "read the shard map anew")
}
