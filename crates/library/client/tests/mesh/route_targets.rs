//! Choices of routes and policies for calls that make none: the role of a copy, and the statuses that are retried.

use std::collections::BTreeSet;

use fairmesh_client::{Body, ServiceHandle};
use fairmesh_model::{
    Actions, Backend, EndpointState, InstanceId, Label, Match, Policy, Protocol, Replica, ReplicaState,
    Retries, Role, Route, ServiceKind, ServiceName, Shard, ShardId, ShardKey, ShardMap,
};

use crate::{
    rig::{PATIENCE, Rig, ask, get, map, post, region},
    server::{Server, text},
};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn role(name: &str) -> Role {
    Role::new(name).unwrap()
}

fn route(methods: &[&str], actions: Actions) -> Route {
    let methods = methods.iter().map(ToString::to_string).collect();
    let matches = Match { methods, ..Match::default() };
    Route { matches, actions, ..Route::new(Label::new("one").unwrap()) }
}

/// Returns a map of one shard with a copy for each role; the instance of a copy is named like its role.
fn by_role(roles: &[&str]) -> ShardMap {
    let replica = |name: &&str| Replica {
        instance: InstanceId::new(name).unwrap(),
        region: region("eu"),
        role: role(name),
        state: ReplicaState::Serving,
    };
    let replicas = roles.iter().map(replica).collect();
    ShardMap { shards: vec![Shard { id: ShardId(0), start: ShardKey(0), replicas }], ..map(1, &[]) }
}

/// Returns the status, and the name of the responding server, with which its response begins.
async fn answered_by(service: &ServiceHandle, request: http::Request<Body>) -> (u16, String) {
    let (status, text) = ask(service, request).await.unwrap();
    (status, text.split(' ').next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn shard_role_of_call_takes_precedence_over_route_and_policy() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let roles = ["primary", "secondary", "witness"];
        let mut servers = Vec::new();
        rig.service("shop/one", ServiceKind::Sharded, protocol);
        for name in roles {
            let server = Server::echo(name).await;
            rig.endpoint("shop/one", name, server.address, EndpointState::Serving);
            servers.push(server);
        }
        rig.shard_map("shop/one", &by_role(&roles));
        let writes = Actions { role: Some(role("primary")), ..Actions::default() };
        let routes = vec![route(&["POST"], writes)];
        rig.policy("shop/one", Policy { routes, role: Some(role("secondary")), ..Policy::default() });
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap().key(5);
        service.prepare().await.unwrap();
        for _ in 0..8 {
            assert_eq!(answered_by(&service, get("/")).await.1, "secondary");
            assert_eq!(answered_by(&service, post("/", "x")).await.1, "primary");
            let named = service.clone().role("witness").unwrap();
            assert_eq!(answered_by(&named, post("/", "x")).await.1, "witness");
        }
        let words = service.explain(&get("/"), 0).await.unwrap().to_string();
        assert!(words.contains("the call names no role: 'secondary', by the policy"), "{words}");
        let words = service.explain(&post("/", ""), 0).await.unwrap().to_string();
        assert!(words.contains("go to copies of role 'primary'"), "{words}");
    }
}

#[tokio::test]
async fn retry_statuses_of_route_are_retried_only_for_idempotent_requests() {
    for protocol in BOTH {
        let rig = Rig::start().await;
        let failing = Server::start(async |_| text(429, "no")).await;
        let well = Server::echo("well").await;
        let retried = Actions { retry_on: vec![429, 504], ..Actions::default() };
        let routes = vec![route(&["GET", "POST"], retried)];
        let retries = Retries { attempts: 3, budget_percent: 100, budget_floor: 1000 };
        rig.policy("shop/one", Policy { routes, retries, ..Policy::default() });
        rig.replicated("shop/one", protocol, &[failing.address, well.address]);
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        service.prepare().await.unwrap();
        for _ in 0..20 {
            assert_eq!(answered_by(&service, get("/")).await, (200, "well".into()));
        }
        assert!(mesh.stats().retries >= 1 && failing.requests() >= 1, "{:?}", mesh.stats());
        let mut statuses = Vec::new();
        while !statuses.contains(&429) {
            statuses.push(ask(&service, post("/", "x")).await.unwrap().0);
            assert!(statuses.len() < 100, "a POST may not be repeated");
        }
        let put = || http::Request::put("/").body(Body::empty()).unwrap();
        let mut others = Vec::new();
        while !others.contains(&429) {
            others.push(ask(&service, put()).await.unwrap().0);
            assert!(others.len() < 100, "no route names the status for this method");
        }
    }
}

