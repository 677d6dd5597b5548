use std::sync::atomic::Ordering;

use axum::{body::Body, http::Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::testing::TestRegistry;

/// Sends `body` as `curl -d` would.
async fn send(test: &TestRegistry, method: &str, path: &str, body: impl Into<Body>) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body.into())
        .unwrap();
    let response = test.registry.router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn post(test: &TestRegistry, path: &str, body: Value) -> (u16, Value) {
    send(test, "POST", path, body.to_string()).await
}

fn endpoints(instance: &str) -> Value {
    json!({"service": "shop/cart", "endpoints": [
        {"instance": instance, "address": "10.0.0.7:80", "region": "eu", "lease": "10s"},
    ]})
}

#[tokio::test]
async fn endpoint_lifecycle_works_over_http() {
    let test = TestRegistry::new();
    assert_eq!(post(&test, "/v1/register", endpoints("a")).await, (200, json!({"revision": 1})));
    let named = |instance: &str| json!({"service": "shop/cart", "instances": [instance]});
    assert_eq!(post(&test, "/v1/renew", named("a")).await, (200, json!({"unknown": []})));
    assert_eq!(post(&test, "/v1/renew", named("b")).await, (200, json!({"unknown": ["b"]})));
    let report = json!({"service": "shop/cart", "reports": [{"instance": "a", "state": "starting"}]});
    assert_eq!(post(&test, "/v1/report", report).await, (200, json!({"revision": 2})));
    let mut drain = named("a");
    drain["deadline"] = "1s".into();
    let drained = json!({"revision": 3, "callersMoved": true, "behind": []});
    assert_eq!(post(&test, "/v1/drain", drain).await, (200, drained));
    post(&test, "/v1/register", endpoints("a")).await;
    assert_eq!(test.state("a").unwrap().as_str(), "draining", "no state was written, so it drains on");
    assert_eq!(post(&test, "/v1/deregister", named("a")).await, (200, json!({"revision": 4})));
}

#[tokio::test]
async fn http_report_does_not_end_drain_by_operator() {
    let test = TestRegistry::new();
    post(&test, "/v1/register", endpoints("a")).await;
    let drained = [crate::testing::any_process("a")];
    test.registry.drain_by_operator(&drained, "alice", std::time::Duration::ZERO).await.unwrap();
    let report = json!({"service": "shop/cart", "reports": [{"instance": "a", "state": "serving"}]});
    assert_eq!(post(&test, "/v1/report", report).await.0, 200);
    assert_eq!(test.state("a").unwrap().as_str(), "draining");
}

#[tokio::test]
async fn shard_map_lifecycle_works_over_http() {
    let test = TestRegistry::new();
    test.registry
        .register(&[
            crate::Registration {
                declaration: Some(fairmesh_model::Service {
                    kind: fairmesh_model::ServiceKind::Sharded,
                    protocol: Default::default(),
                    virtual_address: None,
                    identity: None,
                }),
                ..crate::testing::endpoint("x")
            },
            crate::testing::endpoint("y"),
        ])
        .await
        .unwrap();
    let path = "/v1/shards/shop/cart";
    assert_eq!(send(&test, "GET", path, "").await.0, 404);
    let replicas = json!([{"instance": "x", "region": "eu", "role": "primary"}]);
    let map = json!({"service": "shop/cart", "shards": [{"id": 0, "start": 0, "replicas": replicas}]});
    assert_eq!(send(&test, "PUT", path, map.to_string()).await, (200, json!({"version": 1})));
    let (status, mut read) = send(&test, "GET", path, "").await;
    assert_eq!((status, &read["version"]), (200, &json!(1)));
    assert_eq!(read["shards"], map["shards"]);

    let split = json!({"shard": 0, "at": "0x100"});
    assert_eq!(post(&test, &format!("{path}/split"), split).await, (200, json!({"version": 2})));
    assert_eq!(
        post(&test, &format!("{path}/merge"), json!({"shard": 0})).await,
        (200, json!({"version": 3}))
    );
    read["shards"][0]["id"] = 9.into();
    let (status, conflict) = send(&test, "PUT", path, read.to_string()).await;
    assert_eq!((status, &conflict["field"]), (409, &json!("version")), "{conflict}");

    let shard_move = json!({"shard": 0, "role": "primary", "from": "x", "to": "y"});
    assert_eq!(post(&test, &format!("{path}/moves"), shard_move).await.0, 202);
    let (_, moves) = send(&test, "GET", &format!("{path}/moves"), "").await;
    assert_eq!(moves["moves"][0]["phase"], "starting", "{moves}");
    let ready = json!({"instance": "unregistered", "ready": [0]});
    assert_eq!(post(&test, &format!("{path}/ready"), ready).await.0, 404);
}

