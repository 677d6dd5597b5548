//! Routes to services of other tenants, through each component that picks endpoints.

use fairmesh_model::Protocol;
use fairmesh_wire::lookaside::v1::PickRequest;
use tonic::Code;

use crate::{
    harness::{Proxy, Spec, World, beside_others, read_head, say, until},
    lookaside::Lookaside,
};

/// A route by the operator of tenant red that sends calls to a service of tenant blue.
const ROUTE: &str = "\
kind: Policy
service: red/api
routes:
  - name: taken
    match: {path: {prefix: /}}
    split: [{service: blue/vault, weight: 1}]
    rewrite: {path: {full: /v1/delete-all}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn route_reaches_other_tenant_only_if_its_policy_consents() {
    let _machine = beside_others().await;
    let world =
        World::start("{kind: Service, name: red/api}\n---\n{kind: Service, name: blue/vault}\n").await;
    let _vault = Spec::new("blue/vault", "vault-0", Protocol::Http1).here(&world).await;
    world.serves("blue/vault", "vault-0").await;
    let applied = world.apply(ROUTE).await;
    assert!(applied.err.contains("until the policy of blue/vault accepts them"), "{applied:?}");
    let (proxy, lookaside) = (Proxy::start(&world).await, Lookaside::start(&world, "").await);
    let requests = [
        "POST /mine HTTP/1.1\r\nhost: api.red\r\ncontent-length: 0\r\n\r\n",
        "POST /mine HTTP/1.1\r\nhost: api.red\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ];
    let call = async |request: &str| read_head(&mut say(&proxy.by_host, request).await).await;
    until("the route is known", async || call(requests[0]).await.contains("route_not_accepted")).await;
    for request in requests {
        let refused = call(request).await;
        assert!(refused.starts_with("http/1.1 403 "), "{refused}");
        assert!(refused.contains("\r\nx-fairmesh-fault: route_not_accepted\r\n"), "{refused}");
    }
    let mut caller = lookaside.caller().await;
    let pick = || PickRequest { service: "red/api".into(), endpoints: 1, ..PickRequest::default() };
    let refused = caller.pick(pick()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let explained = world.cli(&["explain", "red/api", "--region", "eu", "--path", "/x"]).await;
    assert!(format!("{explained:?}").contains("does not accept routes from red/api"), "{explained:?}");
    // The tenant's own calls continue.
    let own = call("GET / HTTP/1.1\r\nhost: vault.blue\r\n\r\n").await;
    assert!(own.starts_with("http/1.1 200 "), "{own}");

    world.apply("{kind: Policy, service: blue/vault, acceptRoutesFrom: ['red/*']}\n").await.ok();
    until("the consent is known", async || call(requests[0]).await.starts_with("http/1.1 200 ")).await;
    until("the lookaside knows it", async || caller.pick(pick()).await.is_ok()).await;
}
