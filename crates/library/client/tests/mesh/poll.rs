//! Load polling, which happens outside calls.

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_calls::{
    discovery::{EndpointTransport, ServiceState},
    forwarding::service_state,
};
use fairmesh_client::{ServiceHandle, Stats};
use fairmesh_headers::LOAD_PATH;
use fairmesh_model::{Balancing, BalancingPolicy, EndpointState, Policy, Protocol, Score};
use fairmesh_router::ReceivedReport;
use fairmesh_server::ServerLayer;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{Layer as _, Service as _, service_fn};

use crate::{
    load::{answer, to},
    rig::{PATIENCE, Rig, ask, get, until},
    server::{Server, serve, text},
};

/// How long servers work on a request: many round trips on this machine, however busy it is.
const WORK: Duration = Duration::from_millis(40);

/// A server behind the layer, which counts calls and polls.
#[derive(Clone)]
struct Station {
    name: &'static str,
    layer: ServerLayer,
    asked: Arc<AtomicUsize>,
    let_go: Arc<Semaphore>,
}

impl Station {
    fn new(name: &'static str) -> Self {
        let let_go = Arc::new(Semaphore::new(0));
        Self { name, layer: ServerLayer::default(), asked: Arc::default(), let_go }
    }

    fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }

    /// Serves on a port of its own. Calls to `/held` wait until they are released.
    async fn serve(&self) -> SocketAddr {
        let this = self.clone();
        let service = self.layer.layer(service_fn(move |request: Request<Incoming>| {
            let this = this.clone();
            async move {
                match request.uri().path() {
                    "/held" => drop(this.let_go.acquire().await.unwrap()),
                    _ => sleep(WORK).await,
                }
                let mut answer = answer(request.headers().contains_key("te"));
                answer.headers_mut().insert("served-by", HeaderValue::from_static(this.name));
                Ok::<_, Infallible>(answer)
            }
        }));
        let asked = Arc::clone(&self.asked);
        let counting = service_fn(move |request: Request<Incoming>| {
            if request.uri().path() == LOAD_PATH {
                asked.fetch_add(1, Relaxed);
            }
            service.clone().call(request)
        });
        serve(counting).await
    }
}

/// Makes a call. Returns the name of the server that responded.
async fn call(service: &ServiceHandle, grpc: bool) -> String {
    let answer = service.send(to("/", grpc)).await.unwrap();
    let by = answer.headers()["served-by"].to_str().unwrap().to_owned();
    http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
    by
}

/// Returns the known load of the endpoint `i0`.
fn first_report(service: &ServiceHandle) -> Option<ReceivedReport> {
    match &*service_state(service) {
        ServiceState::Ready(ready) => {
            let mut all = ready.upstream.candidates();
            all.find(|candidate| candidate.target.instance.as_str() == "i0").unwrap().report
        }
        _ => None,
    }
}

fn never_asking() -> Policy {
    let score = Score { poll: false, ..Score::default() };
    Policy { balancing: Balancing { score, ..Balancing::default() }, ..Policy::default() }
}

#[tokio::test]
async fn load_poll_reports_load_caused_by_other_callers() {
    for (protocol, grpc) in [(Protocol::Http1, false), (Protocol::Http2, false), (Protocol::Grpc, true)] {
        let rig = Rig::start().await;
        let stations = ["a", "b", "c"].map(Station::new);
        let mut addresses = Vec::new();
        for station in &stations {
            addresses.push(station.serve().await);
        }
        rig.replicated("shop/one", protocol, &addresses);
        rig.replicated("shop/only-a", protocol, &addresses[..1]);
        let (mesh, others) = (rig.mesh().await, rig.mesh().await);
        let service = mesh.service("shop/one").unwrap();
        let begun = Instant::now();
        // Nothing is known about an endpoint that was never called, not even its round-trip time.
        while first_report(&service).is_none() {
            call(&service, grpc).await;
            assert!(begun.elapsed() < PATIENCE, "a is never called");
        }

        let busy = others.service("shop/only-a").unwrap();
        let mut held = JoinSet::new();
        for _ in 0..5 {
            let busy = busy.clone();
            held.spawn(async move { ask(&busy, to("/held", grpc)).await });
        }
        until("five calls of others are under way", || stations[0].layer.outstanding().calls == 5).await;
        let learns = async |requests: u32| loop {
            let before = first_report(&service);
            let by = call(&service, grpc).await;
            let report = first_report(&service);
            // Only then did the report come from a poll.
            if by != "a" && report != before && report.unwrap().load.requests == Some(requests) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{protocol:?}: {report:?} of {:?}", mesh.stats());
        };
        learns(5).await;
        stations[0].let_go.add_permits(5);
        held.join_all().await;
        learns(0).await;

        assert_polls_count_as_no_calls(protocol, &mesh.stats(), &stations);
    }
}

