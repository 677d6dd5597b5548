//! Patches between two versions of a shard map, for watchers that hold the earlier version.
//!
//! A move of one shard rewrites a chunk of tens of kilobytes, and a manifest for each part. A patch has only the
//! changed rows, and both sides encode the chunk from its rows, so that a move takes some hundred bytes. Binary
//! patches were rejected: names in a chunk are numbered by first use, so one move shifts most numbers. Even with
//! stable numbers, a binary patch would send each content hash twice, although the receiver computes the hashes
//! itself.

mod chunk;
#[cfg(any(feature = "server", test))]
mod difference;

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Invalid, RecordKey, ServiceName, ShardPart};
use xxhash_rust::xxh3::xxh3_64;

#[cfg(any(feature = "server", test))]
pub use difference::differences;

use super::part;
use crate::{convert, record_encoding, v1};

/// A value, and the revision number that wrote it.
pub type Value = (Bytes, u64);

/// The change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The value that the watcher holds; `None` if it holds none.
    pub before: Option<Bytes>,
    /// The current value; `None` if the key was deleted.
    pub after: Option<Value>,
}

/// The difference between the current version of a part of a map and the version that a watcher holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    message: v1::ShardPatch,
    service: ServiceName,
    part: ShardPart,
}

/// Whether patches may cover a key. The previous value of such a key must be kept.
pub fn is_patchable(key: &str) -> bool {
    // This test is cheaper than parsing, and nearly all keys are of other kinds.
    key.contains("/shards/")
        && matches!(RecordKey::parse(key), Ok(RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)))
}

impl Patch {
    /// Decodes the output of [`Patch::encode`].
    ///
    /// # Errors
    /// [`Invalid`] if the bytes are not a patch, or a patch of a newer release.
    pub fn read(bytes: &[u8]) -> Result<Self, Invalid> {
        let message: v1::ShardPatch = record_encoding::message(bytes)?;
        let service = message.service.parse()?;
        let part = ShardPart::read(&message.part)
            .ok_or_else(|| Invalid::new("part", "is not a part of a map", "upgrade the older side"))?;
        Ok(Self { message, service, part })
    }

    /// Encodes the patch.
    pub fn encode(&self) -> Bytes {
        record_encoding::bytes(&self.message)
    }

    /// The key of the patched manifest.
    pub fn manifest(&self) -> String {
        RecordKey::ShardManifest(self.service.clone(), self.part.clone()).to_string()
    }

    /// Computes the values of the covered keys at `revision` from the values `held`; `None` for deleted keys.
    ///
    /// # Errors
    /// [`Invalid`] if the held values are not those for which the patch was made.
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
        let value = record_encoding::bytes(&manifest);
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
