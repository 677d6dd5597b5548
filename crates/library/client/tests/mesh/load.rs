//! Load reports, from a real server layer to the endpoint statistics of the caller.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
    vec,
};

use bytes::Bytes;
use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::ServiceHandle;
use fairmesh_model::{Balancing, EndpointState, LoadSignal, Policy, Protocol, Score};
use fairmesh_router::{LoadReport, ReceivedReport};
use fairmesh_server::ServerLayer;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::TcpListener,
    sync::{
        Semaphore,
        mpsc::{UnboundedSender, unbounded_channel},
    },
    time::Instant,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tower::{Layer as _, service_fn};

use crate::{
    rig::{PATIENCE, Rig, ask, get, until},
    server::{Server, serve, text},
};

type Answered = Result<Frame<Bytes>, Infallible>;

/// Returns a response, which ends with trailers if it is a gRPC response.
pub(crate) fn answer(grpc: bool) -> Response<StreamBody<stream::Iter<vec::IntoIter<Answered>>>> {
    ending(grpc, "0")
}

fn ending(grpc: bool, status: &'static str) -> Response<StreamBody<stream::Iter<vec::IntoIter<Answered>>>> {
    let mut frames: Vec<Answered> = vec![Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\0")))];
    if grpc {
        let status = [("grpc-status".parse().unwrap(), HeaderValue::from_static(status))];
        frames.push(Ok(Frame::trailers(HeaderMap::from_iter(status))));
    }
    let kind = if grpc { "application/grpc" } else { "text/plain" };
    Response::builder().header(CONTENT_TYPE, kind).body(StreamBody::new(stream::iter(frames))).unwrap()
}

/// Starts a server behind the layer. Calls to `/held` wait until they are released.
async fn layered(layer: ServerLayer, let_go: Arc<Semaphore>) -> SocketAddr {
    serve(layer.layer(service_fn(move |request: Request<Incoming>| {
        let let_go = Arc::clone(&let_go);
        async move {
            if request.uri().path() == "/held" {
                let _permit = let_go.acquire().await.unwrap();
            }
            Ok::<_, Infallible>(answer(request.headers().contains_key("te")))
        }
    })))
    .await
}

/// Starts a server whose only response continues with the frames of this channel.
pub(crate) async fn streaming() -> (SocketAddr, UnboundedSender<Bytes>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = unbounded_channel();
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let service = hyper::service::service_fn(move |_: Request<Incoming>| {
        let frames = UnboundedReceiverStream::new(receiver.lock().unwrap().take().unwrap());
        async {
            Ok::<_, Infallible>(Response::new(StreamBody::new(frames.map(Frame::data).map(Answered::Ok))))
        }
    });
    tokio::spawn(async move {
        let stream = TokioIo::new(listener.accept().await.unwrap().0);
        auto::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await.map_err(drop)
    });
    (address, sender)
}

fn report(service: &ServiceHandle) -> Option<ReceivedReport> {
    match &*service_state(service) {
        ServiceState::Ready(ready) => ready.upstream.candidates().next().unwrap().report,
        _ => panic!("nothing is known of {}", service.name()),
    }
}

pub(crate) fn to(path: &str, grpc: bool) -> Request<fairmesh_client::Body> {
    let mut request = get(path);
    if grpc {
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    }
    request
}

#[tokio::test]
async fn server_load_reports_are_stored_and_shown() {
    let rig = Rig::start().await;
    let cases = [
        ("shop/one", Protocol::Http1, false),
        ("shop/two", Protocol::Http2, false),
        ("shop/three", Protocol::Grpc, true),
    ];
    for (name, protocol, grpc) in cases {
        let (layer, let_go) = (ServerLayer::default(), Arc::new(Semaphore::new(0)));
        rig.replicated(name, protocol, &[layered(layer.clone(), Arc::clone(&let_go)).await]);
        let mesh = rig.mesh().await;
        let service = mesh.service(name).unwrap();
        service.prepare().await.unwrap();
        assert_eq!(report(&service), None, "{name}: no report yet");

        let held: Vec<_> = (0..2)
            .map(|_| {
                let service = service.clone();
                tokio::spawn(async move { ask(&service, to("/held", grpc)).await })
            })
            .collect();
        until("two calls are under way", || layer.outstanding().calls == 2).await;
        ask(&service, to("/", grpc)).await.unwrap();
        let first = report(&service).unwrap();
        assert_eq!(first.load, LoadReport { requests: Some(2), ..LoadReport::default() }, "{name}");
        let explained = service.explain(&to("/", grpc), 1).await.unwrap().to_string();
        assert!(explained.contains("; reports 2 requests, "), "{name}: {explained}");

        let_go.add_permits(2);
        for call in held {
            call.await.unwrap().unwrap();
        }
        ask(&service, to("/", grpc)).await.unwrap();
        let second = report(&service).unwrap();
        assert_eq!(second.load.requests, Some(0), "{name}");
        assert!(second.at > first.at, "{name}");
        assert_eq!(mesh.stats().reports_ignored, 0, "{name}");
    }
}

#[tokio::test]
async fn unfinished_response_counts_as_outstanding_without_keeping_snapshot() {
    let rig = Rig::start().await;
    for (name, protocol) in [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2)] {
        let (address, frames) = streaming().await;
        rig.replicated(name, protocol, &[address]);
        let service = rig.mesh().await.service(name).unwrap();
        let mut body = service.send(get("/")).await.unwrap().into_body();
        let known = Arc::downgrade(&service_state(&service));
        assert!(body.frame().now_or_never().is_none(), "the response has not continued");
        rig.endpoint(name, "other", address, EndpointState::Serving);
        until("what was known is let go", || known.strong_count() == 0).await;
        let outstanding = || match &*service_state(&service) {
            ServiceState::Ready(ready) => {
                ready.upstream.candidates().map(|candidate| candidate.outstanding).sum()
            }
            _ => 0_u32,
        };
        assert_eq!(outstanding(), 1, "{name}");
        frames.send(Bytes::from_static(b"at last")).unwrap();
        drop(frames);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "at last");
        assert_eq!(outstanding(), 0, "{name}");
    }
}

