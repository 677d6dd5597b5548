use std::collections::BTreeMap;

use super::{address, name, service_name};
use fairmesh_model::{GatewayBackend, GatewayQuota, GatewayService, Placement, Record, RecordKey};
use proptest::{collection, prelude::*};

/// Any gateway record, with one of its valid keys.
pub(super) fn gateway_entry() -> impl Strategy<Value = (RecordKey, Record)> {
    prop_oneof![
        (name(), gateway_backend())
            .prop_map(|(name, backend)| (RecordKey::GatewayBackend(name), Record::GatewayBackend(backend))),
        (service_name(), gateway_quota())
            .prop_map(|(name, quota)| (RecordKey::GatewayQuota(name.tenant), Record::GatewayQuota(quota))),
        (service_name(), gateway_service())
            .prop_map(|(name, used)| (RecordKey::GatewayService(name), Record::GatewayService(used))),
        (service_name(), placement())
            .prop_map(|(name, placed)| (RecordKey::Placement(name), Record::Placement(placed))),
    ]
}

fn gateway_backend() -> impl Strategy<Value = GatewayBackend> {
    (name(), 1..=1_000_000_u32, collection::btree_set(address(), 1..4), any::<bool>()).prop_map(
        |(zone, capacity, replicas, is_closed)| GatewayBackend { zone, capacity, replicas, is_closed },
    )
}

fn gateway_quota() -> impl Strategy<Value = GatewayQuota> {
    let limit = || proptest::option::of(1..=u32::MAX);
    let services = proptest::option::of(1..=65_536_u32);
    (limit(), limit(), limit(), services, limit(), 1..=u32::MAX).prop_map(
        |(connections, handshakes_per_second, requests, services, routes, backends)| GatewayQuota {
            connections,
            handshakes_per_second,
            requests,
            services,
            routes,
            backends: Some(backends),
        },
    )
}

fn gateway_service() -> impl Strategy<Value = GatewayService> {
    (name(), GatewayService::MIN_BACKENDS..=GatewayService::MAX_BACKENDS)
        .prop_map(|(home_zone, backends)| GatewayService { home_zone, backends })
}

fn placement() -> impl Strategy<Value = Placement> {
    let zone = (name(), collection::btree_set(name(), 1..4));
    (name(), zone, 0..3_u32).prop_map(|(home_zone, zone, added)| Placement {
        home_zone,
        zones: BTreeMap::from([zone]),
        added,
    })
}
