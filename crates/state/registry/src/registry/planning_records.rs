//! Reads the records on which changes are planned.

use std::sync::Arc;

use fairmesh_model::{InstanceId, Invalid, Prefix, Record, RecordKey, Service, ServiceName, ShardMove};
use fairmesh_wire::record_encoding;

use super::Registry;
use crate::{
    RegistryError,
    shard_map_cache::MapFingerprint,
    stored_records::{StoredEndpoint, StoredShardMap, decode_endpoint, decode_map, move_record},
};

impl Registry {
    pub(crate) fn service(&self, name: &ServiceName) -> Result<Option<Service>, RegistryError> {
        let key = RecordKey::Service(name.clone());
        let Some(entry) = self.node().get(&key.to_string()) else { return Ok(None) };
        match record_encoding::decode(&key, &entry.value)? {
            Record::Service(service) => Ok(Some(service)),
            _ => Ok(None),
        }
    }

    pub(crate) fn endpoints(&self, service: &ServiceName) -> Vec<StoredEndpoint> {
        self.stored_endpoints(&Prefix::endpoints(service, None))
    }

    /// Returns the endpoints of a service with these instance ids, in any region. Decodes no other endpoints: a
    /// service may have 90,000 (ServiceRouter §4.1).
    pub(crate) fn endpoints_of(
        &self,
        service: &ServiceName,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<StoredEndpoint> {
        let (_, entries) = self.node().read(&[Prefix::endpoints(service, None)]);
        let named = entries.into_iter().filter(|(key, _)| key.rsplit('/').next().is_some_and(&wanted));
        named.filter_map(|(key, entry)| decode_endpoint(key, &entry)).collect()
    }

    pub(crate) fn endpoint(&self, service: &ServiceName, instance: &InstanceId) -> Option<StoredEndpoint> {
        self.endpoints_of(service, |candidate| candidate == instance.as_str()).pop()
    }

    /// Returns the endpoints below a prefix. Skips unreadable records, so that an unreadable record harms no other
    /// endpoint.
    pub(crate) fn stored_endpoints(&self, prefix: &Prefix) -> Vec<StoredEndpoint> {
        let (_, entries) = self.node().read(std::slice::from_ref(prefix));
        entries.into_iter().filter_map(|(key, entry)| decode_endpoint(key, &entry)).collect()
    }

    pub(crate) fn shard_map(&self, service: &ServiceName) -> Result<Option<Arc<StoredShardMap>>, Invalid> {
        let (_, read) = self.node().read(&[Prefix::shards(service, None)]);
        let decoded =
            self.shared.map_cache.get(service, MapFingerprint::of(&read), || decode_map(service, read));
        decoded.map_err(|invalid| {
            let problem = format!("the stored shard map of {service} cannot be read: {invalid}");
            let hint = "apply a document of kind ShardMap, which replaces it; or use a control plane of the release that wrote it";
            Invalid::new("", problem, hint)
        })
    }

    /// The stored map, also one that cannot be decoded.
    pub(crate) fn map_to_replace(&self, service: &ServiceName) -> Option<Arc<StoredShardMap>> {
        self.shard_map(service).unwrap_or_else(|invalid| {
            tracing::warn!(%service, problem = invalid.problem, "a written shard map replaces one that cannot be read");
            let (_, read) = self.node().read(&[Prefix::shards(service, None)]);
            Some(Arc::new(StoredShardMap::unreadable(service, read)))
        })
    }

    /// Returns the moves of a service, with their keys and revisions.
    pub(crate) fn moves(&self, service: &ServiceName) -> Vec<(RecordKey, ShardMove, u64)> {
        let (_, entries) = self.node().read(&[Prefix::moves(service)]);
        entries.iter().filter_map(|(key, entry)| move_record(key, entry)).collect()
    }

    pub(crate) fn move_at(&self, key: &RecordKey) -> Option<(ShardMove, u64)> {
        let text = key.to_string();
        let entry = self.node().get(&text)?;
        move_record(&text, &entry).map(|(_, shard_move, revision)| (shard_move, revision))
    }
}