#[tokio::test]
async fn implausible_load_reports_are_counted_and_dropped() {
    let rig = Rig::start().await;
    let server = Server::start(async |request: Request<Bytes>| {
        let mut answer = text(200, "");
        let load = request.headers().get("say").unwrap().clone();
        answer.headers_mut().insert("endpoint-load-metrics", load);
        answer
    })
    .await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let say = async |load: &'static str| {
        let mut request = get("/");
        request.headers_mut().insert("say", HeaderValue::from_static(load));
        ask(&service, request).await.unwrap()
    };
    for (load, ignored) in [
        ("TEXT cpu_utilization=-1", 1),
        ("named_metrics.concurrent_requests=NaN", 2),
        ("nonsense", 3),
        ("eps=1", 3),
    ] {
        assert_eq!(say(load).await.0, 200);
        assert_eq!((report(&service), mesh.stats().reports_ignored), (None, ignored), "{load}");
    }
    say("TEXT cpu_utilization=0.25,named_metrics.concurrent_requests=4").await;
    let kept = LoadReport { requests: Some(4), cpu: Some(250), ..LoadReport::default() };
    assert_eq!(report(&service).unwrap().load, kept);
    say("TEXT cpu_utilization=nonsense").await;
    assert_eq!(report(&service).unwrap().load, kept, "the previous report stays");
}

#[tokio::test]
async fn server_with_longer_reported_queue_gets_fewer_calls() {
    let rig = Rig::start().await;
    // One server reports its queue through the layer, the other in a report of its own.
    let (long, short) = (ServerLayer::default(), ServerLayer::default());
    long.metric("queue", 30.0).unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&called);
    let long = long.layer(service_fn(move |_: Request<Incoming>| {
        counted.fetch_add(1, Relaxed);
        async { Ok::<_, Infallible>(answer(false)) }
    }));
    let short = short.layer(service_fn(async |_: Request<Incoming>| {
        let mut answer = answer(false);
        let own = HeaderValue::from_static("TEXT named_metrics.queue=10");
        answer.headers_mut().insert("endpoint-load-metrics", own);
        Ok::<_, Infallible>(answer)
    }));
    let score = Score { gain: 100, correction: 8, half_life: Duration::from_millis(100), ..Score::default() };
    let signal = LoadSignal::Metric("queue".into());
    let balancing = Balancing { signal, score, ..Balancing::default() };
    rig.policy("shop/one", Policy { balancing, ..Policy::default() });
    rig.replicated("shop/one", Protocol::Http1, &[serve(long).await, serve(short).await]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    loop {
        let before = called.load(Relaxed);
        for _ in 0..200 {
            ask(&service, get("/")).await.unwrap();
        }
        let share = called.load(Relaxed) - before;
        if share < 200 / 4 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it still gets {share} of 200: {:?}", report(&service));
    }
    assert_eq!(mesh.stats().reports_ignored, 0);
}

#[tokio::test]
async fn only_successful_responses_earn_score_reward() {
    let rig = Rig::start().await;
    let service = ServerLayer::default().layer(service_fn(async |request: Request<Incoming>| {
        let (grpc, bad) = (request.headers().contains_key("te"), request.uri().path() == "/bad");
        let mut answer = ending(grpc, if bad { "13" } else { "0" });
        if bad && !grpc {
            *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        }
        Ok::<_, Infallible>(answer)
    }));
    let address = serve(service).await;
    for (name, protocol, grpc) in [
        ("shop/one", Protocol::Http1, false),
        ("shop/two", Protocol::Http2, false),
        ("shop/three", Protocol::Grpc, true),
    ] {
        let score = Score { reward: 100, ..Score::default() };
        let balancing = Balancing { score, ..Balancing::default() };
        rig.policy(name, Policy { balancing, ..Policy::default() });
        rig.replicated(name, protocol, &[address]);
        let service = rig.mesh().await.service(name).unwrap();
        let score_after = async |path: &str| -> f64 {
            for _ in 0..5 {
                service.send(to(path, grpc)).await.unwrap().into_body().collect().await.unwrap();
            }
            let explained = service.explain(&to("/", grpc), 1).await.unwrap().to_string();
            let (_, score) = explained.split_once(", score ").unwrap();
            score.split_whitespace().next().unwrap().trim_end_matches([',', ';', '.']).parse().unwrap()
        };
        let before = score_after("/bad").await;
        assert!(report(&service).is_some() && before > 0.0, "{name}: {before} after failures");
        let after = score_after("/").await;
        assert!(after < before - 4.0, "{name}: {after} after successful responses");
    }
}
