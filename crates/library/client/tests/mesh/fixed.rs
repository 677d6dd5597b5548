//! `FixedMesh`, a mesh for unit tests.

use std::time::Duration;

use fairmesh_client::{FaultKind, FixedMesh, Injection, Mesh, ShardKey};
use fairmesh_model::Protocol;
use tokio::time::Instant;

use crate::{
    rig::{ask, get},
    server::Server,
};

#[tokio::test]
async fn fixed_address_mesh_needs_no_agent() {
    let (one, two) = (Server::echo("one").await, Server::echo("two").await);
    let mesh = Mesh::fixed([("shop/cart", one.address), ("shop/cart", two.address)]).await.unwrap();
    let service = mesh.service("shop/cart").unwrap();
    for _ in 0..50 {
        assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    }
    assert!(one.requests() > 0 && two.requests() > 0);
    let undeclared = ask(&mesh.service("shop/stock").unwrap(), get("/")).await.unwrap_err();
    assert_eq!(undeclared.kind(), FaultKind::UnknownService, "{undeclared}");
}

#[tokio::test]
async fn fixed_mesh_change_applies_before_its_method_returns() {
    let (one, two) = (Server::echo("one").await, Server::echo("two").await);
    let fixed = FixedMesh::new().unwrap();
    let service = fixed.mesh().service("shop/cart").unwrap();
    for _ in 0..20 {
        for server in [&one, &two] {
            fixed.serve("shop/cart", Protocol::Http2, [server.address]).await.unwrap();
            let before = server.requests();
            assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
            assert_eq!(server.requests(), before + 1);
        }
        fixed.serve("shop/cart", Protocol::Http2, []).await.unwrap();
        assert_eq!(ask(&service, get("/")).await.unwrap_err().kind(), FaultKind::NoEndpoints);
    }
}

#[tokio::test]
async fn key_chooses_shard_of_fixed_mesh() {
    let (one, two) = (Server::echo("one").await, Server::echo("two").await);
    let fixed = FixedMesh::new().unwrap();
    let shards = [(10, one.address), (20, two.address)];
    fixed.serve_shards("shop/stock", Protocol::Http1, shards).await.unwrap();
    let service = fixed.mesh().service("shop/stock").unwrap();
    for (key, answer) in
        [(10, "one GET / "), (19, "one GET / "), (20, "two GET / "), (u128::MAX - 1, "two GET / ")]
    {
        assert_eq!(ask(&service.clone().key(key), get("/")).await.unwrap(), (200, answer.into()), "{key}");
    }
    for handle in
        [service.clone().key(20_u64), service.clone().key(ShardKey(20)), service.clone().key(20_i64)]
    {
        assert_eq!(ask(&handle, get("/")).await.unwrap().1, "two GET / ");
    }
    let outside = ask(&service.clone().key(9), get("/")).await.unwrap_err();
    assert_eq!(outside.kind(), FaultKind::KeyOutside, "{outside}");
    let disordered =
        fixed.serve_shards("shop/stock", Protocol::Http1, [(20, one.address), (10, two.address)]);
    assert!(disordered.await.is_err());
}

#[tokio::test]
async fn injected_faults_apply_until_removed() {
    let server = Server::echo("one").await;
    let fixed = FixedMesh::new().unwrap();
    fixed.serve("shop/cart", Protocol::Http1, [server.address]).await.unwrap();
    let service = fixed.mesh().service("shop/cart").unwrap();
    for kind in FaultKind::ALL {
        fixed.inject("shop/cart", Injection::Fault(kind)).await.unwrap();
        let fault = ask(&service, get("/")).await.unwrap_err();
        assert_eq!((fault.kind(), server.requests()), (kind, 0), "{fault}");
    }
    fixed.inject("shop/cart", Injection::Status(503)).await.unwrap();
    assert_eq!((ask(&service, get("/")).await.unwrap().0, server.requests()), (503, 0));
    fixed.inject("shop/cart", None).await.unwrap();
    assert_eq!((ask(&service, get("/")).await.unwrap().0, server.requests()), (200, 1));
    assert!(fixed.inject("shop/cart", Injection::Status(200)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn delays_and_timeouts_are_immediate_with_paused_clock() {
    let server = Server::echo("one").await;
    let fixed = FixedMesh::new().unwrap();
    fixed.serve("shop/cart", Protocol::Http1, [server.address]).await.unwrap();
    fixed.inject("shop/cart", Injection::Delay(Duration::from_secs(3600))).await.unwrap();
    let service = fixed.mesh().service("shop/cart").unwrap();
    let began = Instant::now();
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    assert!(began.elapsed() >= Duration::from_secs(3600));
    let fault = ask(&service.timeout(Duration::from_secs(60)), get("/")).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Deadline, "{fault}");
}
