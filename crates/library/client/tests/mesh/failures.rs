//! Calls to servers that stop, refuse calls, or respond late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::{FaultKind, Mesh, Retry, ServiceHandle};
use fairmesh_model::{EndpointState, Policy, Protocol, Retries, ServiceKind};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{RwLock, Semaphore},
    task::JoinSet,
};

use crate::{
    rig::{Rig, ask, get, map, post, split, until},
    server::{Server, nobody, text},
};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Number of unfinished calls, as counted by the balancer.
fn outstanding(service: &ServiceHandle) -> u32 {
    match &*service_state(service) {
        ServiceState::Ready(ready) => {
            ready.upstream.candidates().map(|candidate| candidate.outstanding).sum()
        }
        _ => 0,
    }
}

fn outstanding_at(service: &ServiceHandle, instance: &str) -> u32 {
    let ServiceState::Ready(ready) = &*service_state(service) else { return 0 };
    let mut at =
        ready.upstream.candidates().filter(|candidate| candidate.target.instance.as_str() == instance);
    at.next().map_or(0, |candidate| candidate.outstanding)
}

/// Number of consecutive failures at the first endpoint, and the end of the penalty for them.
fn blame(service: &ServiceHandle) -> (u32, u64) {
    let ServiceState::Ready(ready) = &*service_state(service) else { return (0, 0) };
    let first = ready.upstream.candidates().next();
    first.map_or((0, 0), |candidate| (candidate.consecutive_failures, candidate.ejected_until))
}

/// Starts a server that delays every response until it is released.
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
async fn refused_connection_is_retried_at_another_endpoint_for_any_method() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let server = Server::echo("a").await;
        rig.replicated("shop/one", protocol, &[nobody().await, server.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        for _ in 0..50 {
            assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, 200);
        }
        assert!((1..=5).contains(&mesh.stats().retries), "the dead server is ejected: {:?}", mesh.stats());
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test]
async fn call_without_reachable_server_fails_as_unreachable_and_unsent() {
    let rig = Rig::start().await;
    rig.replicated("shop/one", Protocol::Http2, &[nobody().await]);
    let service = rig.mesh().await.service("shop/one").unwrap();
    let fault = ask(&service, post("/add", "tea")).await.unwrap_err();
    assert_eq!((fault.kind(), fault.retry()), (FaultKind::Unreachable, Retry::Unsent));
    assert!(fault.to_string().contains("shop/one") && fault.to_string().contains("i0"), "{fault}");
}

