use std::{sync::atomic::Ordering, time::Duration};

use fairmesh_model::{Location, Region};
use fairmesh_wire::{transport::Address, v1::endpoint::State};
use tokio::time::timeout;

use super::control::{BOUND, FakeRegistry, RegistryRequest, unused_address};
use crate::{MeshServer, RegistrationState, ServerBuilder};

fn builder(control: &Address) -> ServerBuilder {
    // The shortest lease, so that it is renewed every third of a second.
    MeshServer::builder("shop/cart")
        .instance("cart-0")
        .address(unused_address())
        .lease(Duration::from_secs(1))
        .agent(control.clone())
}

fn fails_because(server: &MeshServer, reason: &str) -> bool {
    let states = server.registration_state();
    matches!(&*states.borrow(), RegistrationState::Failing(error) if error.contains(reason))
}

fn registered(state: State) -> RegistryRequest {
    RegistryRequest::Register { state, region: "eu".into(), mtls: false }
}

#[tokio::test]
async fn server_registers_with_agents_location_and_renews_lease() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).start().await.unwrap();
    control
        .registry
        .until(|requests| requests.iter().filter(|request| **request == RegistryRequest::Renew).count() >= 2)
        .await;
    assert_eq!(control.registry.requests()[0], registered(State::Serving));
    drop(server);
}

#[tokio::test]
async fn endpoint_follows_agent_that_restarts_at_another_location() {
    let agent = FakeRegistry::new(Some("eu")).serve(None).await;
    let (address, _server) = (agent.address.clone(), builder(&agent.address).start().await.unwrap());
    agent.registry.until(|requests| requests.contains(&registered(State::Serving))).await;
    let mut moved = agent.stop().await;
    moved.region = Some("us");
    let moved = moved.serve(Some(&address)).await;
    let region = |request: &RegistryRequest| matches!(request, RegistryRequest::Register { region, .. } if region == "us");
    moved.registry.until(|requests| requests.iter().any(region)).await;
}

#[tokio::test]
async fn server_registers_with_its_own_incarnation() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).starting().start().await.unwrap();
    server.ready();
    control.registry.until(|requests| requests.contains(&RegistryRequest::Report(State::Serving))).await;
    control.registry.until(|requests| requests.contains(&RegistryRequest::Renew)).await;
    server.shutdown().await;
    control.registry.until(|requests| requests.contains(&RegistryRequest::Deregister)).await;
    let first = std::mem::take(&mut *control.registry.spoke.lock().unwrap());
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first.iter().all(|incarnation| *incarnation > 0));

    let _successor = builder(&control.address).start().await.unwrap();
    let second = control.registry.spoke.lock().unwrap().clone();
    assert!(second.first() > first.first(), "{second:?} after {first:?}");
}

#[tokio::test]
async fn endpoint_is_not_registered_serving_before_its_server_is_ready() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).starting().start().await.unwrap();
    server.ready();
    control.registry.until(|requests| requests.contains(&RegistryRequest::Report(State::Serving))).await;
    assert_eq!(control.registry.requests()[0], registered(State::Starting));
}

#[tokio::test]
async fn endpoint_forgotten_by_registry_registers_again() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let _server = builder(&control.address).start().await.unwrap();
    control.registry.forgets.store(true, Ordering::Relaxed);
    control
        .registry
        .until(|requests| requests.ends_with(&[RegistryRequest::Renew, registered(State::Serving)]))
        .await;
}

#[tokio::test]
async fn server_registers_when_late_control_plane_appears() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let address = control.address.clone();
    let registry = control.stop().await;
    let server = builder(&address).start().await.unwrap();
    assert!(fails_because(&server, "cannot reach"));
    let _control = registry.serve(Some(&address)).await;
    let mut registration_state = server.registration_state();
    timeout(BOUND, registration_state.wait_for(|now| matches!(now, RegistrationState::Registered(_))))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn registration_state_explains_missing_region() {
    let control = FakeRegistry::new(None).serve(None).await;
    let server = builder(&control.address).start().await.unwrap();
    assert!(fails_because(&server, "FAIRMESH_REGION"));
}

#[tokio::test]
async fn unusable_registration_address_is_rejected_at_once() {
    let wildcard = MeshServer::builder("shop/cart").address(([0, 0, 0, 0], 8080).into()).start().await;
    assert!(wildcard.unwrap_err().to_string().contains("every address"));
    assert!(MeshServer::builder("shop/cart").start().await.unwrap_err().to_string().contains(".address("));
    assert!(MeshServer::builder("cart").address(unused_address()).start().await.is_err());
}

#[tokio::test]
async fn draining_server_never_registers_as_serving_again() {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    control.registry.callers_moved.send_replace(false);
    let server = builder(&control.address).starting().start().await.unwrap();
    server.drain_on(std::future::ready(()));
    control.registry.until(|requests| requests.contains(&RegistryRequest::Drain)).await;
    server.ready();
    control.registry.until(|requests| requests.ends_with(&[RegistryRequest::Renew])).await;
    assert!(!control.registry.requests().contains(&RegistryRequest::Report(State::Serving)));
}

#[tokio::test]
async fn program_without_agent_must_have_location() {
    let control = FakeRegistry::new(None).serve(None).await;
    let builder_at = |location: Option<Location>| {
        let server =
            MeshServer::builder("shop/cart").address(unused_address()).control(control.address.clone());
        match location {
            Some(location) => server.location(location),
            None => server,
        }
    };
    let refused = builder_at(None).start().await.unwrap_err().to_string();
    assert!(refused.contains(".location(..)") && refused.contains("FAIRMESH_REGION"), "{refused}");
    assert!(control.registry.requests().is_empty(), "{:?}", control.registry.requests());
    let region = Region::new("eu").unwrap();
    let _server = builder_at(Some(Location::in_region(region))).start().await.unwrap();
    assert_eq!(control.registry.requests()[0], registered(State::Serving));
}
