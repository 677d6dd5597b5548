//! Outages of the control plane, of the agent, and of both: calls continue, writes fail with a clear error, and state
//! converges afterwards.

use std::time::Duration;

use fairmesh_client::Mesh;
use fairmesh_model::Protocol;
use fairmesh_server::RegistryClient;
use fairmesh_wire::{
    handshake,
    v1::{Endpoint, Location, Op, Registration, WriteRequest},
};
use tokio::time::Instant;

use crate::harness::{Caller, Kind, Load, Spec, World, beside_others, until};

const YAML: &str = "
{kind: Service, name: shop/one}
---
{kind: Service, name: shop/two, protocol: grpc}
---
{kind: Policy, service: shop/two, locality: {localOnly: true}}
---
{kind: Service, name: shop/late}
";

fn registration() -> Registration {
    let location = Some(Location { region: "eu".into(), ..Location::default() });
    let endpoint =
        Endpoint { instance: "x".into(), address: "127.0.0.1:1".into(), location, ..Endpoint::default() };
    Registration { service: "shop/one".into(), endpoint: Some(endpoint), declaration: None }
}

/// Error of a registration through the agent.
async fn register(world: &World) -> String {
    let link = RegistryClient::new(vec![world.agent_address()], "test", Default::default());
    link.register(registration()).await.unwrap_err().to_string()
}

async fn calls_work(mesh: &Mesh) {
    for (service, kind) in [("shop/one", Kind::Get), ("shop/one", Kind::Post), ("shop/two", Kind::Grpc)] {
        let service = mesh.service(service).unwrap();
        assert_eq!(Caller::new(&service, kind).call(0).await.unwrap(), "a");
    }
}

async fn grows(what: &str, mut age: impl AsyncFnMut() -> f64) {
    let before = age().await;
    until(&format!("{what} grows"), async || age().await > before + 0.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_survive_control_plane_and_agent_outages_and_converge() {
    let _machine = beside_others().await;
    let mut world = World::start(YAML).await;
    let _one = Spec::new("shop/one", "a", Protocol::Http1).here(&world).await;
    let _two = Spec::new("shop/two", "a", Protocol::Grpc).here(&world).await;
    let mesh = world.mesh().await;
    let (one, two) = (mesh.service("shop/one").unwrap(), mesh.service("shop/two").unwrap());
    let mut callers = Load::of(&one, &[(Kind::Get, 1), (Kind::Post, 1)]);
    callers.push(Caller::new(&two, Kind::Grpc));
    let load = Load::start(callers);
    load.goes_on(30).await;
    world.is_saved("shop/one", 0).await;
    world.is_saved("shop/two", 0).await;

    control_away(&mut world, &load, &mesh).await;
    let age = mesh.stats().data_age;
    both_away(&mut world, &load, &mesh).await;
    assert!(mesh.stats().data_age > age);
    agent_alone(&mut world, &load, &mesh).await;

    world.control.restart();
    world.control_is_up().await;
    until("the agent is in touch", async || world.agent_data_age().await == 0.0).await;
    let _new = Spec::new("shop/one", "b", Protocol::Http1).here(&world).await;
    load.reaches("b").await;
    let late = mesh.service("shop/late").unwrap();
    until("what was refused is known", async || late.prepare().await.is_ok()).await;
    until("the caller is in touch", async || mesh.stats().data_age.is_zero()).await;
    load.stop_unharmed().await;
}

async fn control_away(world: &mut World, load: &Load, mesh: &Mesh) {
    world.control.kill().await;
    load.goes_on(100).await;
    grows("the age that the agent tells", async || world.agent_data_age().await).await;
    grows("the age that a connected caller tells", async || mesh.stats().data_age.as_secs_f64()).await;
    let begun = Instant::now();
    let complaint = mesh.service("shop/late").unwrap().prepare().await.unwrap_err().to_string();
    assert!(complaint.contains("no control plane answers this agent"), "{complaint}");
    assert!(begun.elapsed() < Duration::from_secs(10), "and not when the time to wait has run out");
    let complaint = world.apply(YAML).await.fails();
    assert!(complaint.contains("cannot reach the control plane at unix:"), "{complaint}");
    assert!(complaint.contains("start it with 'fairmesh control'"), "{complaint}");
    let complaint = register(world).await;
    assert!(complaint.contains("no control plane answers this agent"), "{complaint}");
}

async fn both_away(world: &mut World, load: &Load, mesh: &Mesh) {
    world.agent.kill().await;
    grows("the age that the caller tells", async || mesh.stats().data_age.as_secs_f64()).await;
    load.goes_on(100).await;
    // A program that starts now uses the agent's copy on disk.
    let late = Mesh::builder().agent(world.agent_address()).cache_dir(world.path("agent-state"));
    let late = late.connect().await.unwrap();
    calls_work(&late).await;
    assert!(late.stats().data_age > Duration::ZERO);
    let complaint = register(world).await;
    assert!(complaint.contains("agent.sock"), "{complaint}");
}

async fn agent_alone(world: &mut World, load: &Load, mesh: &Mesh) {
    world.agent.restart();
    world.agent_is_up().await;
    load.goes_on(100).await;
    let late = world.mesh().await;
    calls_work(&late).await;
    assert!(
        late.stats().data_age > Duration::ZERO,
        "the agent's copy is as old as its control plane is away"
    );
    grows("the age that an older caller tells", async || mesh.stats().data_age.as_secs_f64()).await;
    let complaint = register(world).await;
    assert!(complaint.contains("no control plane answers this agent"), "{complaint}");
    let agent = handshake::connect(&Default::default(), &world.agent_address(), "test").await.unwrap();
    let op = Op { key: "/t/shop/services/new".into(), value: None, condition: None };
    let refused = agent.rib().write(WriteRequest { ops: vec![op] }).await.unwrap_err();
    assert!(refused.message().contains("an agent takes no writes"), "{refused}");
}
