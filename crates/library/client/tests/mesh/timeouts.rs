//! Timeouts of calls: idle timeouts by default, total timeouts if configured.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::{Body, BoxError, FaultKind, Mesh, Retry};
use fairmesh_model::{Actions, Label, Policy, Protocol, Route, Timeouts};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use tokio::time::{Instant, sleep};

use crate::{
    rig::{Rig, ask, get},
    server::serve,
};

const ALL: [Protocol; 3] = [Protocol::Http1, Protocol::Http2, Protocol::Grpc];
/// Maximum time without progress.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of pieces, well within [`IDLE`].
const OFTEN: Duration = Duration::from_millis(40);
/// Number of pieces. Together they take much longer than [`IDLE`].
const PIECES: usize = 60;
/// Size of a body in several frames that fits into buffers, so that its server never keeps the reader waiting.
const LARGE: usize = 200_000;

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// Returns a body of one-byte pieces at intervals. If it does not end, it stays silent afterwards.
fn pieces(count: usize, ends: bool) -> AnyBody {
    let one = move |at| async move {
        sleep(OFTEN).await;
        if at == count && !ends {
            std::future::pending::<()>().await;
        }
        (at < count).then(|| (Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"."))), at + 1))
    };
    StreamBody::new(Box::pin(stream::unfold(0, one))).boxed_unsync()
}

/// Returns a body of one piece that ends at once, like a server's own status.
fn ended() -> AnyBody {
    let trailers =
        HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("4"))]);
    let frames = [Frame::data(Bytes::from_static(b".")), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(frames.map(Ok::<_, BoxError>))).boxed_unsync()
}

fn whole(text: String) -> AnyBody {
    http_body_util::Full::from(text).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// Starts a server that responds by path, without a clock of its own.
async fn server() -> SocketAddr {
    let answer = async |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let body = match head.uri.path() {
            "/silent" => std::future::pending().await,
            "/stalls" => pieces(1, false),
            "/streams" => pieces(PIECES, true),
            "/ends" => ended(),
            "/large" => whole(".".repeat(LARGE)),
            "/takes" => whole(body.collect().await.map_or(0, |body| body.to_bytes().len()).to_string()),
            // The response begins before the request has ended, and continues after it.
            "/takes-late" => {
                let taken = async move {
                    let length = body.collect().await.map_or(0, |body| body.to_bytes().len());
                    Ok::<_, BoxError>(Frame::data(Bytes::from(length.to_string())))
                };
                StreamBody::new(Box::pin(stream::once(taken))).boxed_unsync()
            }
            _ => {
                let told = |name| head.headers.get(name).map_or("-", |value| value.to_str().unwrap());
                whole(format!("{} {}", told("x-fairmesh-deadline"), told("grpc-timeout")))
            }
        };
        Ok::<_, Infallible>(Response::new(body))
    };
    serve(tower::service_fn(answer)).await
}

fn timeouts(total: Option<Duration>) -> Timeouts {
    Timeouts { total, response_header: Some(IDLE), idle: Some(IDLE) }
}

/// Declares a service for each protocol, with the policy if one is given.
async fn services(policy: Option<Timeouts>) -> (Rig, Mesh) {
    let rig = Rig::start().await;
    let server = server().await;
    for protocol in ALL {
        rig.replicated(name(protocol), protocol, &[server]);
        if let Some(timeouts) = policy {
            rig.policy(name(protocol), Policy { timeouts, ..Policy::default() });
        }
    }
    let mesh = rig.mesh().await;
    (rig, mesh)
}

fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "shop/one",
        Protocol::Http2 => "shop/two",
        Protocol::Grpc => "shop/rpc",
    }
}

fn grpc(path: &str) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/grpc");
    request.body(Body::empty()).unwrap()
}

fn failures(service: &fairmesh_client::ServiceHandle) -> u32 {
    let ServiceState::Ready(ready) = &*service_state(service) else { return 0 };
    ready.upstream.candidates().map(|candidate| candidate.consecutive_failures).sum()
}

#[tokio::test]
async fn response_stream_continues_while_active_and_times_out_when_silent() {
    let (_rig, mesh) = services(Some(timeouts(None))).await;
    let both = stream::iter(ALL).for_each_concurrent(None, |protocol| {
        let service = mesh.service(name(protocol)).unwrap();
        async move {
            let began = Instant::now();
            let (_, text) = ask(&service, get("/streams")).await.unwrap();
            assert_eq!(text.len(), PIECES, "{protocol:?}");
            assert!(began.elapsed() > 2 * IDLE);
            let began = Instant::now();
            let fault = ask(&service, get("/stalls")).await.unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Deadline, "{fault}");
            assert!(fault.to_string().contains("nothing moved for 1s"), "{fault}");
            assert!(began.elapsed() >= IDLE);
        }
    });
    both.await;
}