/// Whether calls go to servers of both names and none fails.
async fn both_serve(service: &ServiceHandle) -> bool {
    let mut names = BTreeSet::new();
    for _ in 0..40 {
        let Ok((_, text)) = ask(service, get("/")).await else { return false };
        names.insert(text.split(' ').next().unwrap_or_default().to_owned());
    }
    names.into_iter().eq(["one", "two"])
}

#[tokio::test]
async fn calls_to_empty_split_backends_are_redistributed_if_route_allows() {
    let rig = Rig::start().await;
    let servers = [Server::echo("one").await, Server::echo("two").await];
    rig.replicated("shop/one", Protocol::Http1, &[servers[0].address]);
    rig.replicated("shop/two", Protocol::Http1, &[servers[1].address]);
    let split = ["shop/one", "shop/two", "shop/undeclared"]
        .map(|name| Backend { service: ServiceName::new(name).unwrap(), weight: 1 });
    let actions = Actions { redistributes_empty: true, ..Actions::default() };
    let routes = vec![Route { split: split.into(), ..route(&[], actions) }];
    rig.policy("shop/one", Policy { routes, ..Policy::default() });
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    service.prepare().await.unwrap();
    let answers = async || {
        let mut names = BTreeSet::new();
        for _ in 0..40 {
            let (status, name) = answered_by(&service, get("/")).await;
            assert_eq!(status, 200);
            names.insert(name);
        }
        names.into_iter().collect::<Vec<_>>()
    };
    // Before the policy arrives, the service itself serves all calls. A backend whose records have not arrived does not
    // count as empty.
    let known = async || {
        let both = async { while !both_serve(&service).await {} };
        tokio::time::timeout(PATIENCE, both).await.unwrap();
    };
    known().await;
    assert_eq!(answers().await, ["one", "two"]);
    let becomes = async |expected: &str| {
        let moved = async { while answers().await != [expected] {} };
        tokio::time::timeout(PATIENCE, moved).await.unwrap();
    };
    rig.endpoint("shop/two", "i0", servers[1].address, EndpointState::Draining);
    becomes("one").await;
    for seed in 0..20 {
        let report = service.explain(&get("/"), seed).await.unwrap();
        assert_eq!(report.endpoint.as_ref().unwrap().address, servers[0].address, "{report}");
    }
    rig.endpoint("shop/two", "i0", servers[1].address, EndpointState::Serving);
    // Records of two services arrive one after the other. Until then, both could be empty.
    known().await;
    rig.remove_endpoint("shop/one", "i0");
    // The service itself is a backend too. Calls decided earlier may fail.
    let moved =
        async { while ask(&service, get("/")).await.is_ok_and(|(_, text)| text.starts_with("one")) {} };
    tokio::time::timeout(PATIENCE, moved).await.unwrap();
    becomes("two").await;
}

#[tokio::test]
async fn calls_go_to_other_backends_before_records_of_empty_one_arrive() {
    let rig = Rig::start().await;
    let server = Server::echo("one").await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let split = ["shop/one", "shop/undeclared"]
        .map(|name| Backend { service: ServiceName::new(name).unwrap(), weight: 1 });
    let actions = Actions { redistributes_empty: true, ..Actions::default() };
    let routes = vec![Route { split: split.into(), ..route(&[], actions) }];
    rig.policy("shop/one", Policy { routes, ..Policy::default() });
    for _ in 0..20 {
        // A mesh that knows nothing yet: its first calls begin before the records of a backend arrive.
        let mesh = rig.mesh().await;
        let service = mesh.service("shop/one").unwrap();
        let calls = (0..8).map(|_| answered_by(&service, get("/")));
        for answer in futures_util::future::join_all(calls).await {
            assert_eq!(answer, (200, "one".to_owned()));
        }
    }
}
