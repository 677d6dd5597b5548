//! Callers' reaction to overloaded servers.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::{FaultKind, Retry};
use fairmesh_model::{Actions, Label, Policy, Protocol, Route};
use fairmesh_server::ServerLayer;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::{Layer as _, service_fn};

use crate::{
    rig::{Rig, ask, get, post},
    server::{Server, serve, text},
};

/// Starts a server that refuses every call, as the overloaded server `who` does.
async fn full(who: &'static str) -> Server {
    Server::start(move |_| async move {
        let mut answer = text(503, "full");
        answer.headers_mut().insert("x-fairmesh-fault", "overloaded".parse().unwrap());
        answer.headers_mut().insert("x-fairmesh-full", who.parse().unwrap());
        answer
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_refused_by_overloaded_server_is_retried_without_penalty() {
    let rig = Rig::start().await;
    let (full, echo) = (full("shop/cart/i0").await, Server::echo("echo").await);
    rig.replicated("shop/cart", Protocol::Http1, &[full.address, echo.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap();
    // The overloaded server processes no call. Only the first call that must not be repeated is lost, before the caller
    // knows about the overload.
    let mut lost = 0;
    for _ in 0..200 {
        if let Err(fault) = ask(&service, post("/", "body")).await {
            assert_eq!((fault.kind(), fault.retry()), (FaultKind::Overloaded, Retry::Unsent), "{fault}");
            lost += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(lost <= 1, "{lost}");
    assert!(full.requests() > 3, "it is called repeatedly: {}", full.requests());
    // A server that refuses at once must not look like the idlest one.
    assert!(full.requests() < 60, "{}", full.requests());
    assert_eq!(mesh.stats().panic_picks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_refusal_relayed_by_server_is_not_retried() {
    // Refusals relayed from an instance of another service, or from another instance of this service.
    for who in ["shop/stock/i0", "shop/cart/i1", "i0"] {
        let rig = Rig::start().await;
        let (relay, echo) = (full(who).await, Server::echo("echo").await);
        rig.replicated("shop/cart", Protocol::Http2, &[relay.address, echo.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/cart").unwrap();
        let mut failed = 0;
        for _ in 0..50 {
            if let Err(fault) = ask(&service, post("/", "body")).await {
                assert_eq!(
                    (fault.kind(), fault.retry()),
                    (FaultKind::Overloaded, Retry::MaybeSent),
                    "{fault}"
                );
                failed += 1;
            }
        }
        assert!(failed > 0, "it was never called");
        assert_eq!((relay.requests(), echo.requests()), (failed, 50 - failed), "{who}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_timeout_in_route_ends_call_at_server() {
    let layer = ServerLayer::default();
    let address = serve(layer.layer(service_fn(async |_: Request<Incoming>| {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    })))
    .await;
    for (name, protocol) in [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2)] {
        let rig = Rig::start().await;
        rig.replicated(name, protocol, &[address]);
        let actions = Actions { server_timeout: Some(Duration::from_millis(100)), ..Actions::default() };
        let route = Route { actions, ..Route::new(Label::new("short").unwrap()) };
        rig.policy(name, Policy { routes: vec![route], ..Policy::default() });
        let mesh = rig.mesh().await;
        let service = mesh.service(name).unwrap();
        let fault = ask(&service, get("/")).await.unwrap_err();
        assert_eq!((fault.kind(), fault.retry()), (FaultKind::Deadline, Retry::MaybeSent), "{fault}");
        assert!(fault.to_string().contains("responded 504"), "{fault}");
        let (status, words) = ask(&service.keep_fault_responses(), get("/")).await.unwrap();
        assert_eq!(status, 504, "{words}");
        assert!(words.contains("the caller's deadline has passed"), "{words}");
    }
    assert_eq!((layer.admission().late, layer.outstanding().calls), (4, 0));
}

/// The timers of both sides fire at about the same time, and their order must not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_timeouts_of_caller_and_server_have_same_outcome() {
    let layer = ServerLayer::default();
    let arrived = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&arrived);
    let address = serve(layer.layer(service_fn(move |_: Request<Incoming>| {
        counted.fetch_add(1, Relaxed);
        async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        }
    })))
    .await;
    let rig = Rig::start().await;
    rig.replicated("shop/one", Protocol::Http1, &[address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    let hasty = service.timeout(Duration::from_millis(50));
    let mut sent = 0;
    for _ in 0..64 {
        let fault = ask(&hasty, get("/")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Deadline, "{fault}");
        // On a busy machine, the timeout may pass before the request is sent.
        sent += usize::from(fault.retry() == Retry::MaybeSent);
    }
    assert!(sent >= 16 && arrived.load(Relaxed) <= sent, "{sent} of 64 were sent, {arrived:?} arrived");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_known_fault_headers_turn_response_into_fault() {
    let faulty = Server::start(async |request| {
        let mut answer = text(429, "made on the way");
        let label = request.uri().path().trim_start_matches('/').to_owned();
        answer.headers_mut().insert("x-fairmesh-fault", label.parse().unwrap());
        answer.headers_mut().insert("retry-after", "7".parse().unwrap());
        answer
    })
    .await;
    let rig = Rig::start().await;
    rig.replicated("shop/cart", Protocol::Http1, &[faulty.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap();
    for kind in FaultKind::ALL {
        let fault = ask(&service, get(&format!("/{}", kind.label()))).await.unwrap_err();
        assert_eq!((fault.kind(), fault.retry_after()), (kind, Some(Duration::from_secs(7))), "{fault}");
        assert!(fault.to_string().ends_with("made on the way"), "{fault}");
        assert_ne!(fault.retry(), Retry::Unsent, "the server may have processed it: {fault}");
    }
    for label in ["injected", "of-a-later-release"] {
        assert_eq!(ask(&service, get(&format!("/{label}"))).await.unwrap().0, 429);
    }
    assert_eq!(mesh.stats().faults, FaultKind::ALL.len() as u64);
    assert_eq!(faulty.connections(), 1);
}
