//! Calls while the agent is away, after it returns, or without any agent.

use std::time::Duration;

use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::{FaultKind, Mesh};
use fairmesh_model::{EndpointState, Location, Policy, Prefix, Protocol, RecordKey, Region};
use fairmesh_rib::disk_cache::{Cache, SavedCopy};
use http::Request;
use tokio::time::Instant;

use crate::{
    rig::{PATIENCE, Rig, ask, get, named, region, until},
    server::{Server, nobody},
};

#[tokio::test]
async fn calls_continue_during_agent_outage_and_update_after_it() {
    let mut rig = Rig::start().await;
    let servers = [Server::echo("a").await, Server::echo("b").await];
    rig.replicated("shop/one", Protocol::Http1, &[servers[0].address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    assert_eq!(ask(&service, get("/")).await.unwrap().1, "a GET / ");

    rig.stop_agent().await;
    until("the age of the data is told", || mesh.stats().data_age > Duration::ZERO).await;
    assert_eq!(ask(&service, get("/")).await.unwrap().1, "a GET / ");
    rig.endpoint("shop/one", "i1", servers[1].address, EndpointState::Serving);
    rig.remove_endpoint("shop/one", "i0");

    rig.start_agent().await;
    let moved = async { while ask(&service, get("/")).await.unwrap().1 != "b GET / " {} };
    tokio::time::timeout(PATIENCE, moved).await.unwrap();
    assert_eq!(mesh.stats().data_age, Duration::ZERO);
    assert_eq!(mesh.stats().faults, 0);
}

#[tokio::test]
async fn connect_ready_without_mesh_fails_with_reason() {
    let mut rig = Rig::start().await;
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    rig.stop_agent().await;
    let builder = Mesh::builder().agent(rig.address()).client_id("test").cache_dir(rig.cache_dir());
    let late = builder.clone().connect_ready(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(late.kind(), FaultKind::Unavailable);
    assert!(
        late.message().contains("was not reached within 10ms") && !late.message().contains(" old"),
        "{late}"
    );
    let mesh = builder.clone().connect().await.unwrap();
    let early = ask(&mesh.service("shop/one").unwrap(), get("/")).await.unwrap_err();
    assert!(early.message().contains("the mesh is not reached yet"), "{early}");
    assert!(early.message().contains("there is no copy of shop/"), "{early}");

    let waiting = tokio::spawn(builder.connect_ready(PATIENCE));
    rig.start_agent().await;
    let mesh = waiting.await.unwrap().unwrap();
    assert_eq!(ask(&mesh.service("shop/one").unwrap(), get("/")).await.unwrap().1, "a GET / ");
}

#[tokio::test]
async fn program_starts_from_agents_disk_copy_while_agent_is_down() {
    let mut rig = Rig::start().await;
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http2, &[server.address]);
    rig.stop_agent().await;
    leave_copy(&rig, "shop/one", None);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    assert_eq!(ask(&service, get("/")).await.unwrap().1, "a GET / ");
    assert!(mesh.stats().data_age > Duration::from_secs(3600), "{:?}", mesh.stats());

    let second = Server::echo("b").await;
    rig.endpoint("shop/one", "i1", second.address, EndpointState::Serving);
    rig.remove_endpoint("shop/one", "i0");
    rig.start_agent().await;
    let moved = async { while ask(&service, get("/")).await.unwrap().1 != "b GET / " {} };
    tokio::time::timeout(PATIENCE, moved).await.unwrap();
}

#[tokio::test]
async fn local_only_call_uses_region_from_agents_disk_copy() {
    let mut rig = Rig::start().await;
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let mut policy = Policy::default();
    policy.locality.local_only = true;
    rig.policy("shop/one", policy);
    rig.stop_agent().await;
    leave_copy(&rig, "shop/one", Some(region("eu")));
    let service = rig.mesh().await.service("shop/one").unwrap();
    assert_eq!(ask(&service, get("/")).await.unwrap().1, "a GET / ");
}

/// Writes the disk copy of an agent in `eu` for callers of a service, with the endpoints of all regions or of one.
fn leave_copy(rig: &Rig, name: &str, only: Option<Region>) {
    let name = named(name);
    let cache = Cache::open(rig.cache_dir()).unwrap();
    cache.save_location(&Location::in_region(region("eu"))).unwrap();
    let service = Prefix::from(&RecordKey::Service(name.clone()));
    let policy = Prefix::from(&RecordKey::Policy(name.clone()));
    for prefix in [Prefix::topology(), service, policy, Prefix::endpoints(&name, only.as_ref())] {
        let (revision, entries) = rig.node.read(std::slice::from_ref(&prefix));
        cache.save(&SavedCopy { prefix, revision, at: std::time::UNIX_EPOCH, entries }).unwrap();
    }
}

#[tokio::test]
async fn calls_fail_fast_until_agent_has_records() {
    let rig = Rig::start().await;
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    rig.refuse(Some("no control plane answers it"));
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    let fault = ask(&service, get("/")).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    assert!(fault.to_string().contains("no control plane answers it"), "{fault}");
    assert!(begun.elapsed() < Duration::from_secs(10), "long before the deadline");
    assert!(rig.node.watchers(&Prefix::topology()).is_empty());

    rig.refuse(None);
    until("calls go once it has", || matches!(*service_state(&service), ServiceState::Ready(_))).await;
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
    until("distances are followed", || !rig.node.watchers(&Prefix::topology()).is_empty()).await;
}

#[tokio::test]
async fn calls_without_agent_and_disk_copy_fail_soon_with_instructions() {
    let mut rig = Rig::start().await;
    rig.stop_agent().await;
    let server = Server::echo("a").await;
    rig.replicated("shop/one", Protocol::Http1, &[server.address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/one").unwrap();
    let begun = Instant::now();
    let fault = ask(&service, get("/")).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    assert!(fault.to_string().contains("fairmesh agent"), "{fault}");
    assert!(begun.elapsed() < Duration::from_secs(10), "long before the deadline");

    rig.start_agent().await;
    until("calls go once it is there", || matches!(*service_state(&service), ServiceState::Ready(_))).await;
    assert_eq!(ask(&service, get("/")).await.unwrap().0, 200);
}

#[tokio::test]
async fn first_call_with_traffic_split_fetches_records_of_backends() {
    let rig = Rig::start().await;
    let servers = [Server::echo("a").await, Server::echo("b").await];
    rig.replicated("shop/one", Protocol::Http1, &[servers[0].address]);
    rig.replicated("shop/two", Protocol::Http2, &[servers[1].address]);
    let spec = "shop/two";
    rig.policy("shop/one", crate::rig::split("/canary", spec));
    let service = rig.mesh().await.service("shop/one").unwrap();
    assert_eq!(ask(&service, get("/x")).await.unwrap().1, "a GET /x ");
    assert_eq!(ask(&service, get("/canary/x")).await.unwrap().1, "b GET /canary/x ");
    let report = service.explain(&get("/canary/x"), 1).await.unwrap();
    assert_eq!(report.endpoint.as_ref().unwrap().address, servers[1].address);
    assert_eq!(report.decisions.len(), 2, "{report}");
    assert!(
        report.freshness.as_ref().unwrap().connected && report.to_string().contains("shop/two"),
        "{report}"
    );
    rig.remove_endpoint("shop/two", "i0");
    let gone = async {
        while ask(&service, get("/canary")).await.is_ok() {}
        ask(&service, get("/canary")).await.unwrap_err()
    };
    let fault = tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(fault.kind(), FaultKind::NoEndpoints, "{fault}");
    assert!(fault.to_string().contains("shop/two"), "{fault}");
}

#[tokio::test]
async fn silent_server_delays_call_only_until_deadline() {
    let rig = Rig::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    rig.replicated("shop/one", Protocol::Http2, &[listener.local_addr().unwrap(), nobody().await]);
    let service = rig.mesh().await.service("shop/one").unwrap();
    let request =
        || Request::get("/").header("grpc-timeout", "150m").body(fairmesh_client::Body::empty()).unwrap();
    for _ in 0..4 {
        let fault = ask(&service, request()).await.unwrap_err();
        assert!(matches!(fault.kind(), FaultKind::Deadline | FaultKind::Unreachable), "{fault}");
    }
}
