//! What happens to calls when servers go away, refuse, or are late.

use std::{sync::Arc, time::Duration};

use fairmesh_client::{FaultKind, Mesh, ServiceHandle, core::View};
use fairmesh_model::{EndpointState, Policy, Protocol, Retries, ServiceKind};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    rig::{Rig, ask, get, map, post, until},
    server::{Server, nobody, text},
};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Calls begun and not finished, as the balancer counts them.
fn outstanding(service: &ServiceHandle) -> u32 {
    match &*service.view() {
        View::Ready(ready) => ready.upstream.candidates().map(|candidate| candidate.outstanding).sum(),
        _ => 0,
    }
}

fn outstanding_at(service: &ServiceHandle, instance: &str) -> u32 {
    let View::Ready(ready) = &*service.view() else { return 0 };
    let mut at =
        ready.upstream.candidates().filter(|candidate| candidate.target.instance.as_str() == instance);
    at.next().map_or(0, |candidate| candidate.outstanding)
}

/// A server that holds every answer back until told.
async fn waiting() -> (Server, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let server = Server::start(move |_| {
        let held = held.clone();
        async move {
            held.acquire().await.unwrap().forget();
            text(200, "at last")
        }
    });
    (server.await, gate)
}

fn spread(policy: Policy) -> Policy {
    Policy { retries: Retries { attempts: 3, budget_percent: 100, budget_floor: 100 }, ..policy }
}

#[tokio::test]
async fn a_refused_connection_is_tried_elsewhere_whatever_the_method() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let server = Server::echo("a").await;
        rig.replicated("shop/one", protocol, &[nobody().await, server.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        for _ in 0..50 {
            assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, 200);
        }
        assert!((1..=5).contains(&mesh.stats().retries), "the dead server is shunned: {:?}", mesh.stats());
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test]
async fn nobody_anywhere_is_unreachable_and_nothing_was_sent() {
    let rig = Rig::start().await;
    rig.replicated("shop/one", Protocol::Http2, &[nobody().await]);
    let service = rig.mesh().await.service("shop/one").unwrap();
    let fault = ask(&service, post("/add", "tea")).await.unwrap_err();
    assert_eq!((fault.kind(), fault.retry()), (FaultKind::Unreachable, fairmesh_client::Retry::Unsent));
    assert!(fault.to_string().contains("shop/one") && fault.to_string().contains("i0"), "{fault}");
}

#[tokio::test]
async fn a_killed_server_fails_what_may_not_be_repeated_and_only_that() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (dying, _gate) = waiting().await;
        rig.replicated("shop/one", protocol, &[dying.address]);
        let service = rig.mesh().await.service("shop/one").unwrap();
        let posted = tokio::spawn({
            let service = service.clone();
            async move { ask(&service, post("/add", "tea")).await }
        });
        let got = tokio::spawn({
            let service = service.clone();
            async move { ask(&service, get("/")).await }
        });
        until("both calls are at the server", || dying.requests() == 2).await;
        let other = Server::echo("b").await;
        rig.endpoint("shop/one", "other", other.address, EndpointState::Serving);
        until("the other server is known", || match &*service.view() {
            View::Ready(ready) => ready.upstream.candidates().count() == 2,
            _ => false,
        })
        .await;
        dying.kill();
        assert_eq!(
            posted.await.unwrap().unwrap_err().kind(),
            FaultKind::Reset,
            "it may have been carried out"
        );
        assert_eq!(got.await.unwrap().unwrap().1, "b GET / ", "a GET may be repeated");
        assert_eq!(other.requests(), 1);
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_is_announced_fails_nothing() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let servers = [Server::echo("a").await, Server::echo("b").await];
        rig.replicated("shop/one", protocol, &servers.each_ref().map(|server| server.address));
        let service = rig.mesh().await.service("shop/one").unwrap();
        let calls = load(&service, 8, 400);
        until("all servers are busy", || servers.iter().all(|server| server.requests() > 20)).await;
        rig.endpoint("shop/one", "i0", servers[0].address, EndpointState::Draining);
        let deadline = tokio::time::Instant::now() + crate::rig::PATIENCE;
        let endpoints = fairmesh_model::Prefix::endpoints(service.name(), None);
        let acked = rig.node.wait_acked(&endpoints, rig.node.revision().number, deadline).await;
        assert!(acked.all, "{acked:?}");
        // What was decided before the acknowledgement may still be under way.
        until("its calls are done", || outstanding_at(&service, "i0") == 0).await;
        let at_drain = servers[0].requests();
        servers[0].drain();
        assert!(calls.join_all().await.into_iter().all(|call| call == Ok(200)));
        assert_eq!(servers[0].requests(), at_drain, "nobody calls it once all have acknowledged");
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goaway_out_of_the_blue_fails_nothing() {
    let rig = Rig::start().await;
    let servers = [Server::echo("a").await, Server::echo("b").await, Server::echo("c").await];
    rig.replicated("shop/one", Protocol::Http2, &servers.each_ref().map(|server| server.address));
    rig.policy("shop/one", spread(Policy::default()));
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let calls = load(&service, 8, 400);
    until("all servers are busy", || servers.iter().all(|server| server.requests() > 20)).await;
    servers[0].drain();
    servers[1].drain();
    for call in calls.join_all().await {
        assert_eq!(call, Ok(200));
    }
    assert_eq!(outstanding(&service), 0, "{:?}", mesh.stats());
}

