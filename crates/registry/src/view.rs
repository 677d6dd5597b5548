//! Records as the node has them now, with the revisions that a compare-and-set needs.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{
    Endpoint, InstanceId, Invalid, Prefix, Record, RecordKey, Service, ServiceName, ShardMap, ShardMove,
    ShardPart,
};
use fairmesh_rib::{Entry, Expect, Op};
use fairmesh_wire::{LogLimiter, records, shards};

use crate::{Registry, RegistryError, maps::Mark};

static UNREADABLE: LogLimiter = LogLimiter::new();

/// An endpoint as it stands in the RIB.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: Arc<str>,
    pub(crate) service: ServiceName,
    pub(crate) endpoint: Endpoint,
    pub(crate) revision: u64,
}

impl Held {
    /// Writes it anew, if it is still as it was read.
    pub(crate) fn put(&self, endpoint: &Endpoint) -> Op {
        let value = records::encode(&Record::Endpoint(endpoint.clone()));
        Op::put(self.key.clone(), value).expecting(Expect::Revision(self.revision))
    }

    /// Takes it out, if it is still as it was read.
    pub(crate) fn delete(&self) -> Op {
        Op::delete(self.key.clone()).expecting(Expect::Revision(self.revision))
    }
}

/// A shard map as it stands in the RIB.
#[derive(Clone, Debug)]
pub(crate) struct HeldMap {
    pub(crate) map: ShardMap,
    /// Every key below the map's prefix, those that nothing refers to any more included.
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

    pub(crate) fn endpoints(&self, service: &ServiceName) -> Vec<Held> {
        self.held(&Prefix::endpoints(service, None))
    }

    /// The endpoints of a service with these instance ids, in whichever region they are. Only these are decoded: a
    /// service may have 90,000 (ServiceRouter §4.1).
    pub(crate) fn endpoints_of(&self, service: &ServiceName, wanted: impl Fn(&str) -> bool) -> Vec<Held> {
        let (_, entries) = self.node().read(&[Prefix::endpoints(service, None)]);
        let named = entries.into_iter().filter(|(key, _)| key.rsplit('/').next().is_some_and(&wanted));
        named.filter_map(|(key, entry)| held(key, &entry)).collect()
    }

    pub(crate) fn endpoint(&self, service: &ServiceName, instance: &InstanceId) -> Option<Held> {
        self.endpoints_of(service, |candidate| candidate == instance.as_str()).pop()
    }

    /// The endpoints below a prefix; a record that cannot be read is passed over, so that it harms only itself.
    pub(crate) fn held(&self, prefix: &Prefix) -> Vec<Held> {
        let (_, entries) = self.node().read(std::slice::from_ref(prefix));
        entries.into_iter().filter_map(|(key, entry)| held(key, &entry)).collect()
    }

    pub(crate) fn shard_map(&self, service: &ServiceName) -> Result<Option<Arc<HeldMap>>, Invalid> {
        let (_, read) = self.node().read(&[Prefix::shards(service, None)]);
        self.shared.decoded.get(service, Mark::of(&read), || decode_map(service, read))
    }

    /// The moves of a service with their keys and revisions.
    pub(crate) fn moves(&self, service: &ServiceName) -> Vec<(RecordKey, ShardMove, u64)> {
        let (_, entries) = self.node().read(&[Prefix::moves(service)]);
        entries.iter().filter_map(|(key, entry)| move_record(key, entry)).collect()
    }

    pub(crate) fn move_at(&self, key: &RecordKey) -> Option<(ShardMove, u64)> {
        let text = key.to_string();
        let entry = self.node().get(&text)?;
        move_record(&text, &entry).map(|(_, wish, revision)| (wish, revision))
    }
}

fn decode_map(service: &ServiceName, read: Vec<(Arc<str>, Entry)>) -> Result<Option<HeldMap>, Invalid> {
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
    Ok(map.map(|map| HeldMap { map, entries, revision }))
}

fn held(key: Arc<str>, entry: &Entry) -> Option<Held> {
    let parsed = RecordKey::parse(&key).ok()?;
    let RecordKey::Endpoint(service, ..) = &parsed else { return None };
    match records::decode(&parsed, &entry.value) {
        Ok(Record::Endpoint(endpoint)) => {
            Some(Held { service: service.clone(), key, endpoint, revision: entry.revision })
        }
        Ok(_) => None,
        Err(error) => {
            if let Some(left_out) = UNREADABLE.next() {
                tracing::warn!(%key, %error, left_out, "an endpoint cannot be read and is passed over");
            }
            None
        }
    }
}

pub(crate) fn move_record(key: &str, entry: &Entry) -> Option<(RecordKey, ShardMove, u64)> {
    let key = RecordKey::parse(key).ok()?;
    match records::decode(&key, &entry.value) {
        Ok(Record::Move(wish)) => Some((key, wish, entry.revision)),
        Ok(_) => None,
        Err(error) => {
            if let Some(left_out) = UNREADABLE.next() {
                tracing::warn!(%key, %error, left_out, "a move cannot be read and is passed over");
            }
            None
        }
    }
}
