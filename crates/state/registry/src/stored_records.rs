//! Records of the node, with the revisions that a compare-and-set needs.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{
    Endpoint, InstanceId, Invalid, Prefix, Record, RecordKey, Service, ServiceName, ShardMap, ShardMove,
    ShardPart,
};
use fairmesh_rib::{Entry, Expect, Op};
use fairmesh_wire::{LogLimiter, records, shards};

use crate::{Registry, RegistryError, shard_map_cache::MapFingerprint};

static UNREADABLE: LogLimiter = LogLimiter::new();

/// An endpoint record of the RIB.
#[derive(Clone, Debug)]
pub(crate) struct StoredEndpoint {
    pub(crate) key: Arc<str>,
    pub(crate) service: ServiceName,
    pub(crate) endpoint: Endpoint,
    pub(crate) revision: u64,
}

impl StoredEndpoint {
    /// Overwrites the record if it is unchanged since it was read.
    pub(crate) fn put(&self, endpoint: &Endpoint) -> Op {
        let value = records::encode(&Record::Endpoint(endpoint.clone()));
        Op::put(self.key.clone(), value).expecting(Expect::Revision(self.revision))
    }

    /// Deletes the record if it is unchanged since it was read.
    pub(crate) fn delete(&self) -> Op {
        Op::delete(self.key.clone()).expecting(Expect::Revision(self.revision))
    }
}

/// A shard map of the RIB.
#[derive(Clone, Debug)]
pub(crate) struct StoredShardMap {
    pub(crate) map: ShardMap,
    /// Every key below the map's prefix, unreferenced ones included.
    pub(crate) entries: BTreeMap<RecordKey, Bytes>,
    /// The revision of the manifest of ranges, which every change of the map writes.
    pub(crate) revision: u64,
}

impl Registry {
    pub(crate) fn service(&self, name: &ServiceName) -> Result<Option<Service>, RegistryError> {
        let key = RecordKey::Service(name.clone());
        let Some(entry) = self.node().get(&key.to_string()) else { return Ok(None) };
        match records::decode(&key, &entry.value)? {
            Record::Service(service) => Ok(Some(service)),
            _ => Ok(None),
        }
    }

    pub(crate) fn endpoints(&self, service: &ServiceName) -> Vec<StoredEndpoint> {
        self.stored_endpoints(&Prefix::endpoints(service, None))
    }

    /// The endpoints of a service with these instance ids, in any region. Decodes only these, because a service may
    /// have 90,000 (ServiceRouter §4.1).
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

    /// The endpoints below a prefix. Unreadable records are skipped, so that they affect nothing else.
    pub(crate) fn stored_endpoints(&self, prefix: &Prefix) -> Vec<StoredEndpoint> {
        let (_, entries) = self.node().read(std::slice::from_ref(prefix));
        entries.into_iter().filter_map(|(key, entry)| decode_endpoint(key, &entry)).collect()
    }

    pub(crate) fn shard_map(&self, service: &ServiceName) -> Result<Option<Arc<StoredShardMap>>, Invalid> {
        let (_, read) = self.node().read(&[Prefix::shards(service, None)]);
        self.shared.map_cache.get(service, MapFingerprint::of(&read), || decode_map(service, read))
    }

    /// The moves of a service with their keys and revisions.
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

fn decode_map(
    service: &ServiceName,
    read: Vec<(Arc<str>, Entry)>,
) -> Result<Option<StoredShardMap>, Invalid> {
    let ranges = RecordKey::ShardManifest(service.clone(), ShardPart::Ranges);
    let (mut entries, mut revision) = (BTreeMap::new(), 0);
    for (text, entry) in read {
        let key = RecordKey::parse(&text)?;
        if key == ranges {
            revision = entry.revision;
        }
        entries.insert(key, entry.value);
    }
    let map = shards::decode_map(entries.clone())?;
    Ok(map.map(|map| StoredShardMap { map, entries, revision }))
}

fn decode_endpoint(key: Arc<str>, entry: &Entry) -> Option<StoredEndpoint> {
    let parsed = RecordKey::parse(&key).ok()?;
    let RecordKey::Endpoint(service, ..) = &parsed else { return None };
    match records::decode(&parsed, &entry.value) {
        Ok(Record::Endpoint(endpoint)) => {
            Some(StoredEndpoint { service: service.clone(), key, endpoint, revision: entry.revision })
        }
        Ok(_) => None,
        Err(error) => {
            if let Some(left_out) = UNREADABLE.next() {
                tracing::warn!(%key, %error, left_out, "an endpoint cannot be decoded and is skipped");
            }
            None
        }
    }
}

pub(crate) fn move_record(key: &str, entry: &Entry) -> Option<(RecordKey, ShardMove, u64)> {
    let key = RecordKey::parse(key).ok()?;
    match records::decode(&key, &entry.value) {
        Ok(Record::Move(shard_move)) => Some((key, shard_move, entry.revision)),
        Ok(_) => None,
        Err(error) => {
            if let Some(left_out) = UNREADABLE.next() {
                tracing::warn!(%key, %error, left_out, "a move cannot be decoded and is skipped");
            }
            None
        }
    }
}
