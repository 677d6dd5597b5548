use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{RecordKey, ServiceName, ShardMap, ShardPart};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::shards;

use crate::{Registry, RegistryError, view::HeldMap};

/// Chunks beyond this many bytes are written ahead of their manifests, since a batch has a largest size.
const AHEAD: usize = 1_000_000;

impl Registry {
    /// Writes what `edit` makes of the map that is there, and answers its version. Nothing is written when nothing
    /// changed.
    ///
    /// Every change writes the manifest of ranges, which carries the version, and is conditional on it.
    pub(super) async fn change_map(
        &self,
        service: &ServiceName,
        edit: impl Fn(Option<&HeldMap>) -> Result<ShardMap, RegistryError> + Send + Sync,
    ) -> Result<u64, RegistryError> {
        let changed = self.change_map_with(service, |held| Ok((edit(held)?, Vec::new()))).await?;
        Ok(changed.0)
    }

    /// The same with further writes in the same batch; answers version and revision.
    pub(super) async fn change_map_with(
        &self,
        service: &ServiceName,
        edit: impl Fn(Option<&HeldMap>) -> Result<(ShardMap, Vec<Op>), RegistryError> + Send + Sync,
    ) -> Result<(u64, u64), RegistryError> {
        let _one_writer = self.shared.maps.lock().await;
        let (map, _) = edit(self.shard_map(service)?.as_deref())?;
        self.write_ahead(service, &map).await?;
        let changed = self
            .change(|| {
                let held = self.shard_map(service)?;
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
        Ok((changed.told, changed.revision))
    }

    /// Puts chunks that would burst the batch where the manifests will find them. Nothing refers to them yet, and the
    /// next change of the map sweeps up those that stay without a reference.
    async fn write_ahead(&self, service: &ServiceName, map: &ShardMap) -> Result<(), RegistryError> {
        let chunks = shards::encode_map(service, map).into_iter();
        let chunks = chunks.filter(|(key, _)| matches!(key, RecordKey::ShardChunk(..)));
        let missing: Vec<_> = chunks
            .map(|(key, value)| (key.to_string(), value))
            .filter(|(key, _)| self.node().get(key).is_none())
            .collect();
        if missing.iter().map(|(_, value)| value.len()).sum::<usize>() <= AHEAD {
            return Ok(());
        }
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for (key, value) in missing {
            if bytes + value.len() > AHEAD {
                self.write(std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += value.len();
            ops.push(Op::put(key, value));
        }
        self.write(ops).await?;
        Ok(())
    }

    /// What differs between two maps as the RIB holds them: new parts and chunks, and what nothing refers to any more.
    fn map_ops(&self, service: &ServiceName, held: Option<&HeldMap>, map: &ShardMap) -> Vec<Op> {
        let none = BTreeMap::<RecordKey, Bytes>::new();
        let before = held.map_or(&none, |held| &held.entries);
        let after = shards::encode_map(service, map);
        let ranges = RecordKey::ShardManifest(service.clone(), ShardPart::Ranges);
        let expect = held.map_or(Expect::Absent, |held| Expect::Revision(held.revision));
        let gone = before.keys().filter(|key| !after.contains_key(key));
        let mut ops: Vec<_> = gone.map(|key| Op::delete(key.to_string())).collect();
        for (key, value) in &after {
            let text = key.to_string();
            if *key == ranges {
                ops.push(Op::put(text, value.clone()).expecting(expect));
            } else if before.get(key) != Some(value) && !self.is_there(key, &text, value) {
                ops.push(Op::put(text, value.clone()));
            }
        }
        ops
    }

    /// Whether a chunk was written ahead: a map that is created has no parts yet, and may have all its chunks.
    fn is_there(&self, key: &RecordKey, text: &str, value: &Bytes) -> bool {
        matches!(key, RecordKey::ShardChunk(..))
            && self.node().get(text).is_some_and(|entry| entry.value == *value)
    }
}
