//! What routes and policies decide where a call says nothing: the role of a copy, and the statuses after which it is retried.

use fairmesh_client::{Body, ServiceHandle};
use fairmesh_model::{
    Actions, EndpointState, InstanceId, Label, Match, Policy, Protocol, Replica, ReplicaState, Retries, Role,
    Route, ServiceKind, Shard, ShardId, ShardKey, ShardMap,
};

use crate::{
    rig::{Rig, ask, get, map, post, region},
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

/// One shard, with a copy of each role named as its instance.
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

/// The status, and the name of the server that responds, which its response begins with.
async fn answered_by(service: &ServiceHandle, request: http::Request<Body>) -> (u16, String) {
    let (status, text) = ask(service, request).await.unwrap();
    (status, text.split(' ').next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn role_of_call_precedes_that_of_route_and_that_of_policy() {
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
async fn statuses_of_a_route_are_retried_where_repeating_is_safe() {
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
