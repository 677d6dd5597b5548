//! Successful calls over every protocol, and errors that are returned at once.

use std::time::Duration;

use fairmesh_client::{Body, FaultKind, Retry, ServiceHandle};
use fairmesh_headers::Deadline;
use fairmesh_model::{Protocol, ServiceKind};
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tower::ServiceExt as _;

use crate::{
    rig::{Rig, ask, get, map, post},
    server::{Server, text},
};

#[tokio::test]
async fn call_by_service_name_works_over_http1_and_http2() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    for (name, protocol) in [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2)] {
        rig.replicated(name, protocol, &[server.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service(name).unwrap();
        for _ in 0..20 {
            assert_eq!(ask(&service, get("/items?x=1")).await.unwrap(), (200, "a GET /items ".into()));
            assert_eq!(ask(&service, post("/add", "tea")).await.unwrap(), (200, "a POST /add tea".into()));
        }
        let stats = mesh.stats();
        assert_eq!(
            (stats.calls, stats.attempts, stats.connections_opened, stats.connection_reuses),
            (40, 40, 1, 39),
            "{name}"
        );
        assert_eq!(stats.data_age, Duration::ZERO);
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn server_receives_host_key_role_and_deadline_headers() {
    let rig = Rig::start().await;
    let server = Server::start(async |request: Request<bytes::Bytes>| {
        let names = ["host", "x-fairmesh-key", "x-fairmesh-role", "x-fairmesh-deadline"];
        let told =
            names.map(|name| request.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned());
        let authority = request.uri().authority().map_or("-", |a| a.as_str());
        text(200, format!("{authority} {}", told.join(" ")))
    })
    .await;
    for (name, protocol) in [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2)] {
        rig.replicated(name, protocol, &[server.address]);
        let service = rig.mesh().await.service(name).unwrap().timeout(Duration::from_millis(900));
        let (_, told) = ask(&service.clone().key(618).role("primary").unwrap(), get("/")).await.unwrap();
        let words: Vec<_> = told.split(' ').collect();
        let host = format!("{}.shop", name.strip_prefix("shop/").unwrap());
        let (authority, header) = if protocol == Protocol::Http1 { ("-", &*host) } else { (&*host, "-") };
        assert_eq!(words[..4], [authority, header, "618", "primary"]);
        assert!((1..=900).contains(&words[4].parse::<u64>().unwrap()), "{told}");

        let request = Request::get("http://own.example:81/x").header("x-fairmesh-deadline", "300");
        let request = request.header("x-fairmesh-key", "0xff").body(Body::empty()).unwrap();
        let (_, told) = ask(&service, request).await.unwrap();
        let words: Vec<_> = told.split(' ').collect();
        assert!(words.contains(&"own.example:81") && words.contains(&"0xff"), "{told}");
        assert!(words[4].parse::<u64>().unwrap() <= 300, "an incoming deadline shortens: {told}");

        let request = Request::get("http://alice:secret@own.example/x").body(Body::empty()).unwrap();
        let (_, told) = ask(&service, request).await.unwrap();
        assert!(told.contains("own.example") && !told.contains("secret"), "credentials are not sent: {told}");

        let request = Request::get("http://own.example/x").header("host", "virtual.example");
        let (_, told) = ask(&service, request.body(Body::empty()).unwrap()).await.unwrap();
        assert!(
            told.contains("virtual.example") && !told.contains("own"),
            "one host by any protocol: {told}"
        );

        for host in ["no host", "a:80x", "a:65536", "a..", "user@a", ""] {
            let request = Request::get("/x").header("host", host).body(Body::empty()).unwrap();
            assert_eq!(ask(&service, request).await.unwrap_err().kind(), FaultKind::Invalid, "{host}");
        }
        let request = Request::get("http://own.example:80x/x").body(Body::empty());
        assert_eq!(ask(&service, request.unwrap()).await.unwrap_err().kind(), FaultKind::Invalid);
    }
}

#[tokio::test]
async fn deadline_is_propagated_from_hop_to_hop() {
    let rig = Rig::start().await;
    let server = Server::start(async |request: Request<bytes::Bytes>| {
        let left = request.headers().get("x-fairmesh-deadline");
        text(200, left.map_or("none", |left| left.to_str().unwrap()))
    })
    .await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let mut headers = http::HeaderMap::new();
    assert_eq!(Deadline::read(&headers), None);
    headers.insert("x-fairmesh-deadline", 9_000.into());
    let given = Deadline::read(&headers).unwrap();
    let told = async |service: &ServiceHandle, inherited: Option<Deadline>| {
        let mut request = get("/");
        if let Some(deadline) = inherited {
            request.extensions_mut().insert(deadline);
        }
        let (_, left) = ask(service, request).await.unwrap();
        left.parse::<u64>().ok()
    };
    assert_eq!(told(&service, None).await, None, "the call has no deadline");
    let is_within = |told: Option<u64>, most| told.is_some_and(|told| told <= most);
    assert!(is_within(told(&service, Some(given)).await, 9_000));
    assert!(is_within(told(&service.clone().deadline(given), None).await, 9_000));
    let sooner = service.clone().deadline(given.instant() - Duration::from_secs(2));
    assert!(is_within(told(&sooner, Some(given)).await, 7_000), "the earliest applies");
    let hasty = service.clone().deadline(given).timeout(Duration::from_secs(1));
    assert!(is_within(told(&hasty, None).await, 1_000));

    let requests = server.requests();
    let over = service.deadline(tokio::time::Instant::now().into_std());
    let fault = ask(&over, get("/")).await.unwrap_err();
    assert_eq!((fault.kind(), fault.retry()), (FaultKind::Deadline, Retry::Unsent));
    assert_eq!(server.requests(), requests, "a call that is over is not sent");
}

#[tokio::test]
async fn service_handle_is_tower_service_for_any_body() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http2, &[server.address]);
    let service = rig.mesh().await.service("shop/one").unwrap();
    // A body that is not ready when the call begins.
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let body = StreamBody::new(futures_util::stream::unfold(receiver, async |mut receiver| {
        let chunk: bytes::Bytes = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(Frame::data(chunk)), receiver))
    }));
    let call = tokio::spawn(service.oneshot(Request::post("/up").body(body).unwrap()));
    for _ in 0..3 {
        sender.send("tea ".into()).await.unwrap();
    }
    drop(sender);
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "a POST /up tea tea tea ");
}

