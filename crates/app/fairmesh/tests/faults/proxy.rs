//! Programs that know nothing of Fairmesh make calls through a proxy.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::Protocol;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::{Proxy, Spec, World, beside_others, until};

fn client(http2: bool) -> Client<HttpConnector, Empty<Bytes>> {
    Client::builder(TokioExecutor::new()).http2_only(http2).build_http()
}

fn get(to: &str, host: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{to}/items?q=1")).header("host", host).body(Empty::new()).unwrap()
}

async fn call(http2: bool, request: Request<Empty<Bytes>>) -> Response<Bytes> {
    let (head, body) = client(http2).request(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

/// Raw response, over a separate connection.
async fn raw(to: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_routes_by_host_whatever_protocols_caller_and_server_speak() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = Spec::new("shop/one", "one-http1", Protocol::Http1).here(&world).await;
    let two = Spec::new("shop/two", "two-http2", Protocol::Http2).here(&world).await;
    let proxy = Proxy::start(&world).await;
    for (host, instance) in [("one.shop", "one-http1"), ("two.shop:80", "two-http2")] {
        let answer = call(false, get(&proxy.by_host, host)).await;
        assert_eq!(
            (answer.status(), &answer.headers()["x-instance"]),
            (StatusCode::OK, &instance.parse().unwrap())
        );
        // HTTP/2 names the host in the URI, as do programs with a configured proxy.
        let authority =
            format!("GET http://{host}/ HTTP/1.1\r\nhost: other.shop\r\nconnection: close\r\n\r\n");
        let answer = raw(&proxy.by_host, &authority).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(instance), "{answer}");
    }
    for instance in ["one-http1", "two-http2"] {
        let host = if instance.starts_with("one") { "one.shop" } else { "two.shop" };
        let answer = call(true, get(&proxy.by_host, host)).await;
        assert_eq!(answer.headers()["x-instance"], instance);
    }
    let answer = call(false, get(&proxy.for_one, "whatever.example")).await;
    assert_eq!(answer.headers()["x-instance"], "one-http1", "this listener is for one service");

    let mut grpc = get(&proxy.by_host, "two.shop");
    grpc.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    assert_eq!(call(true, grpc).await.headers()["grpc-status"], "0");

    let mut told = get(&proxy.by_host, "one.shop");
    told.headers_mut().insert("x-fairmesh-explain", "true".parse().unwrap());
    let answer = call(false, told).await;
    let decision = answer.headers()["x-fairmesh-decision"].to_str().unwrap().to_owned();
    let expected = format!("shop/one; one-http1 {} eu ", one.address);
    assert!(decision.starts_with(&expected) && decision.ends_with("ms 200"), "{decision}");
    drop((one, two));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_split_by_key_keeps_user_on_one_version() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = Spec::new("shop/one", "now", Protocol::Http1).here(&world).await;
    let two = Spec::new("shop/two", "next", Protocol::Http1).here(&world).await;
    let split = "{kind: Policy, service: shop/one, routes: [{name: canary, splitKey: [{header: x-user}, {query: q}], \
        split: [{service: shop/one, weight: 50}, {service: shop/two, weight: 50}]}]}";
    world.apply(split).await.ok();
    let proxy = Proxy::start(&world).await;
    let answered = async |user: &str| {
        let mut request = get(&proxy.by_host, "one.shop");
        request.headers_mut().insert("x-user", user.parse().unwrap());
        call(false, request).await.headers()["x-instance"].to_str().unwrap().to_owned()
    };
    let users: Vec<String> = (0..20).map(|user| format!("user-{user}")).collect();
    let mut next = 0;
    for user in &users {
        let instance = answered(user).await;
        next += usize::from(instance == "next");
        for _ in 0..5 {
            assert_eq!(answered(user).await, instance, "{user}");
        }
    }
    assert!((3..18).contains(&next), "{next} of 20");
    // The second hash source is a query parameter that all of these calls have.
    let first = call(false, get(&proxy.by_host, "one.shop")).await.headers()["x-instance"].clone();
    for _ in 0..10 {
        let again = call(false, get(&proxy.by_host, "one.shop")).await;
        assert_eq!(again.headers()["x-instance"], first);
    }
    drop((one, two));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_requests_get_explanation_and_are_counted() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let unknown = call(false, get(&proxy.by_host, "nobody.shop")).await;
    assert_eq!(
        (unknown.status(), &unknown.headers()["x-fairmesh-fault"]),
        (StatusCode::NOT_FOUND, &"unknown_service".parse().unwrap())
    );
    let mut grpc = get(&proxy.by_host, "nobody.shop");
    grpc.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
    let grpc = call(true, grpc).await;
    assert_eq!((grpc.status(), &grpc.headers()["grpc-status"]), (StatusCode::OK, &"5".parse().unwrap()));
    let nameless = call(false, get(&proxy.by_host, "localhost")).await;
    assert_eq!(nameless.status(), StatusCode::NOT_FOUND);
    assert!(String::from_utf8_lossy(nameless.body()).contains("Host: service.tenant"));
    // Two servers may interpret a content-length together with chunks differently; the request must be forwarded as one
    // or not at all.
    let smuggled = "POST / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\
        connection: close\r\n\r\n0\r\n\r\nGET /second HTTP/1.1\r\nhost: one.shop\r\n\r\n";
    let answer = raw(&proxy.by_host, smuggled).await;
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");

    assert_eq!(call(false, get(&proxy.by_host, "one.shop")).await.status(), StatusCode::OK);
    let metrics = proxy.page("/metrics").await;
    assert!(!metrics.contains("shop/nobody"), "undeclared names are no labels: {metrics}");
    assert!(
        metrics.contains("fairmesh_proxy_responses_total{service=\"shop/one\",class=\"2xx\","),
        "{metrics}"
    );
    let services: serde_json::Value = serde_json::from_str(&proxy.page("/services").await).unwrap();
    assert_eq!(services.as_array().unwrap().len(), 1, "{services}");
    let line = r#""service":"shop/one","method":"GET","path":"/items","status":200"#;
    until("it is in the log", async || proxy.process.log().contains(line)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_disconnects_silent_client() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    for beginning in ["", "PRI * HT", "GET / HTTP/1.1\r\nhost: one.sh"] {
        let ended = tokio::time::timeout(Duration::from_secs(20), raw(&proxy.by_host, beginning)).await;
        assert!(ended.is_ok(), "still open after {beginning:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_proxy_finishes_requests_in_flight_even_without_agent() {
    let _machine = beside_others().await;
    let mut world = World::start("").await;
    let work = Duration::from_secs(1);
    let _one = Spec { work, ..Spec::new("shop/one", "one", Protocol::Http1) }.here(&world).await;
    let mut proxy = Proxy::start(&world).await;
    assert_eq!(call(false, get(&proxy.for_one, "one.shop")).await.status(), StatusCode::OK);
    world.agent.kill().await;
    let answer = call(false, get(&proxy.for_one, "one.shop")).await;
    assert_eq!(answer.status(), StatusCode::OK, "the proxy decides by what it has");

    let calls = [false, true].map(|http2| {
        let request = get(&proxy.for_one, "one.shop");
        tokio::spawn(async move { call(http2, request).await })
    });
    until("both are under way", async || proxy.page("/services").await.contains("\"inFlight\":2")).await;
    proxy.process.signal(Signal::TERM);
    until("no new connection is accepted", async || TcpStream::connect(&proxy.for_one).await.is_err()).await;
    for call in calls {
        assert_eq!(call.await.unwrap().status(), StatusCode::OK);
    }
    assert!(proxy.process.end().await.success());
}
