use std::collections::BTreeMap;

use super::{address, name};
use fairmesh_model::{GatewayBackend, GatewayService, Placement};
use proptest::{collection, prelude::*};

pub(super) fn gateway_backend() -> impl Strategy<Value = GatewayBackend> {
    (name(), 1..=1_000_000_u32, collection::btree_set(address(), 1..4), any::<bool>()).prop_map(
        |(zone, capacity, replicas, is_closed)| GatewayBackend { zone, capacity, replicas, is_closed },
    )
}

pub(super) fn gateway_service() -> impl Strategy<Value = GatewayService> {
    (name(), GatewayService::MIN_BACKENDS..=GatewayService::MAX_BACKENDS)
        .prop_map(|(home_zone, backends)| GatewayService { home_zone, backends })
}

pub(super) fn placement() -> impl Strategy<Value = Placement> {
    let zone = (name(), collection::btree_set(name(), 1..4));
    (name(), zone).prop_map(|(home_zone, zone)| Placement { home_zone, zones: BTreeMap::from([zone]) })
}
