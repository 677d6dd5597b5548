//! Planned stop of a server.

use std::time::Duration;

use fairmesh_model::{EndpointState, Protocol};
use fairmesh_server::Drained;
use rustix::process::Signal;
use tokio::{net::TcpStream, time::Instant};

use crate::harness::{Kind, Load, PATIENCE, Process, Spec, World, beside_others};

/// Events observed from outside while a server stops.
#[derive(Debug, Default)]
struct Order {
    /// When the control plane first listed the server as draining.
    told: Option<Instant>,
    /// When the server first refused a connection.
    closed: Option<Instant>,
}

/// Watches until the process has ended.
async fn watch(world: &World, server: &mut Process, service: &str, instance: &str) -> Order {
    let address = world.endpoint(service, instance).await.unwrap().address;
    server.signal(Signal::TERM);
    let (mut order, start) = (Order::default(), Instant::now());
    while server.has_ended().is_none() {
        assert!(start.elapsed() < 2 * PATIENCE, "it does not stop: {order:?}\n{}", server.log());
        let endpoint = world.endpoint(service, instance).await;
        if endpoint.is_none_or(|endpoint| endpoint.state == EndpointState::Draining) {
            order.told.get_or_insert_with(Instant::now);
        }
        if TcpStream::connect(address).await.is_err() {
            order.closed.get_or_insert_with(Instant::now);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_server_drains_at_registry_before_it_closes() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mesh = world.mesh().await;
    let services = [
        ("shop/one", Protocol::Http1, Kind::Post),
        ("shop/two", Protocol::Http2, Kind::Post),
        ("shop/three", Protocol::Http2, Kind::Grpc),
    ];
    for (name, protocol, kind) in services {
        let work = Duration::from_millis(10);
        let stays = Spec { work, ..Spec::new(name, "stays", protocol) }.here(&world).await;
        let mut stops = Spec { work, ..Spec::new(name, "stops", protocol) }.apart(&world).await;
        let load = Load::start(Load::of(&mesh.service(name).unwrap(), &[(Kind::Get, 2), (kind, 4)]));
        load.reaches("stops").await;

        let order = watch(&world, &mut stops, name, "stops").await;
        let ended = stops.end().await;
        assert!(ended.success(), "{ended}: {}", stops.log());
        let last = load.tally().last_answer("stops").unwrap();
        let told = order.told.unwrap_or_else(|| panic!("the registry was not told: {order:?}"));
        let closed = order.closed.unwrap_or_else(Instant::now);
        assert!(told < closed, "{name}: {order:?}");
        assert!(last < closed, "{name}: a caller came {:?} after it closed", last - closed);
        assert!(world.endpoint(name, "stops").await.is_none(), "it is taken out in the end");

        // The same stop, by a call of the library.
        let also = Spec { work, ..Spec::new(name, "also-stops", protocol) }.here(&world).await;
        load.reaches("also-stops").await;
        assert_eq!(also.stop().await, Drained::CallersMoved);
        load.reaches("stays").await;
        load.stop_unharmed().await;
        drop(stays);
    }
}
