//! The replicas of the gateway that serve a service, from the records that the node follows.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use fairmesh_edge::services::virtual_addresses::VirtualAddresses;
use fairmesh_model::{
    Label, Placement, Prefix, Record, RecordKey, RecordKind, Revision, ServiceName, Tenant, Zone,
};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::record_encoding;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::config::NodeConfig;

/// Follows the placements of a tenant's services.
#[derive(Debug)]
pub(crate) struct Placements {
    records: Arc<RwLock<PlacementRecords>>,
    zone: Option<Zone>,
    tenant: Tenant,
    _upstream: FollowerHandle,
    _acks: AbortOnDropHandle<()>,
}

/// Local copy of the records.
#[derive(Debug, Default)]
struct PlacementRecords {
    addresses: VirtualAddresses,
    placements: BTreeMap<ServiceName, Placement>,
    backends: BTreeMap<Label, BTreeSet<SocketAddr>>,
    /// Whether all backends have arrived, or may not be read.
    are_backends_known: bool,
}

struct PlacementSink {
    records: Arc<RwLock<PlacementRecords>>,
    applied: watch::Sender<Option<Revision>>,
}

impl Placements {
    /// Follows the records of one of the node's agents at a time, with the identity of the first pod. `None`
    /// for a node without pods or without an agent.
    pub(crate) fn follow(config: &NodeConfig) -> Option<Self> {
        let (pod, transport) = config.pods.first().filter(|_| !config.registry.is_empty())?;
        let tenant = pod.service.tenant.clone();
        let records = Arc::<RwLock<PlacementRecords>>::default();
        let (applied, mut revisions) = watch::channel(None);
        let sink = PlacementSink { records: Arc::clone(&records), applied };
        let follower = FollowerConfig {
            addresses: config.registry.clone(),
            transport: transport.clone(),
            software: "node, placements".into(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let upstream = Follower::spawn(follower, sink);
        upstream.subscribe(Prefix::tenant(&tenant, RecordKind::Service));
        upstream.subscribe(Prefix::tenant(&tenant, RecordKind::Placement));
        upstream.subscribe(Prefix::gateway_backends());
        let acknowledged = upstream.clone();
        let acks = tokio::spawn(async move {
            while revisions.changed().await.is_ok() {
                let revision: Option<Revision> = *revisions.borrow_and_update();
                revision.into_iter().for_each(|revision| acknowledged.ack(revision));
            }
        });
        let (zone, acks) = (config.zone.clone(), AbortOnDropHandle::new(acks));
        Some(Self { records, zone, tenant, _upstream: upstream, _acks: acks })
    }

    /// The service at a virtual address.
    pub(crate) fn service_at(&self, address: SocketAddr) -> Option<ServiceName> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        records.addresses.service_at(&self.tenant, address).cloned()
    }

    /// Whether a replica may refuse a service: the gateway has backends, or may have backends whose records
    /// have not arrived.
    pub(crate) fn are_used(&self) -> bool {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        !records.are_backends_known || !records.backends.is_empty()
    }

    /// The replicas that serve a service, in the order in which they are tried; empty for a service without a
    /// placement. `turn` rotates the backends of each zone and the replicas of each backend.
    pub(crate) fn replicas_of(&self, service: &ServiceName, turn: usize) -> Vec<SocketAddr> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        records.replicas_of(service, self.zone.as_ref(), turn)
    }
}

impl PlacementRecords {
    fn replicas_of(&self, service: &ServiceName, zone: Option<&Zone>, turn: usize) -> Vec<SocketAddr> {
        let Some(placement) = self.placements.get(service) else { return Vec::new() };
        let mut replicas = Vec::new();
        for backends in placement.in_order(zone) {
            // Divided, so that each backend comes first equally often, and each of its replicas too.
            let turn_within = turn / backends.len().max(1);
            let known = rotated(backends, turn).filter_map(|name| self.backends.get(name));
            known.for_each(|addresses| replicas.extend(rotated(addresses, turn_within)));
        }
        replicas
    }
}

