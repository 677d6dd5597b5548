use std::collections::BTreeMap;

use super::{address, name, service_name};
use fairmesh_model::{
    ConnectionLimit, GatewayBackend, GatewayQuota, GatewayService, Placement, PlacementPin, Record,
    RecordKey, Throttle,
};
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
    let replicas = collection::btree_set(address(), 0..4);
    (name(), 1..=1_000_000_u32, replicas, any::<bool>(), any::<bool>()).prop_map(
        |(zone, capacity, replicas, is_closed, is_sandbox)| GatewayBackend {
            zone,
            capacity,
            replicas,
            is_closed,
            is_sandbox,
        },
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
    let throttle = prop_oneof![Just(Throttle::Agreed), Just(Throttle::Ask), Just(Throttle::Never)];
    let backends = GatewayService::MIN_BACKENDS..=GatewayService::MAX_BACKENDS;
    (name(), backends, any::<bool>(), throttle).prop_map(|(home_zone, backends, grows, throttle)| {
        GatewayService { home_zone, backends, grows, throttle }
    })
}

fn placement() -> impl Strategy<Value = Placement> {
    let zone = (name(), collection::btree_set(name(), 1..4));
    let pin = (".{0,9}", any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
        |(reason, at_ms, ends_connections, is_sandbox)| PlacementPin {
            reason,
            at_ms,
            ends_connections,
            is_sandbox,
        },
    );
    let limit = (1..=u32::MAX, ".{0,9}", any::<u64>(), any::<bool>()).prop_map(
        |(per_second, reason, at_ms, is_automatic)| ConnectionLimit {
            per_second,
            reason,
            at_ms,
            is_automatic,
        },
    );
    let (pin, limit) = (proptest::option::of(pin), proptest::option::of(limit));
    (name(), zone, 0..3_u32, pin, limit).prop_map(|(home_zone, zone, added, pinned, connection_limit)| {
        Placement { home_zone, zones: BTreeMap::from([zone]), added, pinned, connection_limit }
    })
}