/// POSTs that may not be repeated.
fn load(service: &ServiceHandle, callers: usize, each: usize) -> JoinSet<Result<u16, String>> {
    let mut set = JoinSet::new();
    for _ in 0..callers {
        let service = service.clone();
        set.spawn(async move {
            for _ in 0..each {
                ask(&service, post("/add", "tea")).await.map_err(|fault| fault.to_string())?;
            }
            Ok(200)
        });
    }
    set
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_leave_nothing_behind() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (slow, gate) = waiting().await;
        let quick = Server::echo("b").await;
        rig.replicated("shop/one", protocol, &[slow.address, quick.address]);
        let service = rig.mesh().await.service("shop/one").unwrap();
        let mut calls = JoinSet::new();
        for i in 0..200 {
            let service = service.clone();
            calls.spawn(async move {
                let call = ask(&service, get("/"));
                let _ = tokio::time::timeout(Duration::from_micros(i * 50), call).await;
            });
        }
        calls.join_all().await;
        assert_eq!(outstanding(&service), 0, "{protocol:?}");
        gate.add_permits(1000);
        assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    }
}

#[tokio::test]
async fn a_deadline_ends_the_call_in_time() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (server, _gate) = waiting().await;
        rig.replicated("shop/one", protocol, &[server.address]);
        let service = rig.mesh().await.service("shop/one").unwrap().timeout(Duration::from_millis(200));
        let begun = tokio::time::Instant::now();
        let fault = ask(&service, get("/")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Deadline);
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test]
async fn busy_answers_are_tried_elsewhere_only_where_that_does_no_harm() {
    let rig = Rig::start().await;
    let busy = Server::start(async |_| text(503, "busy")).await;
    let other = Server::start(async |_| text(503, "busy too")).await;
    rig.replicated("shop/one", Protocol::Http1, &[busy.address, other.address]);
    let service = rig.mesh().await.service("shop/one").unwrap();
    assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, 503);
    assert_eq!(busy.requests() + other.requests(), 1, "a POST is not repeated");
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 503, "the last answer is the caller's");
    assert_eq!(busy.requests() + other.requests(), 4);
    assert_eq!(ask(&service.clone().idempotent(), post("/add", "tea")).await.unwrap().0, 503);
    assert_eq!(busy.requests() + other.requests(), 7, "a POST declared idempotent is");
    assert_eq!(outstanding(&service), 0);
}

#[tokio::test]
async fn the_budget_bounds_retries() {
    let rig = Rig::start().await;
    let busy = Server::start(async |_| text(503, "busy")).await;
    rig.replicated("shop/one", Protocol::Http2, &[busy.address]);
    let retries = Retries { attempts: 3, budget_percent: 10, budget_floor: 0 };
    rig.policy("shop/one", Policy { retries, ..Policy::default() });
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    for _ in 0..100 {
        assert_eq!(ask(&service, get("/")).await.unwrap().0, 503);
    }
    let stats = mesh.stats();
    assert!(stats.retries <= 10 && stats.retries_refused > 0, "{stats:?}");
    assert_eq!(busy.requests() as u64, stats.tries);
}

#[tokio::test]
async fn a_wrong_shard_is_tried_elsewhere_once_the_map_is_new() {
    let rig = Rig::start().await;
    let old = Server::start(async |_| {
        let mut answer = text(421, "moved");
        answer.headers_mut().insert("fairmesh-wrong-shard", 2.into());
        answer
    })
    .await;
    let new = Server::echo("b").await;
    rig.service("shop/cart", ServiceKind::Sharded, Protocol::Http2);
    rig.endpoint("shop/cart", "old", old.address, EndpointState::Serving);
    rig.endpoint("shop/cart", "new", new.address, EndpointState::Serving);
    rig.shard_map("shop/cart", &map(1, &["old"]));
    rig.policy(
        "shop/cart",
        Policy { retries: Retries { attempts: 1, ..Retries::default() }, ..Policy::default() },
    );
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap().key(7);
    service.ready().await.unwrap();
    let call = tokio::spawn({
        let service = service.clone();
        async move { ask(&service, post("/add", "tea")).await }
    });
    until("the old holder was asked", || old.requests() == 1).await;
    rig.shard_map("shop/cart", &map(2, &["new"]));
    assert_eq!(
        call.await.unwrap().unwrap().1,
        "b POST /add tea",
        "not even a POST is harmed, nor a budget used"
    );
    assert_eq!((old.requests(), mesh.stats().wrong_shard), (1, 1));
    assert_eq!(outstanding(&service), 0);
}

#[tokio::test]
async fn a_shard_that_nobody_admits_to_ends_with_the_servers_answer() {
    let rig = Rig::start().await;
    let server = Server::start(async |_| {
        let mut answer = text(421, "not mine");
        answer.headers_mut().insert("fairmesh-wrong-shard", 1.into());
        answer
    })
    .await;
    rig.service("shop/cart", ServiceKind::Sharded, Protocol::Http1);
    rig.endpoint("shop/cart", "only", server.address, EndpointState::Serving);
    rig.shard_map("shop/cart", &map(1, &["only"]));
    let service = rig.mesh().await.service("shop/cart").unwrap().key(7);
    assert_eq!(ask(&service, get("/")).await.unwrap(), (421, "not mine".into()));
    assert_eq!(server.requests(), 3, "twice more and not again");
}

#[tokio::test]
async fn connections_to_endpoints_that_are_gone_close() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let servers = [Server::echo("a").await, Server::echo("b").await];
        rig.replicated("shop/one", protocol, &servers.each_ref().map(|server| server.address));
        let mesh: Mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        load(&service, 4, 20).join_all().await;
        assert!(servers.iter().all(|server| server.open() > 0));
        rig.remove_endpoint("shop/one", "i0");
        until("its connections are closed", || servers[0].open() == 0).await;
        assert!(servers[1].open() > 0);
        assert_eq!(mesh.stats().connections_open as usize, servers[1].open());
    }
}
