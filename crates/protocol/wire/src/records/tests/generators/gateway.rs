use std::collections::BTreeMap;

use super::{address, name, service_name};
use fairmesh_model::{GatewayBackend, GatewayService, Placement, Record, RecordKey};
use proptest::{collection, prelude::*};

/// Any record of a gateway, at one of its valid keys.
pub(super) fn gateway_entry() -> impl Strategy<Value = (RecordKey, Record)> {
    prop_oneof![
        (name(), gateway_backend())
            .prop_map(|(name, backend)| (RecordKey::GatewayBackend(name), Record::GatewayBackend(backend))),
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

fn gateway_service() -> impl Strategy<Value = GatewayService> {
    (name(), GatewayService::MIN_BACKENDS..=GatewayService::MAX_BACKENDS)
        .prop_map(|(home_zone, backends)| GatewayService { home_zone, backends })
}

fn placement() -> impl Strategy<Value = Placement> {
    let zone = (name(), collection::btree_set(name(), 1..4));
    (name(), zone).prop_map(|(home_zone, zone)| Placement { home_zone, zones: BTreeMap::from([zone]) })
}
