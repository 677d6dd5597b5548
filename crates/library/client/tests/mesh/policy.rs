//! Policies: route actions, limits, retries, hedges and mirrors.

use std::{sync::Arc, time::Duration};

use fairmesh_calls::{
    discovery::ServiceState,
    forwarding::{Principal, TokenRefusal, TokenVerifier, UserToken, service_state, with_principals},
};
use fairmesh_client::{Body, FaultKind, Mesh, Retry, ServiceHandle, observe::CallExplanation};
use fairmesh_model::{
    Abort, Actions, CallerId, DefaultAuthorization, Delay, HeaderEdits, KeySource, Label, Match, Mirror,
    PathMatch, PathRewrite, Policy, Protocol, RateLimit, Redirect, Retries, Rewrite, Route, RouteSource,
    Scope, ServiceKind, Share, Timeouts,
};
use fairmesh_wire::{LogLimiter, proxy_protocol::ConnectionId};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;

use crate::{
    rig::{Rig, ask, get, named, post, until},
    server::{Server, text},
};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn below(path: &str, actions: Actions) -> Policy {
    let path = Some(PathMatch::Prefix(path.into()));
    let matches = Match { path, ..Match::default() };
    let route = Route { matches, actions, ..Route::new(Label::new("one").unwrap()) };
    Policy { routes: vec![route], ..Policy::default() }
}

fn edits(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderEdits {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
    HeaderEdits { set: pairs(set), add: pairs(add), remove: remove.iter().map(|&n| n.to_owned()).collect() }
}

/// Declares a service with a policy, and connects a mesh that knows both.
async fn service(rig: &Rig, protocol: Protocol, server: &Server, policy: Policy) -> (Mesh, ServiceHandle) {
    rig.policy("shop/one", policy);
    rig.replicated("shop/one", protocol, &[server.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    (mesh, service)
}

async fn report(service: &ServiceHandle, request: &Request<Body>) -> CallExplanation {
    service.explain(request, 0).await.unwrap()
}

#[tokio::test]
async fn route_rewrites_path_host_and_headers_over_http1_and_http2() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let server = Server::start(async |request: Request<bytes::Bytes>| {
            let host = request.uri().authority().map(|authority| authority.as_str().to_owned());
            let header = |name| {
                let values = request.headers().get_all(name).iter().map(|value| value.to_str().unwrap());
                values.collect::<Vec<_>>().join("+")
            };
            let host = host.unwrap_or_else(|| header("host"));
            let path = request.uri().path_and_query().unwrap();
            let mut answer = text(
                200,
                format!("{host} {path} {} {} {}", header("x-set"), header("x-add"), header("x-gone")),
            );
            answer.headers_mut().insert("server", "tea".parse().unwrap());
            answer
        })
        .await;
        let rewrite =
            Rewrite { host: Some("inner.example".into()), path: Some(PathRewrite::Prefix("/v2".into())) };
        let request_headers = edits(&[("x-set", "new")], &[("x-add", "more")], &["x-gone"]);
        let response_headers = edits(&[("x-by", "mesh")], &[], &["server"]);
        let actions = Actions { rewrite, request_headers, response_headers, ..Actions::default() };
        let (_mesh, service) = service(&rig, protocol, &server, below("/v1", actions)).await;
        let request = Request::get("/v1/items?q=/v1").header("x-set", "old").header("x-add", "some");
        let request = request.header("x-gone", "1").body(Body::empty()).unwrap();
        let words = report(&service, &request).await.to_string();
        assert!(
            words.contains("'one', number 1 of 1") && words.contains("the path becomes /v2/items?q=/v1"),
            "{words}"
        );
        let answer = service.send(request).await.unwrap();
        assert_eq!(
            (answer.headers().get("server"), &answer.headers()["x-by"]),
            (None, &"mesh".parse().unwrap())
        );
        let told = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(told, "inner.example /v2/items?q=/v1 new some+more ");
        let (_, told) = ask(&service, get("/v10")).await.unwrap();
        assert_eq!(told, "one.shop /v10   ", "no other call is touched");
    }
}

#[tokio::test]
async fn route_redirect_is_returned_without_calling_server() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    let redirect = Redirect {
        https: Some(true),
        host: None,
        port: None,
        path: Some(PathRewrite::Prefix("/new".into())),
        status: 308,
    };
    let policy = below("/old", Actions { redirect: Some(redirect), ..Actions::default() });
    let (mesh, service) = service(&rig, Protocol::Http1, &server, policy).await;
    let answer = service.send(get("/old/a?b=c")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PERMANENT_REDIRECT);
    assert_eq!(answer.headers()["location"], "https://one.shop/new/a?b=c");
    assert_eq!((server.requests(), mesh.stats().attempts, mesh.stats().faults), (0, 0, 0));
    let words = report(&service, &get("/old")).await.to_string();
    assert!(
        words.contains("redirects with 308 to https://one.shop/new") && !words.contains("fails"),
        "{words}"
    );
}

