//! Results of calls influence decisions about later calls.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::ServiceHandle;
use fairmesh_model::{Balancing, BalancingPolicy, HealthCheck, Policy, Probe, Protocol};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use tokio::{task::JoinSet, time::sleep};
use tower::service_fn;

use crate::{
    load::{streaming, to},
    rig::{Rig, ask, get, post, until},
    server::{Server, serve, text},
};

/// Number of calls and streams in flight, as counted by the balancer.
fn in_flight(service: &ServiceHandle) -> (u32, u32) {
    let ServiceState::Ready(ready) = &*service_state(service) else { return (0, 0) };
    let counts = ready.upstream.candidates().map(|candidate| (candidate.outstanding, candidate.streams));
    counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test]
async fn long_response_counts_as_stream_not_call_while_silent() {
    let rig = Rig::start().await;
    for (name, protocol, grpc) in [
        ("shop/one", Protocol::Http1, false),
        ("shop/two", Protocol::Http2, false),
        ("shop/three", Protocol::Grpc, true),
    ] {
        let (address, frames) = streaming().await;
        rig.replicated(name, protocol, &[address]);
        let service = rig.mesh().await.service(name).unwrap();
        let body = service.send(to("/", grpc)).await.unwrap().into_body();
        let reader = tokio::spawn(async move { body.collect().await.unwrap().to_bytes() });
        assert_eq!(in_flight(&service), (1, 0), "{name}: it may well be a short one");
        until("it is a stream", || in_flight(&service) == (0, 1)).await;
        frames.send(Bytes::from_static(b"a word")).unwrap();
        // The word arrives before the response ends, and the call counts as a stream until then.
        drop(frames);
        assert_eq!(reader.await.unwrap(), "a word");
        assert_eq!(in_flight(&service), (0, 0), "{name}");
    }
}

#[tokio::test]
async fn response_stream_ends_at_its_deadline() {
    let rig = Rig::start().await;
    let (address, _frames) = streaming().await;
    rig.replicated("shop/one", Protocol::Http2, &[address]);
    let service = rig.mesh().await.service("shop/one").unwrap().timeout(Duration::from_millis(1500));
    let begun = tokio::time::Instant::now();
    let answer = service.send(get("/")).await.unwrap();
    let fault = answer.into_body().collect().await.unwrap_err();
    assert_eq!(fault.kind(), fairmesh_client::FaultKind::Deadline);
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    assert_eq!(in_flight(&service), (0, 0));
}

/// Starts a gRPC server that fails at once, with its status in the head or in trailers.
async fn failing_grpc(in_trailers: bool) -> SocketAddr {
    let service = service_fn(move |_: Request<Incoming>| async move {
        let status = HeaderMap::from_iter([(
            "grpc-status".parse().unwrap(),
            // The gRPC status INTERNAL.
            HeaderValue::from_static("13"),
        )]);
        let mut answer = Response::builder().header("content-type", "application/grpc");
        let frames = match in_trailers {
            true => vec![Ok::<_, Infallible>(Frame::<Bytes>::trailers(status))],
            false => {
                answer.headers_mut().unwrap().extend(status);
                Vec::new()
            }
        };
        Ok::<_, Infallible>(answer.body(StreamBody::new(stream::iter(frames))).unwrap())
    });
    serve(service).await
}

