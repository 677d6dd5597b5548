//! Calls that no server can serve. Each reason has its own error, and the call fails without waiting.

use std::collections::BTreeSet;

use fairmesh_client::{FaultKind, ServiceHandle};
use futures_util::FutureExt as _;

use crate::harness::{World, beside_others};

const YAML: &str = "\
{kind: Service, name: shop/empty}
---
{kind: Service, name: shop/cart, type: sharded, protocol: grpc}
---
kind: ShardMap
service: shop/cart
interval: {start: 0, end: 1000}
shards: [{id: 0, start: 0, replicas: [{instance: cart-0, region: eu, role: primary}]}]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undeliverable_calls_fail_fast_with_reason() {
    let _machine = beside_others().await;
    let world = World::start(YAML).await;
    let mesh = world.mesh().await;
    let cart = mesh.service("shop/cart").unwrap();
    let cases: [(ServiceHandle, FaultKind, &str); 5] = [
        (mesh.service("shop/nothing").unwrap(), FaultKind::UnknownService, "fairmesh get services"),
        (mesh.service("shop/empty").unwrap(), FaultKind::NoEndpoints, "shop/empty"),
        (cart.clone(), FaultKind::KeyMissing, "key"),
        (cart.clone().key(5000), FaultKind::KeyOutside, "5000"),
        (cart.key(5).role("witness").unwrap(), FaultKind::NoReplica, "witness"),
    ];
    let mut labels = BTreeSet::new();
    for (service, kind, word) in cases {
        let request = || http::Request::get("/").body(fairmesh_client::Body::empty()).unwrap();
        let first = service.send(request()).await.unwrap_err();
        assert_eq!(first.kind(), kind, "{first}");
        // A known failure is reported at the first poll of the next call.
        let next = service.send(request()).now_or_never();
        let fault = next.unwrap_or_else(|| panic!("{kind:?} waits for something")).unwrap_err();
        assert_eq!(fault.kind(), kind, "{fault}");
        assert!(fault.message().contains(word), "{fault}");
        assert!(fault.message().contains(&service.name().to_string()), "{fault}");
        labels.insert(kind.label());
    }
    assert_eq!(labels.len(), 5, "each has a name of its own: {labels:?}");
}
