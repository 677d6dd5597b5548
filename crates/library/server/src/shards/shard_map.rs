//! Follows the service's shard map through the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey, Region, Revision, ServiceName, ShardMap, ShardPart, StoreId};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::shard_encoding::decode_map;
use tokio::sync::watch;

use crate::RegistryClient;

/// State of the map.
#[derive(Clone, Debug, Default)]
pub(super) struct MapState {
    /// Last received revision, which is then acknowledged.
    pub(super) revision: Option<Revision>,
    /// Whether it is known if the service has a map.
    pub(super) known: bool,
    /// The map, if the service has one.
    pub(super) map: Option<Arc<ShardMap>>,
}

/// The subscription to the map. Dropping it ends the subscription.
#[derive(Debug)]
pub(super) struct MapSubscription {
    handle: FollowerHandle,
    service: ServiceName,
    wanted: Arc<OnceLock<BTreeSet<Prefix>>>,
}

/// Prepares to follow the map of `service`; nothing is subscribed before [`MapSubscription::subscribe`].
pub(super) fn follow(
    registry: &RegistryClient,
    service: &ServiceName,
    publisher: watch::Sender<MapState>,
) -> MapSubscription {
    let config = FollowerConfig {
        transport: registry.transport().clone(),
        addresses: registry.addresses().to_vec(),
        software: registry.software().to_owned(),
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let wanted = Arc::new(OnceLock::new());
    let copy = MapRecords {
        wanted: Arc::clone(&wanted),
        publisher,
        store: None,
        entries: BTreeMap::new(),
        complete: BTreeSet::new(),
    };
    MapSubscription { handle: Follower::spawn(config, copy), service: service.clone(), wanted }
}

impl MapSubscription {
    /// Subscribes to the parts for endpoints of `region`, or to the whole map if the region is unknown. Only the first
    /// call has an effect.
    pub(super) fn subscribe(&self, region: Option<Region>) {
        let part = |part| Prefix::shards(&self.service, Some(&part));
        let prefixes = match region {
            Some(region) => vec![part(ShardPart::Ranges), part(ShardPart::Region(region))],
            None => vec![Prefix::shards(&self.service, None)],
        };
        // Set before anything can arrive. A second call would subscribe to the same prefixes.
        let _ = self.wanted.set(prefixes.iter().cloned().collect());
        for prefix in prefixes {
            self.handle.subscribe(prefix);
        }
    }

    /// Ends the subscription and tells the upstream, as [`FollowerHandle::close`] does.
    pub(super) async fn close(&self) {
        self.handle.close().await;
    }

    /// Acknowledges that calls are now served by everything up to `revision`.
    pub(super) fn applied(&self, revision: Revision) {
        self.handle.ack(revision);
    }
}

/// The records of the parts of the map.
struct MapRecords {
    wanted: Arc<OnceLock<BTreeSet<Prefix>>>,
    publisher: watch::Sender<MapState>,
    store: Option<StoreId>,
    entries: BTreeMap<RecordKey, Bytes>,
    /// Prefixes whose snapshots have arrived. A map built from only some of the prefixes might wrongly assign no
    /// shard to this server.
    complete: BTreeSet<Prefix>,
}

impl Sink for MapRecords {
    fn update(&mut self, update: Update) {
        if self.store.replace(update.revision.store) != Some(update.revision.store) {
            self.entries.clear();
            self.complete.clear();
        }
        self.apply(&update);
        self.publish(update.revision);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        tracing::info!(%prefix, reason, "the shard map cannot be followed; calls for any key are accepted");
    }
}

impl Mirror for MapRecords {
    fn retain(&mut self, snapshot: &Snapshot) {
        self.entries.retain(|key, _| {
            let key = key.to_string();
            !snapshot.prefix.covers(&key) || snapshot.holds(&key)
        });
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        self.entries.insert(key, record.value.clone());
    }

    fn delete(&mut self, _text: &str, key: &RecordKey) {
        self.entries.remove(key);
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        self.complete.insert(prefix.clone());
    }
}

impl MapRecords {
    fn publish(&self, revision: Revision) {
        let complete = self.wanted.get().is_some_and(|wanted| wanted.is_subset(&self.complete));
        let map = complete
            .then(|| decode_map(self.entries.iter().map(|(key, value)| (key.clone(), value.clone()))));
        self.publisher.send_modify(|seen| {
            seen.revision = Some(revision);
            match map {
                Some(Ok(map)) => (seen.known, seen.map) = (true, map.map(Arc::new)),
                Some(Err(error)) => {
                    tracing::warn!(%error, "the shard map is inconsistent; keeping the last one")
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
    use fairmesh_rib::Entry;
    use fairmesh_wire::shard_encoding::encode_map;

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
    fn server_uses_shard_map_once_all_its_parts_arrived() {
        let service = ServiceName::new("shop/cart").unwrap();
        let parts = [ShardPart::Ranges, ShardPart::Region(Region::new("eu").unwrap())];
        let prefixes = parts.map(|part| Prefix::shards(&service, Some(&part)));
        let publisher = watch::Sender::new(MapState::default());
        let mut copy = MapRecords {
            wanted: Arc::new(OnceLock::from(BTreeSet::from(prefixes.clone()))),
            publisher: publisher.clone(),
            store: None,
            entries: BTreeMap::new(),
            complete: BTreeSet::new(),
        };
        let entries = encode_map(&service, &map());
        for (number, prefix) in (1..).zip(&prefixes) {
            assert!(!publisher.borrow().known, "a part alone is no map");
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
        let seen = publisher.borrow();
        assert_eq!((seen.revision.map(|at| at.number), seen.map.as_deref()), (Some(2), Some(&map())));
    }
}