#[tokio::test]
async fn calls_to_uncallable_services_fail_fast_with_distinct_errors() {
    let rig = Rig::start().await;
    rig.service("shop/empty", ServiceKind::Replicated, Protocol::Http1);
    rig.service("shop/sharded", ServiceKind::Sharded, Protocol::Http1);
    rig.shard_map("shop/sharded", &map(1, &[]));
    let mesh = rig.mesh().await;
    let begun = tokio::time::Instant::now();
    for (name, kind) in [("shop/none", FaultKind::UnknownService), ("shop/empty", FaultKind::NoEndpoints)] {
        let fault = ask(&mesh.service(name).unwrap(), get("/")).await.unwrap_err();
        assert_eq!(fault.kind(), kind, "{fault}");
        assert!(fault.to_string().contains(name), "{fault}");
    }
    let sharded = mesh.service("shop/sharded").unwrap();
    assert_eq!(ask(&sharded, get("/")).await.unwrap_err().kind(), FaultKind::KeyMissing);
    let wrong = Request::get("/").header("x-fairmesh-key", "tea").body(Body::empty()).unwrap();
    assert_eq!(ask(&sharded, wrong).await.unwrap_err().kind(), FaultKind::Invalid);
    assert_eq!(ask(&sharded.clone().key(5), get("/")).await.unwrap_err().kind(), FaultKind::NoReplica);
    assert_eq!(ask(&sharded.key(100), get("/")).await.unwrap_err().kind(), FaultKind::KeyOutside);
    assert!(begun.elapsed() < Duration::from_secs(10), "no fault waits for its deadline");
    assert!(mesh.service("cart").is_err());

    rig.service("shop/none", ServiceKind::Replicated, Protocol::Http1);
    let service = mesh.service("shop/none").unwrap();
    let appeared = async {
        while ask(&service, get("/")).await.unwrap_err().kind() != FaultKind::NoEndpoints {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, appeared).await.unwrap();
}
