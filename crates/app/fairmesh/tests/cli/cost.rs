//! The cost of egress from the bytes that callers counted, and forecasts of traffic changes.

use axum::{Router, routing::post};
use fairmesh_client::{Body, Mesh as Library};
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_wire::transport::Address;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::{net::TcpListener, runtime::Runtime};

use super::support::{Mesh, fairmesh, wait_until};

const MESH: &str = "\
kind: Topology
regions: [{name: eu}, {name: us}]
roundTrips: [{between: [eu, us], rtt: 20ms}]
egress: {price: $0.01, prices: [{from: us, to: eu, price: $0.05}]}
---
kind: Service
name: shop/cart
";

const CALLS: u64 = 20;
const REQUEST: usize = 1_000;
const RESPONSE: usize = 100_000;

/// Calls a server in another region.
async fn call(caller: Address, server: Address) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let registered = MeshServer::builder("shop/cart").listener(&listener).unwrap();
    let registered = registered.agent(server).start().await.unwrap();
    let router = Router::new().route("/", post(|| async { "x".repeat(RESPONSE) }));
    tokio::spawn(async move { serve_http(listener, router, &registered).await });
    let library = Library::builder().agent(caller).client_id("web").connect().await.unwrap();
    let cart = library.service("shop/cart").unwrap();
    for _ in 0..CALLS {
        let body = Body::from("y".repeat(REQUEST));
        let response = cart.send(Request::post("/").body(body).unwrap()).await.unwrap();
        response.into_body().collect().await.unwrap();
    }
    // Both must report until the runtime ends.
    std::mem::forget(library);
}

#[test]
fn egress_bill_multiplies_counted_bytes_by_topology_prices() {
    let mesh = Mesh::start();
    mesh.apply(MESH).ok();
    let (eu, us) = (mesh.agent("eu"), mesh.agent("us"));
    let runtime = Runtime::new().unwrap();
    runtime.block_on(call(eu.address().parse().unwrap(), us.address().parse().unwrap()));
    let bill = |args: &[&str]| mesh.run(&[&["cost", "--egress", "--json"], args].concat()).json();
    wait_until("all calls are reported", || bill(&[])["total"]["calls"] == CALLS);
    let regions = bill(&["--by", "region"]);
    let row = &regions["rows"][0];
    assert_eq!((&row["from"], &row["to"]), (&json!("eu"), &json!("us")), "{regions}");
    let bytes = [REQUEST, RESPONSE].map(|size| CALLS * size as u64);
    assert_eq!((&row["requestBytes"], &row["responseBytes"]), (&json!(bytes[0]), &json!(bytes[1])));
    let dollars = (bytes[0] as f64 * 0.01 + bytes[1] as f64 * 0.05) / 1e9;
    assert!((row["dollars"].as_f64().unwrap() - dollars).abs() < 1e-12, "{regions}");
    assert_eq!(regions["total"]["dollars"], row["dollars"]);
    assert_eq!(bill(&["shop/cart", "--by", "service"])["rows"][0]["service"], "shop/cart");
    let table = mesh.run(&["cost", "--egress", "--tenant", "shop", "--window", "10m"]).ok();
    assert!(table.contains("20.0 kB") && table.contains("2.0 MB"), "{table}");
    runtime.shutdown_background();
}

#[test]
fn what_if_states_why_it_has_no_prediction() {
    let mesh = Mesh::with_shop();
    let what_if = |args: &[&str]| mesh.run(&[&["traffic", "what-if"], args].concat());
    assert!(what_if(&[]).fails(2).contains("nothing would change"));
    assert!(what_if(&["--demand", "eu=-1"]).fails(2).contains("is no factor"));
    assert!(what_if(&["--lose", "eu"]).fails(1).contains("no service asks for the optimizer"));
    mesh.apply("{kind: Policy, service: shop/catalog, traffic: {planner: optimizer}}").ok();
    wait_until("the service is planned for", || {
        what_if(&["--demand", "2"]).fails(1).contains("shop/catalog: no region has serving endpoints")
    });
    let unknown = what_if(&["--lose", "ue", "--demand", "us=2"]).fails(2);
    assert!(unknown.contains("has the region ue") && unknown.contains("known are: eu, us"), "{unknown}");
    let piped = |yaml| fairmesh(&mesh.address(), &["traffic", "what-if", "-f", "-"], yaml);
    let unknown = piped("{kind: Policy, service: shop/catalogue, traffic: {planner: optimizer}}").fails(2);
    assert!(unknown.contains("service shop/catalogue is not declared"), "{unknown}");
    let refused = piped("{kind: Service, name: shop/x}").fails(2);
    assert!(refused.contains("kind Service is not predicted"), "{refused}");
    let none = piped("{kind: Policy, service: shop/catalog, traffic: {planner: none}}").fails(1);
    assert!(
        none.contains("shop/catalog: no region has serving endpoints"),
        "the present is not known: {none}"
    );
}
