//! The service's shard map as the agent tells it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey, Region, Revision, ServiceName, ShardMap, ShardPart, StoreId};
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::shards::decode_map;
use tokio::sync::watch;

use crate::Link;

/// What is known of the map.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The last one heard of, to acknowledge.
    pub(super) revision: Option<Revision>,
    /// Whether the map, or that there is none, is known at all.
    pub(super) known: bool,
    /// The map, where the service has one.
    pub(super) map: Option<Arc<ShardMap>>,
}

/// The subscription; dropping it ends it.
pub(super) struct Following {
    handle: FollowerHandle,
    service: ServiceName,
    wanted: Arc<OnceLock<BTreeSet<Prefix>>>,
}

/// Prepares to follow the map of `service`; nothing is asked for before [`Following::subscribe`].
pub(super) fn follow(link: &Link, service: &ServiceName, tell: watch::Sender<Seen>) -> Following {
    let config = FollowerConfig {
        addresses: link.addresses().to_vec(),
        software: link.software().to_owned(),
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let wanted = Arc::new(OnceLock::new());
    let copy = Copy {
        wanted: Arc::clone(&wanted),
        tell,
        store: None,
        entries: BTreeMap::new(),
        complete: BTreeSet::new(),
    };
    Following { handle: Follower::spawn(config, copy), service: service.clone(), wanted }
}

impl Following {
    /// Asks for what concerns endpoints of `region`, or for all of the map where that is not known. Once.
    pub(super) fn subscribe(&self, region: Option<Region>) {
        let part = |part| Prefix::shards(&self.service, Some(&part));
        let prefixes = match region {
            Some(region) => vec![part(ShardPart::Ranges), part(ShardPart::Region(region))],
            None => vec![Prefix::shards(&self.service, None)],
        };
        // Set before anything can arrive; a second call would ask for the same.
        let _ = self.wanted.set(prefixes.iter().cloned().collect());
        for prefix in prefixes {
            self.handle.subscribe(prefix);
        }
    }

    /// Says that calls are answered by everything up to `revision`.
    pub(super) fn applied(&self, revision: Revision) {
        self.handle.ack(revision);
    }
}

/// The entries of the map's parts.
struct Copy {
    wanted: Arc<OnceLock<BTreeSet<Prefix>>>,
    tell: watch::Sender<Seen>,
    store: Option<StoreId>,
    entries: BTreeMap<RecordKey, Bytes>,
    /// The prefixes of which all is there. A map made from some of them would seem to hold nothing here.
    complete: BTreeSet<Prefix>,
}

impl Sink for Copy {
    fn update(&mut self, update: Update) {
        if self.store.replace(update.revision.store) != Some(update.revision.store) {
            self.entries.clear();
            self.complete.clear();
        }
        for snapshot in update.snapshots {
            self.entries.retain(|key, _| !snapshot.prefix.covers(&key.to_string()));
            for (key, entry) in snapshot.entries {
                self.put(&key, entry.value);
            }
            self.complete.insert(snapshot.prefix);
        }
        for (key, entry) in update.puts {
            self.put(&key, entry.value);
        }
        for key in update.deletes {
            if let Ok(key) = RecordKey::parse(&key) {
                self.entries.remove(&key);
            }
        }
        self.publish(update.revision);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        tracing::warn!(%prefix, reason, "the shard map cannot be followed; calls for any key are answered");
    }
}

impl Copy {
    fn put(&mut self, key: &str, value: Bytes) {
        // Keys of a newer release are none of ours.
        if let Ok(key) = RecordKey::parse(key) {
            self.entries.insert(key, value);
        }
    }

    fn publish(&self, revision: Revision) {
        let complete = self.wanted.get().is_some_and(|wanted| wanted.is_subset(&self.complete));
        let map = complete
            .then(|| decode_map(self.entries.iter().map(|(key, value)| (key.clone(), value.clone()))));
        self.tell.send_modify(|seen| {
            seen.revision = Some(revision);
            match map {
                Some(Ok(map)) => (seen.known, seen.map) = (true, map.map(Arc::new)),
                Some(Err(error)) => {
                    tracing::warn!(%error, "the shard map does not fit together; keeping the last one")
                }
                None => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{InstanceId, KeyRange, Replica, ReplicaState, Role, Shard, ShardId};
    use fairmesh_rib::{Entry, Snapshot};
    use fairmesh_wire::shards::encode_map;

    use super::*;

    fn map() -> ShardMap {
        let replica = Replica {
            instance: InstanceId::new("a").unwrap(),
            region: Region::new("eu").unwrap(),
            role: Role::new("primary").unwrap(),
            state: ReplicaState::Serving,
        };
        let shard = Shard { id: ShardId(0), start: KeyRange::ALL.first, replicas: vec![replica] };
        ShardMap { version: 3, interval: KeyRange::ALL, shards: vec![shard] }
    }

    #[test]
    fn a_map_counts_once_all_its_wanted_parts_are_there() {
        let service = ServiceName::new("shop/cart").unwrap();
        let parts = [ShardPart::Ranges, ShardPart::Region(Region::new("eu").unwrap())];
        let prefixes = parts.map(|part| Prefix::shards(&service, Some(&part)));
        let tell = watch::Sender::new(Seen::default());
        let mut copy = Copy {
            wanted: Arc::new(OnceLock::from(BTreeSet::from(prefixes.clone()))),
            tell: tell.clone(),
            store: None,
            entries: BTreeMap::new(),
            complete: BTreeSet::new(),
        };
        let entries = encode_map(&service, &map());
        for (number, prefix) in (1..).zip(&prefixes) {
            assert!(!tell.borrow().known, "a part alone is no map");
            let inside = entries.iter().filter(|(key, _)| prefix.covers(&key.to_string()));
            let entries = inside.map(|(key, value)| {
                (key.to_string().into(), Entry { value: value.clone(), revision: number })
            });
            let mut update = Update::empty(Revision { store: StoreId(1), partition: 0, number });
            let snapshot =
                Snapshot { prefix: prefix.clone(), entries: entries.collect(), age: Duration::ZERO };
            update.snapshots.push(snapshot);
            copy.update(update);
        }
        let seen = tell.borrow();
        assert_eq!((seen.revision.map(|at| at.number), seen.map.as_deref()), (Some(2), Some(&map())));
    }
}