#[tokio::test]
async fn injected_faults_affect_configured_share_of_calls_and_are_counted() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    let half: Share = "50%".parse().unwrap();
    let actions = Actions { abort: Some(Abort { share: half, status: 503 }), ..Actions::default() };
    let (mesh, service) = service(&rig, Protocol::Http1, &server, below("", actions)).await;
    let mut aborted = 0;
    for _ in 0..200 {
        let answer = service.send(get("/")).await.unwrap();
        if answer.status() == 503 {
            assert_eq!(answer.headers()["x-fairmesh-fault"], "injected");
            aborted += 1;
        }
    }
    assert!((60..140).contains(&aborted), "{aborted}");
    assert_eq!((mesh.stats().injected_aborts, server.requests()), (aborted, 200 - aborted as usize));
    assert_eq!(mesh.stats().retries, 0, "a call that was not sent is not retried");

    let actions = Actions { abort: Some(Abort { share: Share::ALL, status: 503 }), ..Actions::default() };
    rig.policy("shop/two", below("", actions));
    rig.replicated("shop/two", Protocol::Grpc, &[server.address]);
    let mut request = post("/pkg.Service/Method", "");
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let answer = mesh.service("shop/two").unwrap().send(request).await.unwrap();
    assert_eq!((answer.status(), &answer.headers()["grpc-status"]), (StatusCode::OK, &"14".parse().unwrap()));
}

#[tokio::test]
async fn injected_delay_lasts_at_most_until_deadline() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    let delay = |time| Actions { delay: Some(Delay { share: Share::ALL, time }), ..Actions::default() };
    let policy = below("", delay(Duration::from_millis(60)));
    let (_mesh, service) = service(&rig, Protocol::Http1, &server, policy).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    assert!(begun.elapsed() >= Duration::from_millis(60));
    let fault = ask(&service.clone().timeout(Duration::from_millis(20)), get("/")).await.unwrap_err();
    assert_eq!((fault.kind(), fault.retry(), server.requests()), (FaultKind::Deadline, Retry::Unsent, 1));
}

#[tokio::test]
async fn rate_limit_refuses_excess_calls_with_retry_delay() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    let limit = Some(RateLimit { calls: 3, per: Duration::from_secs(3600), burst: 3, scope: Scope::Caller });
    let policy = below("/few", Actions { limit, ..Actions::default() });
    let (mesh, service) = service(&rig, Protocol::Http1, &server, policy).await;
    for _ in 0..3 {
        assert_eq!(ask(&service, get("/few")).await.unwrap().0, 200);
    }
    let fault = ask(&service, get("/few")).await.unwrap_err();
    assert_eq!((fault.kind(), fault.retry()), (FaultKind::RateLimited, Retry::Unsent));
    let wait = fault.retry_after().unwrap();
    assert!((Duration::from_secs(1000)..=Duration::from_secs(1200)).contains(&wait), "{wait:?}");
    assert!(fault.to_string().contains("shop/one"), "{fault}");
    assert_eq!(ask(&service, get("/many")).await.unwrap().0, 200, "the limit is of its route");
    assert_eq!((mesh.stats().rate_limited_calls, server.requests()), (1, 4));
}

/// Starts a server that delays the first `held` requests for long, and responds to the others immediately.
async fn slow(held: usize) -> Server {
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let seen = std::sync::Arc::new(seen);
    let server = Server::start(move |_| {
        let turn = seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            if turn < held {
                tokio::time::sleep(crate::rig::PATIENCE).await;
            }
            text(200, "at once")
        }
    });
    server.await
}

#[tokio::test]
async fn default_timeout_of_tenant_already_ends_first_call() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let timeouts = |ms| Timeouts { total: Some(Duration::from_millis(ms)), ..Timeouts::default() };
        let of = |ms| Policy { timeouts: timeouts(ms), ..Policy::default() };
        rig.policy_defaults("", &of(60_000));
        rig.policy_defaults("shop", &of(100));
        let server = Server::start(|_| async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            text(200, "late")
        });
        let server = server.await;
        rig.replicated("shop/one", protocol, &[server.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        let fault = ask(&service, get("/")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Deadline, "{fault}");
        // A change of a single record reaches a running caller.
        rig.policy_defaults("shop", &of(50_000));
        let answered = async { while ask(&service, get("/")).await.is_err() {} };
        tokio::time::timeout(crate::rig::PATIENCE, answered).await.unwrap();
    }
}

