//! Shards without a copy in another region, for services with maps.

use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::{Prefix, RecordKey, ServiceName};
use fairmesh_planner::LoneShards;
use fairmesh_rib::Node;
use fairmesh_wire::shard_encoding;

/// Cache of lone shards by service. An entry is valid until the service's shard map changes. The cache exists because
/// reading a map with millions of shards is slow.
#[derive(Debug, Default)]
pub(super) struct LoneShardsCache(BTreeMap<ServiceName, (u64, Arc<LoneShards>)>);

impl LoneShardsCache {
    /// Lone shards of a service; empty if it has no map or an unreadable map.
    pub(super) fn get(&mut self, node: &Node, service: &ServiceName) -> Arc<LoneShards> {
        let (_, entries) = node.read(&[Prefix::shards(service, None)]);
        // Every change of a map writes its manifest, so the newest revision identifies the map.
        let Some(revision) = entries.iter().map(|(_, entry)| entry.revision).max() else {
            self.0.remove(service);
            return Arc::default();
        };
        if let Some((_, known)) = self.0.get(service).filter(|(of, _)| *of == revision) {
            return Arc::clone(known);
        }
        let entries = entries.into_iter();
        let entries = entries.filter_map(|(key, entry)| Some((RecordKey::parse(&key).ok()?, entry.value)));
        let lone = match shard_encoding::decode_map(entries) {
            Ok(map) => Arc::new(map.as_ref().map(LoneShards::of).unwrap_or_default()),
            Err(error) => {
                tracing::warn!(%service, %error, "the shard map cannot be read; a drain does not know its lone shards");
                Arc::default()
            }
        };
        self.0.insert(service.clone(), (revision, Arc::clone(&lone)));
        lone
    }

    /// Clears the cache, once there is no drain.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