#[tokio::test]
async fn request_upload_continues_while_active() {
    let (_rig, mesh) = services(Some(timeouts(None))).await;
    let all = stream::iter(ALL).for_each_concurrent(None, |protocol| {
        let service = mesh.service(name(protocol)).unwrap();
        async move {
            for path in ["/takes", "/takes-late"] {
                let answer = service.send(Request::post(path).body(pieces(PIECES, true)).unwrap()).await;
                let body = answer.unwrap().into_body().collect().await;
                let told = body.unwrap_or_else(|fault| panic!("{protocol:?} {path}: {fault}")).to_bytes();
                assert_eq!(told, PIECES.to_string(), "{protocol:?} {path}");
            }
            // A silent caller is no failure of the server.
            let request = Request::post("/takes").body(pieces(1, false)).unwrap();
            let fault = service.send(request).await.unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Deadline, "{fault}");
            assert!(fault.to_string().contains("the caller sent nothing of its request for 1s"), "{fault}");
            assert_eq!(failures(&service), 0);
        }
    });
    all.await;
}

#[tokio::test]
async fn missing_response_headers_time_out_without_retry() {
    let (_rig, mesh) = services(Some(timeouts(None))).await;
    for protocol in ALL {
        let service = mesh.service(name(protocol)).unwrap();
        let (began, tries) = (Instant::now(), mesh.stats().attempts);
        let fault = ask(&service, get("/silent")).await.unwrap_err();
        assert_eq!((fault.kind(), fault.retry()), (FaultKind::Deadline, Retry::MaybeSent));
        assert!(fault.to_string().contains("no response headers within 1s"), "{fault}");
        assert!(began.elapsed() >= IDLE);
        assert_eq!(mesh.stats().attempts - tries, 1);
    }
}

#[tokio::test]
async fn shortest_total_timeout_ends_call_despite_progress() {
    let (_rig, mesh) = services(Some(timeouts(Some(2 * IDLE)))).await;
    for protocol in ALL {
        let service = mesh.service(name(protocol)).unwrap();
        for service in [service.clone(), service.clone().timeout(PIECES as u32 * IDLE), service.timeout(IDLE)]
        {
            let fault = ask(&service, get("/streams")).await.unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Deadline);
            assert!(fault.to_string().contains("the call timed out"), "{fault}");
        }
    }
}

#[tokio::test]
async fn total_timeout_ends_slowly_read_response() {
    let (_rig, mesh) = services(Some(timeouts(Some(IDLE)))).await;
    for protocol in ALL {
        let service = mesh.service(name(protocol)).unwrap();
        let began = Instant::now();
        let mut body = service.send(get("/large")).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(!first.is_empty() && first.len() < LARGE, "{protocol:?}");
        tokio::time::sleep_until(began + 2 * IDLE).await;
        let fault = body.collect().await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Deadline, "{protocol:?}: {fault}");
    }
}

#[tokio::test]
async fn response_end_counts_when_caller_polls_late() {
    let (_rig, mesh) = services(Some(timeouts(Some(IDLE)))).await;
    for protocol in ALL {
        let service = mesh.service(name(protocol)).unwrap();
        let began = Instant::now();
        let request = if protocol == Protocol::Grpc { grpc("/ends") } else { get("/ends") };
        let mut body = service.send(request).await.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), ".");
        tokio::time::sleep_until(began + 2 * IDLE).await;
        let trailers = body.collect().await.unwrap().trailers().cloned();
        // HTTP/1.1 has no trailers unless the caller asks for them.
        assert_eq!(trailers.is_some_and(|end| end["grpc-status"] == "4"), protocol != Protocol::Http1);
    }
}

#[tokio::test]
async fn server_receives_deadline_of_call() {
    let (rig, mesh) = services(None).await;
    let day = Duration::from_secs(86_400);
    for protocol in ALL {
        let service = mesh.service(name(protocol)).unwrap();
        let request = || if protocol == Protocol::Grpc { grpc("/told") } else { get("/told") };
        assert_eq!(ask(&service, request()).await.unwrap().1, "- -", "{protocol:?}: it has none");
        let mut malformed = request();
        malformed.headers_mut().insert("x-fairmesh-deadline", "soon".parse().unwrap());
        assert_eq!(ask(&service, malformed).await.unwrap().1, "- -", "nor does this");
        // Longer than any default timeout.
        let (_, told) = ask(&service.timeout(2 * day), request()).await.unwrap();
        let (ours, theirs) = told.split_once(' ').unwrap();
        assert!(ours.parse::<u64>().unwrap() > 86_400_000, "{told}");
        assert_eq!(theirs != "-", protocol == Protocol::Grpc, "{told}");
    }
    let actions = Actions { server_timeout: Some(Duration::from_secs(3)), ..Actions::default() };
    let route = Route { actions, ..Route::new(Label::new("all").unwrap()) };
    let revision = |name| match &*service_state(&mesh.service(name).unwrap()) {
        ServiceState::Ready(ready) => ready.revision,
        _ => 0,
    };
    let before = revision("shop/one").max(revision("shop/two"));
    rig.policy("shop/one", Policy { routes: vec![route], ..Policy::default() });
    let total = Timeouts { total: Some(2 * day), ..Timeouts::default() };
    rig.policy("shop/two", Policy { timeouts: total, ..Policy::default() });
    let told = async |name| ask(&mesh.service(name).unwrap(), get("/told")).await.unwrap().1;
    crate::rig::until("the policies are known", || {
        revision("shop/one") > before && revision("shop/two") > before
    })
    .await;
    assert_eq!(told("shop/one").await, "3000 -");
    let told = told("shop/two").await;
    assert!(told.split(' ').next().unwrap().parse::<u64>().unwrap() > 86_400_000, "{told}");
}