#[tokio::test]
async fn killed_server_fails_only_unrepeatable_calls() {
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
        until("the other server is known", || match &*service_state(&service) {
            ServiceState::Ready(ready) => ready.upstream.candidates().count() == 2,
            _ => false,
        })
        .await;
        dying.kill();
        assert_eq!(posted.await.unwrap().unwrap_err().kind(), FaultKind::Reset, "it may have been processed");
        assert_eq!(got.await.unwrap().unwrap().1, "b GET / ", "a GET may be repeated");
        assert_eq!(other.requests(), 1);
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_endpoint_drain_fails_no_call() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let servers = [Server::echo("a").await, Server::echo("b").await];
        rig.replicated("shop/one", protocol, &servers.each_ref().map(|server| server.address));
        let service = rig.mesh().await.service("shop/one").unwrap();
        let gate = Arc::default();
        let calls = gated_load(&service, (8, 400), &gate);
        until("all servers are busy", || servers.iter().all(|server| server.requests() > 20)).await;
        rig.endpoint("shop/one", "i0", servers[0].address, EndpointState::Draining);
        let deadline = tokio::time::Instant::now() + crate::rig::PATIENCE;
        let endpoints = fairmesh_model::Prefix::endpoints(service.name(), None);
        let acked = rig.node.wait_acked(&endpoints, rig.node.revision().number, deadline).await;
        assert!(acked.all, "{acked:?}");
        // The acknowledgement covers only calls begun afterwards. Earlier calls may have read the previous snapshot,
        // and count at no endpoint before they have picked one.
        let none_in_flight = gate.write().await;
        assert_eq!(outstanding_at(&service, "i0"), 0);
        let at_drain = servers[0].requests();
        drop(none_in_flight);
        servers[0].drain();
        assert!(calls.join_all().await.into_iter().all(|call| call == Ok(200)));
        assert_eq!(servers[0].requests(), at_drain, "it gets no calls once all have acknowledged");
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unexpected_goaway_of_server_fails_no_call() {
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

/// Sends GOAWAY on each connection, stating that it has received no call, and closes the connection with the calls
/// unread. The connection therefore breaks at the next write.
async fn refuse_all(listener: TcpListener, connections: Arc<AtomicU32>) {
    const PREFACE: usize = 24;
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.fetch_add(1, Relaxed);
        // Reads the first byte of the settings too, which follow the preface at once.
        stream.read_exact(&mut [0; PREFACE + 1]).await.unwrap();
        stream.write_all(&[&SETTINGS[..], &GOAWAY[..]].concat()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_is_honoured_even_if_connection_breaks() {
    let rig = Rig::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http2, &[listener.local_addr().unwrap(), server.address]);
    rig.policy("shop/one", spread(Policy::default()));
    let connections = Arc::<AtomicU32>::default();
    tokio::spawn(refuse_all(listener, Arc::clone(&connections)));
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    for call in load(&service, 1, 200).join_all().await {
        assert_eq!(call, Ok(200));
    }
    // The server answers at once and has no load. Only because it is avoided does it not get half of the calls.
    let connections = connections.load(Relaxed);
    assert!((1..10).contains(&connections), "{connections} connections: {:?}", mesh.stats());
}

/// Sends POSTs that must not be repeated.
fn load(service: &ServiceHandle, callers: usize, each: usize) -> JoinSet<Result<u16, String>> {
    gated_load(service, (callers, each), &Arc::default())
}

/// Like `load`, through a gate. Locking the gate for writing waits for the calls in flight and holds back further ones.
fn gated_load(
    service: &ServiceHandle,
    (callers, each): (usize, usize),
    gate: &Arc<RwLock<()>>,
) -> JoinSet<Result<u16, String>> {
    let mut set = JoinSet::new();
    for _ in 0..callers {
        let (service, gate) = (service.clone(), Arc::clone(gate));
        set.spawn(async move {
            for _ in 0..each {
                let _in_flight = gate.read().await;
                ask(&service, post("/add", "tea")).await.map_err(|fault| fault.to_string())?;
            }
            Ok(200)
        });
    }
    set
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_before_http2_settings_stay_within_default_stream_limit() {
    let rig = Rig::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    rig.replicated("shop/one", Protocol::Http2, &[listener.local_addr().unwrap()]);
    let retries = Retries { attempts: 1, ..Retries::default() };
    rig.policy("shop/one", Policy { retries, ..Policy::default() });
    let service = rig.mesh().await.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    let calls = load(&service, 500, 1);
    until("all have begun", || outstanding(&service) == 500).await;
    let _server = Server::start_on(listener, async |_| text(200, "welcome"));
    for call in calls.join_all().await {
        assert_eq!(call, Ok(200));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_leave_no_call_counts_or_connections() {
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

/// Returns how a call with this timeout ends.
async fn timed_out(service: &ServiceHandle, time: Duration) -> FaultKind {
    ask(&service.clone().timeout(time), get("/")).await.unwrap_err().kind()
}

#[tokio::test]
async fn call_deadline_ends_call_on_time() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (server, _gate) = waiting().await;
        rig.replicated("shop/one", protocol, &[server.address]);
        let service = rig.mesh().await.service("shop/one").unwrap();
        let begun = tokio::time::Instant::now();
        // The server answers neither call. Each must end at its own deadline, the earlier one first.
        let mut later = Box::pin(timed_out(&service, Duration::from_secs(2)));
        let earlier = tokio::select! {
            biased;
            _ = &mut later => panic!("a deadline of 2 s ends before one of 200 ms"),
            fault = timed_out(&service, Duration::from_millis(200)) => fault,
        };
        assert_eq!(earlier, FaultKind::Deadline);
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert_eq!(outstanding(&service), 1);
        assert_eq!(later.await, FaultKind::Deadline);
        assert!(begun.elapsed() >= Duration::from_secs(2));
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test]
async fn deadline_fault_names_limit_that_ended_call() {
    let rig = Rig::start().await;
    let (server, _gate) = waiting().await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let mut policy = split("/routed", "shop/one");
    policy.routes[0].timeouts.total = Some(Duration::from_millis(70));
    policy.timeouts.total = Some(Duration::from_millis(80));
    rig.policy("shop/one", policy);
    let service = rig.mesh().await.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    let why = async |service: &ServiceHandle, request| ask(service, request).await.unwrap_err().to_string();

    let told = why(&service, get("/")).await;
    assert!(told.starts_with("shop/one: its policy's timeout of 80ms ran out; "), "{told}");
    let told = why(&service, get("/routed")).await;
    assert!(told.contains("its route's timeout of 70ms"), "{told}");
    let told = why(&service.clone().timeout(Duration::from_millis(60)), get("/routed")).await;
    assert!(told.contains("the caller's own timeout of 60ms"), "{told}");
    let mut hasty = get("/");
    hasty.headers_mut().insert("x-fairmesh-deadline", 50.into());
    let told = why(&service, hasty).await;
    assert!(told.contains("the caller's deadline passed, 50 ms after the call began"), "{told}");
    let told = why(&service.deadline(tokio::time::Instant::now().into_std()), get("/")).await;
    assert_eq!(told, "shop/one: the caller's deadline had passed; nothing was sent");
}

#[tokio::test]
async fn single_missed_call_deadline_ejects_no_endpoint() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (server, _gate) = waiting().await;
        rig.replicated("shop/one", protocol, &[server.address]);
        let service = rig.mesh().await.service("shop/one").unwrap();
        service.prepare().await.unwrap();
        for missed in 1..=3 {
            let hasty = service.clone().timeout(Duration::from_millis(500));
            let fault = ask(&hasty, get("/")).await.unwrap_err();
            assert_eq!((fault.kind(), fault.retry()), (FaultKind::Deadline, Retry::MaybeSent));
            let (failures, penalised_until) = blame(&service);
            assert_eq!((failures, penalised_until == 0), (missed, missed < 3));
        }
    }
}

#[tokio::test]
async fn cancelled_call_does_not_count_as_endpoint_failure() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let gate = Arc::new(Semaphore::new(0));
        let held = gate.clone();
        let server = Server::start(move |request| {
            let held = held.clone();
            async move {
                if request.uri().path() == "/held" {
                    let _permit = held.acquire().await.unwrap();
                }
                text(if request.uri().path() == "/busy" { 503 } else { 200 }, "")
            }
        })
        .await;
        rig.replicated("shop/one", protocol, &[server.address]);
        let service = rig.mesh().await.service("shop/one").unwrap();
        ask(&service, post("/busy", "tea")).await.unwrap();
        assert_eq!(blame(&service).0, 1);
        let call = tokio::spawn({
            let service = service.clone();
            async move { ask(&service, get("/held")).await }
        });
        until("the call is at the server", || server.requests() == 2).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!((blame(&service).0, outstanding(&service)), (1, 0), "{protocol:?}");
        ask(&service, get("/")).await.unwrap();
        assert_eq!(blame(&service).0, 0, "a response does");
    }
}

/// An address that neither accepts nor refuses connections, like that of a vanished host.
async fn vanished() -> (std::net::SocketAddr, Vec<TcpStream>, TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        waiting.push(connected.unwrap());
    }
    (address, waiting, listener)
}

#[tokio::test]
async fn connect_to_vanished_host_leaves_time_for_another_attempt() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (gone, _waiting, _listener) = vanished().await;
        let server = Server::echo("a").await;
        rig.replicated("shop/one", protocol, &[gone, server.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap().timeout(Duration::from_secs(1));
        for _ in 0..20 {
            assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, 200);
        }
        assert!((1..=5).contains(&mesh.stats().retries), "it is ejected: {:?}", mesh.stats());
        assert_eq!(outstanding(&service), 0);
    }
}

