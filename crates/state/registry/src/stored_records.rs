//! Records, with the revisions that a compare-and-set needs.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{
    Endpoint, Invalid, KeyRange, Record, RecordKey, ServiceName, ShardMap, ShardMove, ShardPart,
};
use fairmesh_rib::{Entry, Expect, Op};
use fairmesh_wire::{LogLimiter, record_encoding, shard_encoding};

static UNREADABLE: LogLimiter = LogLimiter::new();

/// An endpoint record in the RIB.
#[derive(Clone, Debug)]
pub(crate) struct StoredEndpoint {
    pub(crate) key: Arc<str>,
    pub(crate) service: ServiceName,
    pub(crate) endpoint: Endpoint,
    pub(crate) revision: u64,
}

impl StoredEndpoint {
    /// Returns a write of `endpoint` that fails if the record has changed since it was read.
    pub(crate) fn put(&self, endpoint: &Endpoint) -> Op {
        let value = record_encoding::encode(&Record::Endpoint(endpoint.clone()));
        Op::put(self.key.clone(), value).expecting(Expect::Revision(self.revision))
    }

    /// Returns a deletion that fails if the record has changed since it was read.
    pub(crate) fn delete(&self) -> Op {
        Op::delete(self.key.clone()).expecting(Expect::Revision(self.revision))
    }
}

/// A shard map in the RIB.
#[derive(Clone, Debug)]
pub(crate) struct StoredShardMap {
    pub(crate) map: ShardMap,
    /// Every record below the map's prefix, including unreferenced ones.
    pub(crate) entries: BTreeMap<RecordKey, Bytes>,
    /// Revision of the range manifest, which every change of the map rewrites.
    pub(crate) revision: u64,
}

impl StoredShardMap {
    /// Stands for a map that cannot be decoded, so that a written map replaces its records. It has no shards, unlike
    /// every readable map. Its version is the newest revision of its records: each version is a commit, so that no
    /// earlier version was higher.
    pub(crate) fn unreadable(service: &ServiceName, read: Vec<(Arc<str>, Entry)>) -> Self {
        let ranges = RecordKey::ShardManifest(service.clone(), ShardPart::Ranges);
        let version = read.iter().map(|(_, entry)| entry.revision).max().unwrap_or_default();
        let (mut entries, mut revision) = (BTreeMap::new(), 0);
        for (text, entry) in read {
            let Ok(key) = RecordKey::parse(&text) else { continue };
            if key == ranges {
                revision = entry.revision;
            }
            entries.insert(key, entry.value);
        }
        Self { map: ShardMap { version, interval: KeyRange::ALL, shards: Vec::new() }, entries, revision }
    }

    pub(crate) fn is_unreadable(&self) -> bool {
        self.map.shards.is_empty()
    }
}

/// Decodes the shard map from the records below its prefix; `None` if there are none.
pub(crate) fn decode_map(
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
    let map = shard_encoding::decode_map(entries.clone())?;
    Ok(map.map(|map| StoredShardMap { map, entries, revision }))
}

/// Decodes an endpoint record; `None` if it cannot be decoded.
pub(crate) fn decode_endpoint(key: Arc<str>, entry: &Entry) -> Option<StoredEndpoint> {
    let parsed = RecordKey::parse(&key).ok()?;
    let RecordKey::Endpoint(service, ..) = &parsed else { return None };
    match record_encoding::decode(&parsed, &entry.value) {
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

/// Decodes a move record; `None` if it cannot be decoded.
pub(crate) fn move_record(key: &str, entry: &Entry) -> Option<(RecordKey, ShardMove, u64)> {
    let key = RecordKey::parse(key).ok()?;
    match record_encoding::decode(&key, &entry.value) {
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