/// Returns how many of 200 calls succeed.
async fn good_answers(service: &ServiceHandle, grpc: bool) -> usize {
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let service = service.clone();
        callers.spawn(async move {
            let mut good = 0;
            for _ in 0..50 {
                let answer = service.send(to("/", grpc)).await.unwrap();
                good += usize::from(answer.status() == 200 && answer.headers().contains_key("good"));
                answer.into_body().collect().await.unwrap();
            }
            good
        });
    }
    callers.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn server_that_fails_fast_does_not_attract_more_calls() {
    let good = async || {
        Server::start(async |_| {
            sleep(Duration::from_millis(20)).await;
            let mut answer = text(200, "");
            answer.headers_mut().insert("good", HeaderValue::from_static("yes"));
            answer.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
            answer
        })
        .await
    };
    let bad = Server::start(async |_| text(500, "at once")).await;
    let cases = [
        ("shop/one", Protocol::Http1, bad.address),
        ("shop/two", Protocol::Http2, bad.address),
        ("shop/three", Protocol::Grpc, failing_grpc(false).await),
        ("shop/four", Protocol::Grpc, failing_grpc(true).await),
    ];
    for (name, protocol, failing) in cases {
        let rig = Rig::start().await;
        rig.replicated(name, protocol, &[failing, good().await.address, good().await.address]);
        let service = rig.mesh().await.service(name).unwrap();
        // Least requests alone would send almost all calls to the failing server, since it never has one in flight.
        let good = good_answers(&service, protocol == Protocol::Grpc).await;
        assert!((160..=197).contains(&good), "{name}: {good} of 200");
    }
}

#[tokio::test]
async fn panic_mode_calls_all_failing_endpoints_and_is_counted() {
    let rig = Rig::start().await;
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(async |_| text(503, "")).await);
    }
    rig.replicated("shop/one", Protocol::Http1, &[0, 1, 2].map(|at: usize| servers[at].address));
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let call = async || assert_eq!(service.send(post("/", "")).await.unwrap().status(), 503);
    // Five consecutive failures make a server fail.
    until_called(&servers, 6, call).await;
    let before = servers.iter().map(Server::requests).collect::<Vec<_>>();
    assert!(mesh.stats().panic_picks > 0);
    until_called(&servers, before.iter().max().unwrap() + 1, call).await;
    assert_eq!(mesh.stats().attempts_without_endpoint, 0);
}

/// Makes calls until each server has received `least` of them, at most 1000 calls.
async fn until_called(servers: &[Server], least: usize, call: impl AsyncFn()) {
    for _ in 0..1000 {
        if servers.iter().all(|server| server.requests() >= least) {
            return;
        }
        call().await;
    }
    panic!("one of {:?} is not called", servers.iter().map(Server::requests).collect::<Vec<_>>());
}

#[tokio::test]
async fn verdicts_against_all_endpoints_are_ignored_and_counted() {
    let rig = Rig::start().await;
    let server = Server::echo("only").await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let check = HealthCheck {
        probe: Probe::Tcp,
        interval: Duration::from_secs(1),
        jitter_percent: 0,
        timeout: Duration::from_secs(1),
        rise: 1,
        fall: 1,
        minimum_samples: 1,
    };
    rig.policy("shop/one", Policy { health_check: Some(check), ..Policy::default() });
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    assert_eq!(mesh.stats().health_panics, 0);
    rig.unhealthy("shop/one", "i0");
    until("the verdict is ignored", || mesh.stats().health_panics == 1).await;
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
}

#[tokio::test]
async fn latency_balancing_policy_records_latencies() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let rig = Rig::start().await;
        let takes = async |ms| {
            Server::start(move |_| async move {
                sleep(Duration::from_millis(ms)).await;
                text(200, "")
            })
            .await
        };
        let servers = [takes(100).await, takes(5).await, takes(5).await];
        let balancing = Balancing { policy: BalancingPolicy::PeakEwma, ..Balancing::default() };
        rig.policy("shop/one", Policy { balancing, ..Policy::default() });
        rig.replicated("shop/one", protocol, &servers.each_ref().map(|server| server.address));
        let service = rig.mesh().await.service("shop/one").unwrap();
        for _ in 0..60 {
            ask(&service, get("/")).await.unwrap();
        }
        let asked = servers.each_ref().map(Server::requests);
        // Sequential calls leave none in flight, so servers differ only in latency.
        assert!((1..=6).contains(&asked[0]), "{protocol:?}: {asked:?}");
    }
}
