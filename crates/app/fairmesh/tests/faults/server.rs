//! A server that is killed.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_client::FaultKind;
use fairmesh_model::Protocol;
use serde_json::Value;

use crate::harness::{Caller, Kind, Load, Spec, World, beside_others, until};

/// Callers of each service with calls that may not be retried; each has at most one call in flight.
const POSTING: usize = 4;

const SERVICES: [(&str, Protocol); 2] = [("shop/one", Protocol::Http1), ("shop/two", Protocol::Http2)];

fn dying(service: &str, protocol: Protocol) -> Spec {
    Spec {
        lease: Duration::from_secs(2),
        // Calls take long enough that some are in flight when the server dies.
        work: Duration::from_millis(20),
        ..Spec::new(service, &format!("{}-dying", &service[5..]), protocol)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_fails_only_its_calls_in_flight_and_is_marked_lost() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mesh = world.mesh().await;
    let (mut dying_servers, mut staying, mut loads) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (name, protocol) in SERVICES {
        dying_servers.push(dying(name, protocol).apart(&world).await);
        staying.push(
            Spec { work: Duration::from_millis(20), ..Spec::new(name, "stays", protocol) }.here(&world).await,
        );
        let service = mesh.service(name).unwrap();
        let posting = if protocol == Protocol::Http1 { Kind::Post } else { Kind::Grpc };
        let mut callers = Load::of(&service, &[(Kind::Get, 3), (posting, POSTING)]);
        // A caller may declare its own calls idempotent.
        callers.push(Caller::new(&service.idempotent(), posting));
        let load = Load::start(callers);
        load.reaches(&dying(name, protocol).instance).await;
        load.reaches("stays").await;
        loads.insert(name, load);
    }
    for server in &mut dying_servers {
        server.kill().await;
    }
    for (name, protocol) in SERVICES {
        lost(&world, name, &dying(name, protocol).instance).await;
    }

    // From here on, no client picks the server.
    for load in loads.values() {
        load.goes_on(20).await;
    }
    let is_left_alone = async || {
        let before = mesh.stats();
        for load in loads.values() {
            load.goes_on(200).await;
        }
        let after = mesh.stats();
        after.retries == before.retries && after.last_resort == before.last_resort
    };
    // The client may learn of the loss slightly later than the control plane.
    until("the client knows", is_left_alone).await;
    assert!(is_left_alone().await, "it is still tried");

    for server in &mut dying_servers {
        server.restart();
    }
    for (name, protocol) in SERVICES {
        world.serves(name, &dying(name, protocol).instance).await;
        loads[name].reaches(&dying(name, protocol).instance).await;
    }
    for load in loads.into_values() {
        only_what_was_under_way_failed(load).await;
    }
}

/// Waits until an instance is shown as `lost`.
async fn lost(world: &World, service: &str, instance: &str) {
    let state = async || {
        let endpoints = world.cli(&["get", "endpoints", service, "--json"]).await.json();
        let one = endpoints.as_array().unwrap().iter().find(|one| one["instance"] == instance).cloned();
        one.map(|one| one["state"].clone())
    };
    until(&format!("{instance} is lost"), async || state().await == Some(Value::from("lost"))).await;
}

async fn only_what_was_under_way_failed(load: Load) {
    let tally = load.stop().await;
    let failures = tally.failures.lock().unwrap();
    let mut by_caller: BTreeMap<usize, usize> = BTreeMap::new();
    for failure in failures.iter() {
        assert_eq!(failure.kind, Some(FaultKind::Reset), "{failure:?}");
        assert_ne!(failure.call, Kind::Get, "{failure:?}");
        assert!(failure.caller < 3 + POSTING, "its calls may be repeated: {failure:?}");
        *by_caller.entry(failure.caller).or_default() += 1;
    }
    assert!(by_caller.values().all(|count| *count == 1), "more failed than was under way: {failures:#?}");
}
