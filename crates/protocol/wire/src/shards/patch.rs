//! Patches between two versions of a shard map, for watchers that hold the earlier one.
//!
//! A move of one shard rewrites a chunk of tens of kilobytes, and a manifest for each part. A patch has only the
//! changed rows, and both sides encode the chunk from its rows, so that a move takes some hundred bytes. Binary
//! patches were rejected: names in a chunk are numbered by first use, so that one move shifts most numbers; and with
//! stable numbers, the content hashes of chunks, which the receiver computes itself, would still be sent twice each.

mod chunk;
#[cfg(any(feature = "server", test))]
mod difference;

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardPart};
use xxhash_rust::xxh3::xxh3_64;

#[cfg(any(feature = "server", test))]
pub use difference::differences;

use super::part;
use crate::{convert, records, v1};

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

    fn chunk(&self, hash: ChunkHash) -> String {
        RecordKey::ShardChunk(self.service.clone(), self.part.clone(), hash).to_string()
    }
}

fn mismatch(problem: &str) -> Invalid {
    Invalid::new("patch", problem, "read the shard map again")
}
