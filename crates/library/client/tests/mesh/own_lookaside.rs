//! A policy names a lookaside that accepts connections but never responds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::ServiceHandle;
use fairmesh_model::{Actions, Label, Match, PathMatch, Policy, Protocol, Redirect, Route, Timeouts};
use http::Request;
use tokio::{net::TcpListener, time::Instant};

use crate::{
    rig::{Rig, ask, get},
    server::{Server, text},
};

/// Starts a server that responds with the deadline it received, in milliseconds.
async fn told() -> Server {
    Server::start(|request: Request<Bytes>| async move {
        text(200, request.headers()["x-fairmesh-deadline"].to_str().unwrap().to_owned())
    })
    .await
}

/// Starts a lookaside that accepts connections and keeps them. Returns the number of connections, and its address.
async fn silent() -> (Arc<AtomicUsize>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (accepted, address) = (Arc::<AtomicUsize>::default(), listener.local_addr().unwrap().to_string());
    let counted = accepted.clone();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(listener.accept().await.unwrap());
            counted.fetch_add(1, Relaxed);
        }
    });
    (accepted, address)
}

async fn timed(service: &ServiceHandle, path: &str) -> (u16, String, Duration) {
    let began = Instant::now();
    let (status, text) = ask(service, get(path)).await.unwrap();
    (status, text, began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_lookaside_delays_only_first_calls_by_half_their_deadline() {
    let (accepted, silent) = silent().await;
    let rig = Rig::start().await;
    let server = told().await;
    let redirect = Redirect { https: None, host: Some("new".into()), port: None, path: None, status: 302 };
    let route = Route {
        matches: Match { path: Some(PathMatch::Prefix("/old".into())), ..Match::default() },
        actions: Actions { redirect: Some(redirect), ..Actions::default() },
        ..Route::new(Label::new("old").unwrap())
    };
    let lookaside = Some(silent);
    let timeouts = Timeouts { total: Some(Duration::from_secs(1)), ..Timeouts::default() };
    rig.policy("shop/one", Policy { lookaside, timeouts, routes: vec![route], ..Policy::default() });
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    service.prepare().await.unwrap();

    let (status, ..) = timed(&service, "/old").await;
    assert_eq!((status, accepted.load(Relaxed)), (302, 0), "no endpoint is to be chosen");

    let (status, given, took) = timed(&service.clone().key(0), "/").await;
    assert!(status == 200 && took >= Duration::from_millis(500), "{status} {took:?}");
    assert!(given.parse::<u64>().unwrap() <= 500, "half of it is gone: {given}");

    // After 2 s the lookaside is known to be silent. Calls with other keys then no longer wait for it, so the server
    // receives more than the half of the deadline that remains after a wait.
    let mut given = 0;
    for key in 1..20 {
        let (status, text, _) = timed(&service.clone().key(key), "/").await;
        assert_eq!(status, 200);
        given = text.parse().unwrap();
        if given > 500 {
            break;
        }
    }
    assert!(given > 500, "the last call had {given} ms left");
    assert!(mesh.stats().lookaside_fallbacks >= 2, "{:?}", mesh.stats());
}
