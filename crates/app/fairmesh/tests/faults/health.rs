//! Health checks: one agent per region probes, callers follow its verdicts, and another agent takes over when it dies.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_wire::transport::Address;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::harness::{Kind, Load, World, beside_others, until};

const CHECKED: &str = "\
kind: Service
name: shop/one
---
kind: Policy
service: shop/one
healthCheck: {http: {path: /healthz}, interval: 200ms, timeout: 200ms, rise: 2, fall: 3}
";

/// A server whose health the test controls.
#[derive(Clone)]
struct Patient {
    name: &'static str,
    ill: Arc<AtomicBool>,
    probes: Arc<AtomicU64>,
    _server: MeshServer,
}

impl Patient {
    async fn start(name: &'static str, agent: &Address) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let builder = MeshServer::builder("shop/one").instance(name).address(listener.local_addr().unwrap());
        let server = builder.protocol(Protocol::Http1).agent(agent.clone()).start().await.unwrap();
        let patient = Self { name, ill: Arc::default(), probes: Arc::default(), _server: server.clone() };
        let answering = patient.clone();
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let answer = answering.answer(request.uri().path());
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(async move { serve_http(listener, service, &server).await.unwrap() });
        patient
    }

    fn answer(&self, path: &str) -> Response<String> {
        let mut answer = Response::new(String::new());
        answer.headers_mut().insert("x-instance", self.name.parse().unwrap());
        if path == "/healthz" {
            self.probes.fetch_add(1, Relaxed);
            if self.ill.load(Relaxed) {
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
        }
        answer
    }
}

fn probes(patients: &[Patient]) -> u64 {
    patients.iter().map(|patient| patient.probes.load(Relaxed)).sum()
}

/// Verdict on an instance in `get health`.
async fn verdict(world: &World, instance: &str) -> Option<(bool, String)> {
    let health = world.cli(&["get", "health", "shop/one", "--json"]).await.json();
    let one = health.as_array().unwrap().iter().find(|one| one["instance"] == instance)?.clone();
    Some((one["healthy"].as_bool().unwrap(), one["cause"].as_str().unwrap().to_owned()))
}

/// Checks lists, descriptions and explanations of an unhealthy endpoint.
async fn unhealthy_is_shown(world: &World) {
    let mut endpoints = Value::Null;
    // A machine that pauses for a moment misses probes of other endpoints too.
    until("c alone is unhealthy", async || {
        endpoints = world.cli(&["get", "endpoints", "shop/one", "--json"]).await.json();
        let states = endpoints.as_array().unwrap().iter().map(|one| (&one["instance"], &one["state"]));
        let states: Vec<_> = states.map(|(name, state)| format!("{name} {state}")).collect();
        states == [r#""a" "serving""#, r#""b" "serving""#, r#""c" "unhealthy""#]
    })
    .await;
    assert_eq!(endpoints[2]["health"]["by"], "health checks of eu");
    let services = world.cli(&["get", "services", "--json"]).await.json();
    assert_eq!((&services[0]["serving"], &services[0]["unhealthy"]), (&2.into(), &1.into()), "{services}");
    let why = "by health checks of eu since 20";
    for command in [
        &["get", "endpoints", "shop/one"][..],
        &["describe", "service", "shop/one"],
        &["describe", "endpoint", "shop/one/c"],
        &["explain", "shop/one", "--region", "eu"],
    ] {
        let told = world.cli(command).await.ok();
        assert!(told.contains(why), "{command:?}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_follow_elected_health_checker_and_its_replacement() {
    let _machine = beside_others().await;
    let mut world = World::start(CHECKED).await;
    let holds = async || world.agent_metric("fairmesh_agent_health_checker").await == 1.0;
    until("the first agent checks the region", holds).await;
    // Programs that must survive the death of the first agent use the second.
    let (_other, second) = world.another_agent("second").await;
    let mut patients = Vec::new();
    for name in ["a", "b", "c"] {
        patients.push(Patient::start(name, &second).await);
    }
    let healthy = async || verdict(&world, "c").await.is_some_and(|(healthy, _)| healthy);
    until("the servers are found healthy", healthy).await;
    until("each was probed often", async || probes(&patients) >= 30).await;
    let received = probes(&patients);
    let sent = world.agent_metric("fairmesh_agent_probes_total").await;
    assert!(received as f64 <= sent, "{received} probes came, and the agent that checks sent {sent}");

    let mesh = world.mesh_of(second).await;
    let service = mesh.service("shop/one").unwrap();
    let load = Load::start(Load::of(&service, &[(Kind::Get, 2), (Kind::Post, 2)]));
    load.reaches("c").await;
    patients[2].ill.store(true, Relaxed);
    let ill =
        async || verdict(&world, "c").await.is_some_and(|(healthy, cause)| !healthy && cause.contains("503"));
    until("c is found unhealthy", ill).await;
    let left = async || {
        let before = load.tally().answered_by("c");
        load.goes_on(50).await;
        load.tally().answered_by("c") == before
    };
    until("callers have left c", left).await;
    unhealthy_is_shown(&world).await;

    world.agent.kill().await;
    let before = patients[0].probes.load(Relaxed);
    let probed = async || patients[0].probes.load(Relaxed) > before + 1;
    until("the other agent probes", probed).await;
    patients[2].ill.store(false, Relaxed);
    let healed = async || verdict(&world, "c").await.is_some_and(|(healthy, _)| healthy);
    until("c is found healthy again", healed).await;
    load.reaches("c").await;
    load.stop_unharmed().await;
}
