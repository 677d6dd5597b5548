//! Overloaded servers, and how callers react.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
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

/// A server that refuses every call, as an overloaded `who` does.
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
async fn a_call_that_one_server_has_no_room_for_goes_to_another_and_nothing_is_held_against_the_first() {
    let rig = Rig::start().await;
    let (full, echo) = (full("shop/cart/i0").await, Server::echo("echo").await);
    rig.replicated("shop/cart", Protocol::Http1, &[full.address, echo.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap();
    // Whatever a call does, it was not looked at; only the first that could not be repeated is lost, before anybody
    // knew.
    let mut lost = 0;
    for _ in 0..200 {
        let (status, _) = ask(&service, post("/", "body")).await.unwrap();
        lost += u32::from(status == 503);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(lost <= 1, "{lost}");
    assert!(full.requests() > 3, "it is called repeatedly: {}", full.requests());
    // One that refuses at once is not the idlest.
    assert!(full.requests() < 60, "{}", full.requests());
    assert_eq!(mesh.stats().panic_picks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_a_server_hands_on_does_not_have_its_own_call_repeated() {
    // What an instance of another service said, or this one's neighbour.
    for who in ["shop/stock/i0", "shop/cart/i1", "i0"] {
        let rig = Rig::start().await;
        let (relay, echo) = (full(who).await, Server::echo("echo").await);
        rig.replicated("shop/cart", Protocol::Http2, &[relay.address, echo.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/cart").unwrap();
        let mut failed = 0;
        for _ in 0..50 {
            let (status, _) = ask(&service, post("/", "body")).await.unwrap();
            failed += usize::from(status == 503);
        }
        assert!(failed > 0, "it was never called");
        assert_eq!((relay.requests(), echo.requests()), (failed, 50 - failed), "{who}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_gives_up_a_call_once_the_time_that_its_route_gives_it_has_passed() {
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
        let (status, words) = ask(&mesh.service(name).unwrap(), get("/")).await.unwrap();
        assert_eq!(status, 504, "{words}");
        assert!(words.contains("the caller's deadline has passed"), "{words}");
    }
    assert_eq!((layer.admission().late, layer.outstanding().calls), (2, 0));
}