fn assert_polls_count_as_no_calls(protocol: Protocol, stats: &Stats, stations: &[Station]) {
    assert!(stations[0].asked() >= 2 && stats.estimates_polled >= 2, "{protocol:?}: {stats:?}");
    let asked = stations.iter().map(Station::asked).sum::<usize>() as u64;
    assert!(asked <= stats.attempts / 10, "{protocol:?}: {asked} polls: {stats:?}");
    assert_eq!((stats.calls, stats.faults, stats.retries), (stats.attempts, 0, 0), "polls are no calls");
    assert_eq!(
        stats.connection_reuses,
        stats.attempts - stats.connections_opened,
        "polls use no connections"
    );
    assert_eq!(stats.reports_ignored, 0);
    assert_eq!(stations[0].layer.outstanding().calls, 0, "polls do not count at the server");
}

#[tokio::test]
async fn server_without_load_poll_support_is_not_polled_again() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let rig = Rig::start().await;
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let foreign = Server::start(move |request: Request<Bytes>| {
            let counted = Arc::clone(&counted);
            async move {
                if request.uri().path() == LOAD_PATH {
                    counted.fetch_add(1, Relaxed);
                    return text(404, "there is no such page");
                }
                sleep(WORK).await;
                let mut answer = text(200, "");
                let load = HeaderValue::from_static("TEXT cpu_utilization=0.5");
                answer.headers_mut().insert("endpoint-load-metrics", load);
                answer.headers_mut().insert("served-by", HeaderValue::from_static("foreign"));
                answer
            }
        })
        .await;
        let station = Station::new("a");
        rig.replicated("shop/one", protocol, &[station.serve().await, foreign.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        let begun = Instant::now();
        while station.asked() < 3 || asked.load(Relaxed) == 0 {
            call(&service, false).await;
            let stats = mesh.stats();
            assert!(begun.elapsed() < PATIENCE, "{}, {asked:?}: {stats:?}", station.asked());
        }
        for _ in 0..20 {
            call(&service, false).await;
        }
        assert_eq!(asked.load(Relaxed), 1, "{protocol:?}");
        assert_eq!(
            foreign.open(),
            foreign.connections(),
            "what it answered was read, and its connection kept"
        );
    }
}

#[tokio::test]
async fn polled_load_reports_are_shared_by_all_handles() {
    let rig = Rig::start().await;
    let station = Station::new("many");
    let mut addresses = Vec::new();
    for _ in 0..20 {
        addresses.push(station.serve().await);
    }
    rig.replicated("shop/one", Protocol::Http1, &addresses);
    let mesh = rig.mesh().await;
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let mesh = mesh.clone();
        callers.spawn(async move {
            for _ in 0..20 {
                call(&mesh.service("shop/one").unwrap(), false).await;
            }
        });
    }
    callers.join_all().await;
    let surveys = begun.elapsed().as_millis() / 20 + 1;
    let stats = mesh.stats();
    let asked = station.asked() as u128;
    assert!(asked > 0 && asked <= 2 * surveys, "{asked} in {surveys} surveys: {stats:?}");
    let estimates = stats.estimates_cached + stats.estimates_polled + stats.estimates_random;
    assert!(u128::from(estimates) <= 20 * surveys && stats.estimates_cached > 0, "{stats:?}");
    assert_eq!((stats.calls, stats.attempts, stats.faults), (320, 320, 0));
}

#[tokio::test]
async fn servers_are_not_polled_for_load_if_polling_is_disabled_or_useless() {
    let rig = Rig::start().await;
    let stations = ["a", "b", "c"].map(Station::new);
    let mut addresses = Vec::new();
    for station in &stations {
        addresses.push(station.serve().await);
    }
    let least = Balancing { policy: BalancingPolicy::LeastRequest, ..Balancing::default() };
    let least = Policy { balancing: least, ..Policy::default() };
    for (name, policy) in [("shop/off", never_asking()), ("shop/least", least)] {
        rig.policy(name, policy);
        rig.replicated(name, Protocol::Http1, &addresses);
        let mesh = rig.mesh().await;
        let service = mesh.service(name).unwrap();
        for _ in 0..30 {
            call(&service, false).await;
        }
        let stats = mesh.stats();
        let shares = [stats.estimates_cached, stats.estimates_polled, stats.estimates_random];
        assert_eq!(shares, [0; 3], "{name}: no rounds");
        assert_eq!(stations.each_ref().map(Station::asked), [0; 3], "{name}");
    }
}