#[tokio::test]
async fn protocol_violation_fault_differs_from_broken_connection() {
    for (protocol, said, kind) in [
        (Protocol::Http1, "SSH-2.0-OpenSSH_9.6\r\n\r\n", FaultKind::Protocol),
        (
            Protocol::Http1,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n",
            FaultKind::Protocol,
        ),
        (Protocol::Http1, "HTTP/1.1 200 O", FaultKind::Reset),
        (Protocol::Http2, "HTTP/1.1 400 Bad Request\r\n\r\n", FaultKind::Protocol),
        (Protocol::Http2, "", FaultKind::Reset),
    ] {
        let rig = Rig::start().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        rig.replicated("shop/one", protocol, &[listener.local_addr().unwrap()]);
        let service = rig.mesh().await.service("shop/one").unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 4096];
            let mut seen = 0;
            // The head of the request, in either protocol, is longer than the HTTP/2 preface.
            while seen < 60 {
                seen += stream.read(&mut asked).await.unwrap();
            }
            stream.write_all(said.as_bytes()).await.unwrap();
        };
        let (fault, ()) = tokio::join!(ask(&service, post("/add", "tea")), server);
        assert_eq!(fault.unwrap_err().kind(), kind, "{protocol:?} {said}");
    }
}

#[tokio::test]
async fn call_that_times_out_while_connecting_fails_as_unsent() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (gone, _waiting, _listener) = vanished().await;
        rig.replicated("shop/one", protocol, &[gone]);
        let once = Retries { attempts: 1, ..Retries::default() };
        rig.policy("shop/one", Policy { retries: once, ..Policy::default() });
        let service = rig.mesh().await.service("shop/one").unwrap().timeout(Duration::from_millis(100));
        let fault = ask(&service, post("/add", "tea")).await.unwrap_err();
        assert_eq!(fault.retry(), Retry::Unsent, "{fault}");
        assert_eq!(blame(&service).1, 0, "50 ms are no proof that it is gone");
    }
}