fn generous(policy: Policy) -> Policy {
    Policy { retries: Retries { attempts: 3, budget_percent: 100, budget_floor: 100 }, ..policy }
}

#[tokio::test]
async fn timed_out_attempt_is_retried_if_request_is_idempotent() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (stuck, well) = (slow(usize::MAX).await, Server::echo("b").await);
        let actions = Actions { attempt_timeout: Some(Duration::from_millis(100)), ..Actions::default() };
        rig.policy("shop/one", generous(below("", actions)));
        rig.replicated("shop/one", protocol, &[stuck.address, well.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        for _ in 0..10 {
            assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
        }
        assert!(mesh.stats().retries >= 1 && stuck.requests() >= 1, "{:?}", mesh.stats());
        // A call to the stuck server that must not be repeated fails long before its deadline of 15 s.
        rig.remove_endpoint("shop/one", "i1");
        let fault = async {
            loop {
                if let Err(fault) = ask(&service, post("/", "")).await {
                    return fault;
                }
            }
        };
        let fault = tokio::time::timeout(crate::rig::PATIENCE, fault).await.unwrap();
        assert_eq!((fault.kind(), fault.retry()), (FaultKind::Deadline, Retry::MaybeSent));
        assert!(fault.to_string().contains("attempt timeout"), "{fault}");
    }
}

#[tokio::test]
async fn servers_receive_timeout_of_route_as_deadline() {
    let rig = Rig::start().await;
    let server = Server::start(async |request: Request<bytes::Bytes>| {
        let told = request.headers().get("x-fairmesh-deadline");
        text(200, told.map_or("none", |told| told.to_str().unwrap()))
    })
    .await;
    let actions = Actions { server_timeout: Some(Duration::from_millis(700)), ..Actions::default() };
    let (_mesh, service) = service(&rig, Protocol::Http1, &server, below("/short", actions)).await;
    let bounded = service.clone().timeout(Duration::from_secs(15));
    let told = async |service, path| ask(service, get(path)).await.unwrap().1;
    assert_eq!(told(&bounded, "/short").await, "700", "the call itself has 15 s");
    assert!(told(&bounded, "/long").await.parse::<u64>().unwrap() > 700);
    assert_eq!(told(&service, "/short").await, "700", "the call itself has no deadline");
    assert_eq!(told(&service, "/long").await, "none");
}

#[tokio::test]
async fn slow_call_is_hedged_and_first_response_wins() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (stuck, well) = (slow(usize::MAX).await, Server::echo("b").await);
        let actions = Actions { hedge_after: Some(Duration::from_millis(50)), ..Actions::default() };
        rig.policy("shop/one", generous(below("", actions)));
        rig.replicated("shop/one", protocol, &[stuck.address, well.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        for _ in 0..20 {
            assert_eq!(ask(&service, get("/")).await.unwrap(), (200, "b GET / ".into()));
        }
        let stats = mesh.stats();
        assert!(stats.hedges >= 1 && stats.retries == 0 && stats.attempts == 20 + stats.hedges, "{stats:?}");
        let ServiceState::Ready(ready) = &*service_state(&service) else { panic!("not ready") };
        let outstanding: u32 = ready.upstream.candidates().map(|candidate| candidate.outstanding).sum();
        assert_eq!(outstanding, 0, "the cancelled attempt is not outstanding any more");
        let hedges = mesh.stats().hedges;
        let may_not = async { ask(&service, post("/", "tea")).await };
        let _ = tokio::time::timeout(Duration::from_millis(200), may_not).await;
        assert_eq!(mesh.stats().hedges, hedges, "an unsafe call is not hedged");
    }
}