#[tokio::test]
async fn http_registry_errors_have_problem_field_and_hint() {
    let test = TestRegistry::new();
    let mut wrong = endpoints("a");
    wrong["endpoints"][0]["address"] = "cart:80".into();
    let (status, error) = post(&test, "/v1/register", wrong).await;
    assert_eq!((status, &error["field"]), (400, &json!("endpoints[0].address")), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("10.0.0.7:8080"), "{error}");
    assert!(error["error"].as_str().unwrap().contains("cart:80"), "{error}");

    let mut unknown = endpoints("a");
    unknown["endpoints"][0]["adress"] = "x".into();
    let (status, error) = post(&test, "/v1/register", unknown).await;
    assert!(status == 400 && error["error"].as_str().unwrap().contains("adress"), "{error}");
    assert_eq!(send(&test, "POST", "/v1/register", "{").await.0, 400);
    let strangers = json!({"service": "shop/cart", "instances": ["a"]});
    assert_eq!(post(&test, "/v1/drain", strangers).await.0, 404);
    assert_eq!(send(&test, "GET", "/v1/register", "").await.0, 405);
    let (status, response) = send(&test, "GET", "/v1/nowhere", "").await;
    assert_eq!((status, &response["error"]), (404, &json!("there is no such path")));
    assert!(response["hint"].as_str().unwrap().contains("docs/http.md"), "{response}");
    let (_, response) = post(&test, "/v1/renew", json!({"servce": "shop/cart"})).await;
    assert!(response["hint"].as_str().unwrap().contains("docs/http.md"), "{response}");

    let (status, error) = send(&test, "POST", "/v1/register", vec![b' '; MAX_BODY + 1]).await;
    assert!(status == 413 && error["hint"].as_str().unwrap().contains("1048576"), "{error}");
    test.store.full.store(true, Ordering::Relaxed);
    let (status, error) = post(&test, "/v1/register", endpoints("a")).await;
    assert!(status == 503 && error["error"].as_str().unwrap().contains("disk is full"), "{error}");
}

#[tokio::test]
async fn shard_loads_and_balance_plans_are_readable_over_http() {
    let test = TestRegistry::new();
    let (status, refusal) = send(&test, "GET", "/v1/shards/shop/cart/plan", "").await;
    assert_eq!((status, &refusal["field"]), (404, &json!("service")), "{refusal}");
    let (status, refusal) = send(&test, "GET", "/v1/shards/shop/cart/plan?threshold=90", "").await;
    assert_eq!((status, &refusal["field"]), (400, &json!("threshold")), "{refusal}");
    let mut sharded = crate::testing::leased("a");
    sharded.declaration = Some(fairmesh_model::Service {
        kind: fairmesh_model::ServiceKind::Sharded,
        protocol: Default::default(),
        virtual_address: None,
        identity: None,
    });
    test.registry.register(&[sharded]).await.unwrap();
    let map = json!({"service": "shop/cart", "shards": [
        {"id": 0, "start": 0, "replicas": [{"instance": "a", "region": "eu", "role": "primary"}]},
    ]});
    let (status, response) = send(&test, "PUT", "/v1/shards/shop/cart", map.to_string()).await;
    assert_eq!(status, 200, "{response}");
    let (status, loads) = send(&test, "GET", "/v1/shards/shop/cart/loads", "").await;
    assert_eq!((status, &loads["servers"][0]["instance"]), (200, &json!("a")), "{loads}");
    assert_eq!(loads["servers"][0]["ageMs"], Value::Null);
    let (status, refusal) = send(&test, "GET", "/v1/shards/shop/cart/plan", "").await;
    assert!(status == 409 && refusal["error"].as_str().unwrap().contains("0 of 1 servers"), "{refusal}");
}
