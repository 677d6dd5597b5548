use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{Invalid, RecordKey, ServiceName, ShardMap, ShardPart};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::shard_encoding;

use crate::{Registry, RegistryError, stored_records::StoredShardMap};

/// Maximum total size of chunks written in one batch with their manifests, in bytes. Further chunks are written
/// earlier, because batches are bounded.
const MAX_INLINE_CHUNK_BYTES: usize = 1_000_000;

impl Registry {
    /// Writes the result of `edit` on the current map and returns its version. Writes nothing if the map is
    /// unchanged.
    ///
    /// Every change rewrites the manifest of ranges, which contains the version, and is conditional on the manifest's
    /// revision.
    pub(super) async fn change_map(
        &self,
        service: &ServiceName,
        edit: impl Fn(Option<&StoredShardMap>) -> Result<ShardMap, RegistryError> + Send + Sync,
    ) -> Result<u64, RegistryError> {
        let changed = self.change_map_with(service, |held| Ok((edit(held)?, Vec::new()))).await?;
        Ok(changed.0)
    }

    /// Like [`change_map`](Self::change_map), also for a stored map that cannot be read.
    pub(super) async fn replace_map(
        &self,
        service: &ServiceName,
        edit: impl Fn(Option<&StoredShardMap>) -> Result<ShardMap, RegistryError> + Send + Sync,
    ) -> Result<u64, RegistryError> {
        let read = || Ok(self.map_to_replace(service));
        let changed = self.write_map(service, read, |held| Ok((edit(held)?, Vec::new()))).await?;
        Ok(changed.0)
    }

    /// Changes the map and adds further writes to the same batch. Returns version and revision.
    pub(super) async fn change_map_with(
        &self,
        service: &ServiceName,
        edit: impl Fn(Option<&StoredShardMap>) -> Result<(ShardMap, Vec<Op>), RegistryError> + Send + Sync,
    ) -> Result<(u64, u64), RegistryError> {
        self.write_map(service, || self.shard_map(service), edit).await
    }

    async fn write_map(
        &self,
        service: &ServiceName,
        read: impl Fn() -> Result<Option<Arc<StoredShardMap>>, Invalid> + Send + Sync,
        edit: impl Fn(Option<&StoredShardMap>) -> Result<(ShardMap, Vec<Op>), RegistryError> + Send + Sync,
    ) -> Result<(u64, u64), RegistryError> {
        let _one_writer = self.shared.map_writer.lock().await;
        let (map, _) = edit(read()?.as_deref())?;
        self.write_chunks_first(service, &map).await?;
        let changed = self
            .change(|| {
                let held = read()?;
                let (mut map, mut ops) = edit(held.as_deref())?;
                let current = held.as_ref().map_or(0, |held| held.map.version);
                if held.as_ref().is_none_or(|held| held.map != map) {
                    map.version = current + 1;
                    map.validate()?;
                    ops.extend(self.map_ops(service, held.as_deref(), &map));
                }
                Ok((ops, map.version))
            })
            .await?;
        Ok((changed.output, changed.revision))
    }

    /// Writes the chunks that would exceed the batch, before the manifests that name them. The next change of the map
    /// removes chunks that stay unreferenced.
    async fn write_chunks_first(&self, service: &ServiceName, map: &ShardMap) -> Result<(), RegistryError> {
        let chunks = shard_encoding::encode_map(service, map).into_iter();
        let chunks = chunks.filter(|(key, _)| matches!(key, RecordKey::ShardChunk(..)));
        let missing: Vec<_> = chunks
            .map(|(key, value)| (key.to_string(), value))
            .filter(|(key, _)| self.node().get(key).is_none())
            .collect();
        if missing.iter().map(|(_, value)| value.len()).sum::<usize>() <= MAX_INLINE_CHUNK_BYTES {
            return Ok(());
        }
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for (key, value) in missing {
            if bytes + value.len() > MAX_INLINE_CHUNK_BYTES {
                self.write(std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += value.len();
            ops.push(Op::put(key, value));
        }
        self.write(ops).await?;
        Ok(())
    }

    /// Returns the writes that turn the stored map into `map`: new parts and chunks, and deletions of unreferenced
    /// ones.
    fn map_ops(&self, service: &ServiceName, held: Option<&StoredShardMap>, map: &ShardMap) -> Vec<Op> {
        let none = BTreeMap::<RecordKey, Bytes>::new();
        let before = held.map_or(&none, |held| &held.entries);
        let after = shard_encoding::encode_map(service, map);
        let ranges = RecordKey::ShardManifest(service.clone(), ShardPart::Ranges);
        // A map that cannot be read may lack its manifest of ranges.
        let stored = held.map(|held| held.revision).filter(|revision| *revision > 0);
        let expect = stored.map_or(Expect::Absent, Expect::Revision);
        let gone = before.keys().filter(|key| !after.contains_key(key));
        let mut ops: Vec<_> = gone.map(|key| Op::delete(key.to_string())).collect();
        for (key, value) in &after {
            let text = key.to_string();
            if *key == ranges {
                ops.push(Op::put(text, value.clone()).expecting(expect));
            } else if before.get(key) != Some(value) && !self.is_written(key, &text, value) {
                ops.push(Op::put(text, value.clone()));
            }
        }
        ops
    }

    /// Whether a chunk is stored already. A new map may have all its chunks stored, but none of its parts.
    fn is_written(&self, key: &RecordKey, text: &str, value: &Bytes) -> bool {
        matches!(key, RecordKey::ShardChunk(..))
            && self.node().get(text).is_some_and(|entry| entry.value == *value)
    }
}