#[tokio::test]
async fn unavailable_responses_are_retried_only_for_idempotent_requests() {
    let rig = Rig::start().await;
    let busy = Server::start(async |_| text(503, "busy")).await;
    let other = Server::start(async |_| text(503, "busy too")).await;
    rig.replicated("shop/one", Protocol::Http1, &[busy.address, other.address]);
    let service = rig.mesh().await.service("shop/one").unwrap();
    assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, 503);
    assert_eq!(busy.requests() + other.requests(), 1, "a POST is not repeated");
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 503, "the caller gets the last response");
    assert_eq!(busy.requests() + other.requests(), 4);
    assert_eq!(ask(&service.clone().idempotent(), post("/add", "tea")).await.unwrap().0, 503);
    assert_eq!(busy.requests() + other.requests(), 7, "a POST declared idempotent is");
    assert_eq!(outstanding(&service), 0);
}

#[tokio::test]
async fn retry_budget_limits_retries() {
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
    assert!(stats.retries <= 10 && stats.retry_budget_exhausted > 0, "{stats:?}");
    assert_eq!(busy.requests() as u64, stats.attempts);
}

#[tokio::test]
async fn wrong_shard_call_is_retried_after_shard_map_update() {
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
    service.prepare().await.unwrap();
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
async fn wrong_shard_response_relayed_by_server_is_returned_unchanged() {
    let rig = Rig::start().await;
    let told = Server::start(async |_| {
        let mut answer = text(421, "passed on");
        answer.headers_mut().insert("fairmesh-wrong-shard", 2.into());
        answer
    })
    .await;
    let grpc = Server::start(async |_| {
        let mut answer = text(200, "");
        answer.headers_mut().insert("grpc-status", 9.into());
        answer.headers_mut().insert("fairmesh-wrong-shard", 2.into());
        answer
    })
    .await;
    rig.replicated("shop/one", Protocol::Http1, &[told.address]);
    rig.replicated("shop/two", Protocol::Grpc, &[grpc.address]);
    let mesh = rig.mesh().await;
    for (name, status) in [("shop/one", 421), ("shop/two", 200)] {
        // With a key, so that a copy of the request is kept for another attempt.
        let service = mesh.service(name).unwrap().key(7);
        assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, status);
    }
    assert_eq!((told.requests(), grpc.requests()), (1, 1), "they may have processed the call");
    assert_eq!((mesh.stats().wrong_shard, mesh.stats().retries), (0, 0));
}

#[tokio::test]
async fn wrong_shard_response_is_returned_if_no_other_holder_is_known() {
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
async fn connections_to_removed_endpoints_close() {
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