#[tokio::test]
async fn program_without_calls_polls_no_server_for_load() {
    let rig = Rig::start().await;
    let stations = ["a", "b", "c"].map(Station::new);
    let mut addresses = Vec::new();
    for station in &stations {
        addresses.push(station.serve().await);
    }
    rig.replicated("shop/one", Protocol::Http1, &addresses);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    let asked = || stations.iter().map(Station::asked).sum::<usize>();
    while asked() == 0 {
        call(&service, false).await;
        assert!(begun.elapsed() < PATIENCE, "{:?}", mesh.stats());
    }
    // At most the two polls after the last call are still outstanding.
    let most = asked() + 2;
    // Meanwhile another program, which keeps calling the same kind of service, polls ten times.
    let others = ["d", "e", "f"].map(Station::new);
    let mut addresses = Vec::new();
    for station in &others {
        addresses.push(station.serve().await);
    }
    rig.replicated("shop/two", Protocol::Http1, &addresses);
    let (busy, begun) = (rig.mesh().await, Instant::now());
    let busy = busy.service("shop/two").unwrap();
    while others.iter().map(Station::asked).sum::<usize>() < 10 {
        call(&busy, false).await;
        assert!(begun.elapsed() < PATIENCE, "the other program does not ask");
    }
    assert!(asked() <= most, "{} after {most}", asked());
}

#[tokio::test]
async fn failed_load_poll_does_not_count_as_endpoint_failure() {
    let rig = Rig::start().await;
    let silent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&silent);
    let server = Server::start(move |request: Request<Bytes>| {
        let counted = Arc::clone(&counted);
        async move {
            if request.uri().path() == LOAD_PATH {
                counted.fetch_add(1, Relaxed);
                return pending().await;
            }
            sleep(WORK).await;
            let mut answer = text(200, "");
            let load = HeaderValue::from_static("TEXT named_metrics.concurrent_requests=0");
            answer.headers_mut().insert("endpoint-load-metrics", load);
            answer.headers_mut().insert("served-by", HeaderValue::from_static("silent"));
            answer
        }
    })
    .await;
    let stations = ["a", "b"].map(Station::new);
    let addresses = [server.address, stations[0].serve().await, stations[1].serve().await];
    rig.replicated("shop/one", Protocol::Http1, &addresses);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    while silent.load(Relaxed) == 0 {
        call(&service, false).await;
        assert!(begun.elapsed() < PATIENCE, "{:?}", mesh.stats());
    }
    // Waits until the poll of the silent server is given up: then one more poll has ended than the other servers
    // received. Then waits until another server is polled, which happens before a silent one is polled again.
    let asked = || stations.iter().map(Station::asked).sum::<usize>();
    while mesh.stats().estimates_polled <= asked() as u64 {
        call(&service, false).await;
        assert!(begun.elapsed() < PATIENCE, "{:?}", mesh.stats());
    }
    let before = asked();
    while asked() == before {
        call(&service, false).await;
        assert!(begun.elapsed() < PATIENCE, "{:?}", mesh.stats());
    }
    let stats = mesh.stats();
    assert_eq!(silent.load(Relaxed), 1, "it is left alone for a while");
    assert_eq!(server.open(), server.connections(), "a cancelled poll closes no connection");
    assert_eq!((stats.attempts, stats.faults, stats.retries), (stats.calls, 0, 0), "{stats:?}");
    let ServiceState::Ready(ready) = &*service_state(&service) else { panic!("known") };
    let troubles =
        ready.upstream.candidates().map(|c| (c.consecutive_failures, c.ejected_until, c.outstanding));
    assert!(troubles.into_iter().all(|trouble| trouble == (0, 0, 0)));
}