/// The members of a set, rotated by `turn`.
fn rotated<T>(set: &BTreeSet<T>, turn: usize) -> impl Iterator<Item = &T> {
    set.iter().cycle().skip(turn % set.len().max(1)).take(set.len())
}

impl Sink for PlacementSink {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        self.mark_current(prefix);
        tracing::info!(%prefix, reason, "this node may not read where services are placed; it uses the replicas of --gateway");
    }
}

impl Mirror for PlacementSink {
    fn retain(&mut self, snapshot: &Snapshot) {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let is_kept = |key: RecordKey| {
            let key = key.to_string();
            !snapshot.prefix.covers(&key) || snapshot.holds(&key)
        };
        records.placements.retain(|service, _| is_kept(RecordKey::Placement(service.clone())));
        records.backends.retain(|name, _| is_kept(RecordKey::GatewayBackend(name.clone())));
        let named: Vec<ServiceName> = records.addresses.services().cloned().collect();
        for service in named.into_iter().filter(|service| !is_kept(RecordKey::Service(service.clone()))) {
            records.addresses.set(&service, None);
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        match (record_encoding::decode(&key, record.value), key) {
            (Ok(Record::Service(declared)), RecordKey::Service(service)) => {
                records.addresses.set(&service, declared.virtual_address);
            }
            (Ok(Record::Placement(placement)), RecordKey::Placement(service)) => {
                records.placements.insert(service, placement);
            }
            (Ok(Record::GatewayBackend(backend)), RecordKey::GatewayBackend(name)) => {
                records.backends.insert(name, backend.replicas);
            }
            (Ok(_), _) => {}
            // The last valid record stays in force.
            (Err(error), key) => {
                tracing::error!(%error, %key, "a record is not understood; keeping the last one");
            }
        }
    }

    fn delete(&mut self, _: &str, key: &RecordKey) {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        match key {
            RecordKey::Service(service) => records.addresses.set(service, None),
            RecordKey::Placement(service) => drop(records.placements.remove(service)),
            RecordKey::GatewayBackend(name) => drop(records.backends.remove(name)),
            _ => {}
        }
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        if *prefix == Prefix::gateway_backends() {
            self.records.write().unwrap_or_else(PoisonError::into_inner).are_backends_known = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_replicas_are_ordered_by_zone_and_backend() {
        let name = |text: &str| Label::new(text).unwrap();
        let zone = |text: &str| Zone::new(text).unwrap();
        let address = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let zones = [(zone("a"), [name("a1"), name("a2")].into()), (zone("b"), [name("b1")].into())];
        let (pinned, connection_limit) = (None, None);
        let placement =
            Placement { home_zone: zone("a"), zones: zones.into(), added: 0, pinned, connection_limit };
        let service = ServiceName::new("red/web").unwrap();
        let mut records = PlacementRecords::default();
        records.placements.insert(service.clone(), placement);
        for (backend, ports) in [("a1", &[1, 2][..]), ("a2", &[3]), ("b1", &[4]), ("b2", &[5])] {
            records.backends.insert(name(backend), ports.iter().map(|port| address(*port)).collect());
        }
        let ports = |zone: Option<&Zone>, turn| {
            let replicas = records.replicas_of(&service, zone, turn);
            replicas.iter().map(SocketAddr::port).collect::<Vec<_>>()
        };
        assert_eq!(ports(None, 0), [1, 2, 3, 4], "replicas, backends, other zones");
        assert_eq!(ports(None, 1), [3, 1, 2, 4]);
        assert_eq!(ports(None, 2), [2, 1, 3, 4]);
        assert_eq!(ports(Some(&zone("b")), 0), [4, 1, 2, 3], "the own zone comes first");
        assert!(records.replicas_of(&ServiceName::new("red/api").unwrap(), None, 0).is_empty());
    }
}