#[tokio::test]
async fn hedged_attempts_are_charged_to_retry_budget() {
    let rig = Rig::start().await;
    let (one, two) = (slow(usize::MAX).await, slow(usize::MAX).await);
    let actions = Actions { hedge_after: Some(Duration::from_millis(1)), ..Actions::default() };
    let retries = Retries { attempts: 3, budget_percent: 0, budget_floor: 0 };
    rig.policy("shop/one", Policy { retries, ..below("", actions) });
    rig.replicated("shop/one", Protocol::Http1, &[one.address, two.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    let service = service.timeout(Duration::from_millis(300));
    assert_eq!(ask(&service, get("/")).await.unwrap_err().kind(), FaultKind::Deadline);
    let stats = mesh.stats();
    assert_eq!((stats.hedges, stats.attempts, stats.retry_budget_exhausted), (0, 1, 1), "{stats:?}");
}

#[tokio::test]
async fn mirrored_requests_never_delay_call() {
    let rig = Rig::start().await;
    let (server, shadow) = (Server::echo("a").await, Server::echo("shadow").await);
    let mirror = |service: &str| Some(Mirror { service: named(service), share: Share::ALL });
    let actions = |service: &str| Actions { mirror: mirror(service), ..Actions::default() };
    rig.replicated("shop/shadow", Protocol::Http1, &[shadow.address]);
    let (mesh, service) = service(&rig, Protocol::Http1, &server, below("", actions("shop/shadow"))).await;
    for _ in 0..10 {
        assert_eq!(ask(&service, post("/add", "tea")).await.unwrap(), (200, "a POST /add tea".into()));
    }
    until("every copy has arrived", || shadow.requests() == 10).await;
    // A mirror that never responds delays no call, and only a limited number of mirrored calls wait for it.
    let stuck = slow(usize::MAX).await;
    rig.replicated("shop/stuck", Protocol::Http1, &[stuck.address]);
    rig.policy("shop/one", below("", actions("shop/stuck")));
    let enough = async {
        while mesh.stats().mirrors_skipped == 0 {
            assert_eq!(ask(&service, post("/add", "tea")).await.unwrap().0, 200);
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, enough).await.unwrap();
    assert!(stuck.requests() <= 64, "{}", stuck.requests());
}

/// A verifier that accepts no token.
#[derive(Debug)]
struct NoTokens;

impl TokenVerifier for NoTokens {
    fn verify(&self, _: &str) -> Result<UserToken, TokenRefusal> {
        Err(TokenRefusal::Unknown)
    }
}

/// Returns the principal of a caller behind a gateway.
fn principal(id: &str) -> Arc<Principal> {
    Arc::new(Principal {
        caller: CallerId::new(id.parse().unwrap()),
        default: tokio::sync::watch::channel(DefaultAuthorization::Allow).1,
        source: [127, 0, 0, 1].into(),
        tokens: tokio::sync::watch::channel(Arc::new(NoTokens) as Arc<dyn TokenVerifier>).1,
        connection: ConnectionId(7),
        log: Arc::new(LogLimiter::new()),
        mirrors: Principal::mirror_permits(),
    })
}

#[tokio::test]
async fn stuck_mirror_of_one_tenant_does_not_affect_mirrors_of_others() {
    let rig = Rig::start().await;
    let (server, stuck) = (Server::echo("a").await, slow(usize::MAX).await);
    let mirror = Some(Mirror { service: named("shop/stuck"), share: Share::ALL });
    rig.policy("shop/one", below("", Actions { mirror, ..Actions::default() }));
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    rig.replicated("shop/stuck", Protocol::Http1, &[stuck.address]);
    let mesh =
        with_principals(Mesh::builder()).agent(rig.address()).client_id("test").connect().await.unwrap();
    let service = mesh.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    let [red, blue] = ["red", "blue"].map(|tenant| principal(&format!("spiffe://prod/{tenant}/web")));
    let call = async |caller: &Arc<Principal>| {
        let mut request = post("/add", "tea");
        request.extensions_mut().insert(Arc::clone(caller));
        assert_eq!(ask(&service, request).await.unwrap().0, 200);
    };
    let exhausted = async {
        while mesh.stats().mirrors_skipped == 0 {
            call(&red).await;
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, exhausted).await.unwrap();
    let before = mesh.stats();
    call(&blue).await;
    let after = mesh.stats();
    assert_eq!(after.mirrored_calls - before.mirrored_calls, 1);
    assert_eq!(after.mirrors_skipped, before.mirrors_skipped);
}

#[tokio::test]
async fn route_to_another_tenant_needs_consent_of_its_policy() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let (server, vault) = (Server::echo("a").await, Server::echo("vault").await);
        rig.replicated("bank/vault", protocol, &[vault.address]);
        let mirror = Some(Mirror { service: named("bank/vault"), share: Share::ALL });
        let mut policy = below("/copied", Actions { mirror, ..Actions::default() });
        let mut split = crate::rig::split("/split", "bank/vault").routes.remove(0);
        split.actions.rewrite.path = Some(PathRewrite::Full("/delete-all".into()));
        split.name = Label::new("two").unwrap();
        policy.routes.push(split);
        let (mesh, service) = service(&rig, protocol, &server, policy).await;
        for _ in 0..3 {
            let fault = ask(&service, post("/split", "")).await.unwrap_err();
            assert_eq!((fault.kind(), fault.retry()), (FaultKind::RouteNotAccepted, Retry::Never), "{fault}");
            assert!(fault.to_string().contains("acceptRoutesFrom: [shop/one]"), "{fault}");
            assert_eq!(ask(&service, post("/copied", "")).await.unwrap().0, 200, "the call itself");
        }
        until("the copies have failed", || mesh.stats().mirrors_failed == 3).await;
        assert_eq!(vault.requests(), 0);
        let words = report(&service, &post("/split", "")).await.to_string();
        assert!(words.contains("the policy of bank/vault does not accept routes from shop/one"), "{words}");

        let accept_routes_from = vec![RouteSource::new("shop/*").unwrap()];
        rig.policy("bank/vault", Policy { accept_routes_from, ..Policy::default() });
        let accepted = async {
            // A call that is refused at once does not let other tasks run.
            while ask(&service, post("/split", "")).await.is_err() {
                tokio::task::yield_now().await;
            }
            ask(&service, post("/copied", "")).await.unwrap();
        };
        tokio::time::timeout(crate::rig::PATIENCE, accepted).await.expect("the consent arrives");
        until("the call and the copy have arrived", || vault.requests() == 2).await;
    }
}

#[tokio::test]
async fn long_bodies_are_not_mirrored_and_unknown_mirrors_fail_no_call() {
    let rig = Rig::start().await;
    let server =
        Server::start(async |request: Request<bytes::Bytes>| text(200, request.body().len().to_string()))
            .await;
    let mirror = Some(Mirror { service: named("shop/nobody"), share: Share::ALL });
    let policy = below("", Actions { mirror, ..Actions::default() });
    let (mesh, service) = service(&rig, Protocol::Http1, &server, policy).await;
    let long = Request::post("/").body(Body::from(vec![b'x'; 64 * 1024 + 1])).unwrap();
    assert_eq!(ask(&service, long).await.unwrap(), (200, "65537".into()));
    assert_eq!((mesh.stats().mirrored_calls, mesh.stats().mirrors_skipped), (0, 1));
    assert_eq!(ask(&service, post("/", "tea")).await.unwrap(), (200, "3".into()));
    until("the copy has failed", || mesh.stats().mirrors_failed == 1).await;
    assert_eq!(mesh.stats().mirrored_calls, 1);
}

#[tokio::test]
async fn session_cookie_keeps_calls_at_one_endpoint() {
    let rig = Rig::start().await;
    let servers = [Server::echo("a").await, Server::echo("b").await, Server::echo("c").await];
    let policy = Policy { key: vec![KeySource::Cookie("sid".into())], ..Policy::default() };
    rig.policy("shop/one", policy);
    rig.replicated("shop/one", Protocol::Http1, &servers.each_ref().map(|server| server.address));
    rig.service("shop/one", ServiceKind::ConsistentHash, Protocol::Http1);
    let service = rig.mesh().await.service("shop/one").unwrap();
    let who = async |session: &str| {
        let request = Request::get("/").header("cookie", format!("a=b; sid={session}"));
        ask(&service, request.body(Body::empty()).unwrap()).await.unwrap().1
    };
    let mut homes = std::collections::BTreeSet::new();
    for session in ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"] {
        let home = who(session).await;
        for _ in 0..5 {
            assert_eq!(who(session).await, home, "{session}");
        }
        homes.insert(home);
    }
    assert!(homes.len() > 1, "sessions spread: {homes:?}");
    assert_eq!(ask(&service, get("/")).await.unwrap_err().kind(), FaultKind::KeyMissing);
}

#[tokio::test]
async fn traffic_split_to_undeclared_service_fails_with_reason_and_is_counted() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    let (mesh, service) =
        service(&rig, Protocol::Http1, &server, crate::rig::split("/x", "shop/nobody")).await;
    let fault = ask(&service, get("/x")).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::UnknownService);
    assert!(fault.to_string().contains("shop/nobody"), "{fault}");
    assert_eq!((mesh.stats().attempts_without_endpoint, mesh.stats().faults), (1, 1));
    assert_eq!(ask(&service, get("/y")).await.unwrap().0, 200, "other calls go on");
}