#[tokio::test]
async fn dead_and_draining_servers_are_not_polled_for_load() {
    let rig = Rig::start().await;
    let stations = ["a", "b"].map(Station::new);
    let dying = Server::start(|_| async {
        sleep(WORK).await;
        let mut answer = text(200, "");
        let load = HeaderValue::from_static("TEXT named_metrics.concurrent_requests=0");
        answer.headers_mut().insert("endpoint-load-metrics", load);
        answer.headers_mut().insert("served-by", HeaderValue::from_static("dying"));
        answer
    })
    .await;
    let addresses = [stations[0].serve().await, stations[1].serve().await, dying.address];
    rig.replicated("shop/one", Protocol::Http1, &addresses);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    while stations[0].asked() == 0 || dying.requests() == 0 {
        call(&service, false).await;
        assert!(begun.elapsed() < PATIENCE, "{:?}", mesh.stats());
    }
    dying.kill();
    until("its connections are gone", || dying.open() == 0).await;
    rig.endpoint("shop/one", "i0", addresses[0], EndpointState::Draining);
    let is_draining = || match &*service_state(&service) {
        ServiceState::Ready(ready) => {
            ready.upstream.candidates().any(|candidate| candidate.target.state == EndpointState::Draining)
        }
        _ => false,
    };
    until("the drain is known", is_draining).await;
    // Earlier polls may still be in flight.
    call(&service, false).await;
    let drained = stations[0].asked();
    for _ in 0..20 {
        assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    }
    let stats = mesh.stats();
    assert_eq!(stations[0].asked(), drained);
    assert_eq!((stats.faults, stats.reports_ignored), (0, 0), "{stats:?}");
    assert!(stats.retries <= 8, "calls find out that it is dead, and then it is avoided: {stats:?}");
}

#[tokio::test]
async fn load_poll_round_examines_few_endpoints_of_large_service() {
    let rig = Rig::start().await;
    let address = Station::new("all").serve().await;
    rig.policy(
        "shop/one",
        Policy { balancing: Balancing { subset: 0, ..Balancing::default() }, ..Policy::default() },
    );
    rig.replicated("shop/one", Protocol::Http1, &[address; 100]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    for _ in 0..9 {
        call(&service, false).await;
    }
    let looked = || {
        let stats = mesh.stats();
        stats.estimates_cached + stats.estimates_polled + stats.estimates_random
    };
    assert_eq!(looked(), 0, "no round before calls have paid for a poll");
    call(&service, false).await;
    until("the survey that followed the call is over", || looked() >= 32).await;
    assert_eq!(looked(), 32);
}

#[tokio::test]
async fn load_polls_do_not_keep_idle_connections_open() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let rig = Rig::start().await;
        let stations = ["a", "b"].map(Station::new);
        let addresses = [stations[0].serve().await, stations[1].serve().await];
        rig.replicated("shop/one", protocol, &addresses);
        rig.replicated("shop/only-a", protocol, &addresses[..1]);
        let (mesh, others) = (rig.mesh().await, rig.mesh().await);
        let service = mesh.service("shop/one").unwrap();
        let begun = Instant::now();
        while mesh.stats().connections_opened < 2 || first_report(&service).is_none() {
            call(&service, false).await;
            assert!(begun.elapsed() < PATIENCE, "not both are called: {:?}", mesh.stats());
        }
        let busy = others.service("shop/only-a").unwrap();
        let mut held = JoinSet::new();
        for _ in 0..8 {
            let busy = busy.clone();
            held.spawn(async move { ask(&busy, get("/held")).await });
        }
        until("eight calls of others are under way", || stations[0].layer.outstanding().calls == 8).await;
        // Waits until calls avoid server a, then until it is polled and connections are checked three more times.
        let mut rounds = 0;
        while rounds < 3 {
            let before = first_report(&service).unwrap();
            if call(&service, false).await == "a" {
                rounds = 0;
            } else if first_report(&service).unwrap() != before {
                let ServiceState::Ready(ready) = &*service_state(&service) else { panic!("known") };
                ready.opened_transports().for_each(EndpointTransport::close_idle);
                rounds += 1;
            }
            let stats = mesh.stats();
            assert!(begun.elapsed() < PATIENCE, "{protocol:?}, {rounds}: {stats:?}");
        }
        until("the connection to a is closed", || mesh.stats().connections_open == 1).await;
        stations[0].let_go.add_permits(8);
        held.join_all().await;
    }
}

#[tokio::test]
async fn implausible_polled_load_report_is_counted() {
    let rig = Rig::start().await;
    let liar = Server::start(|request: Request<Bytes>| async move {
        let mut load = HeaderValue::from_static("TEXT named_metrics.concurrent_requests=0");
        match request.uri().path() {
            LOAD_PATH => load = HeaderValue::from_static("TEXT named_metrics.concurrent_requests=-1"),
            _ => sleep(WORK).await,
        }
        let mut answer = text(200, "");
        answer.headers_mut().insert("endpoint-load-metrics", load);
        answer.headers_mut().insert("served-by", HeaderValue::from_static("liar"));
        answer
    })
    .await;
    rig.replicated("shop/one", Protocol::Http1, &[liar.address, Station::new("a").serve().await]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    while mesh.stats().reports_ignored == 0 {
        call(&service, false).await;
        assert!(begun.elapsed() < PATIENCE, "{:?}", mesh.stats());
    }
    assert_eq!(first_report(&service).unwrap().load.requests, Some(0), "the previous report stays");
}
