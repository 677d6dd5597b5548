//! Record keys as text.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fairmesh_model::{
    ChunkHash, DefaultsScope, InstanceId, Label, RecordKey, RecordKind, Region, ServiceName, ShardId,
    ShardPart, Tenant,
};

#[test]
fn every_record_key_parses_as_displayed() {
    let cart = ServiceName::new("shop/cart").unwrap();
    let eu = Region::new("eu").unwrap();
    let keys = [
        RecordKey::Service(cart.clone()),
        RecordKey::Endpoint(cart.clone(), eu.clone(), InstanceId::new("cart-0:80").unwrap()),
        RecordKey::Health(cart.clone(), eu.clone(), InstanceId::new("cart-0:80").unwrap()),
        RecordKey::Policy(cart.clone()),
        RecordKey::ShardManifest(cart.clone(), ShardPart::Ranges),
        RecordKey::MeasuredDistances(eu.clone()),
        RecordKey::RegionDrain(eu.clone()),
        RecordKey::Checker(eu.clone()),
        RecordKey::ShardChunk(cart.clone(), ShardPart::Region(eu), ChunkHash(7)),
        RecordKey::Move(cart.clone(), ShardId(5)),
        RecordKey::RegionTable(cart.clone(), Region::new("eu").unwrap()),
        RecordKey::Workload(cart.clone()),
        RecordKey::Authorization(cart.clone()),
        RecordKey::GatewayService(cart.clone()),
        RecordKey::Placement(cart.clone()),
        RecordKey::GatewayBackend(Label::new("gw-1").unwrap()),
        RecordKey::GatewayQuota(Tenant::new("shop").unwrap()),
        RecordKey::History(RecordKind::Authorization, cart.clone(), 7),
        RecordKey::History(RecordKind::Workload, cart.clone(), 7),
        RecordKey::History(RecordKind::Policy, cart, 42),
        RecordKey::MeshHistory(RecordKind::RoundTrips, 42),
        RecordKey::Regions,
        RecordKey::RoundTrips,
        RecordKey::Hosts,
        RecordKey::TrustBundle,
        RecordKey::Revocations,
        RecordKey::FederatedDomains,
        RecordKey::TokenIssuers,
        RecordKey::DefaultAuthorization,
        RecordKey::PolicyDefaults(DefaultsScope::Mesh),
        RecordKey::PolicyDefaults(DefaultsScope::Tenant(Tenant::new("shop").unwrap())),
        RecordKey::RoleBinding(Label::new("shop-operators").unwrap()),
        RecordKey::JoinedAgent(Label::new("web-1").unwrap()),
    ];
    for key in keys {
        assert_eq!(RecordKind::of(&key.to_string()), Some(key.kind()), "{key}");
        assert_eq!(RecordKey::parse(&key.to_string()), Ok(key));
    }
}

#[test]
fn malformed_record_keys_are_refused() {
    for wrong in [
        "",
        "/",
        "t/shop/services/cart",
        "/t/shop/services",
        "/t/Shop/services/cart",
        "/t/shop/history/endpoints/cart/7",
        "/t/shop/history/roles/cart/7",
        "/g/history/policies/7",
        "/g/history/roles/7",
        "/g/x",
    ] {
        assert!(RecordKey::parse(wrong).is_err(), "{wrong}");
    }
}
