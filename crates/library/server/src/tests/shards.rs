use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{
    InstanceId, KeyRange, Region, Replica, ReplicaState, Role, ServiceName, Shard, ShardId, ShardKey,
    ShardMap,
};
use fairmesh_wire::{transport::Address, v1::endpoint::State};
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

use super::control::{FakeRegistry, RegistryRequest, until, unused_address};
use crate::{MeshServer, ServerBuilder};

fn builder(control: &Address) -> ServerBuilder {
    MeshServer::builder("shop/cart").instance("cart-0").address(unused_address()).agent(control.clone())
}

fn service() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

/// Returns a map with two shards, divided at key 100, with these holders.
fn map(version: u64, holders: [(&str, ReplicaState); 2]) -> ShardMap {
    let shard = |(id, (instance, state)): (u32, (&str, ReplicaState))| Shard {
        id: ShardId(id),
        start: ShardKey(u128::from(id) * 100),
        replicas: vec![Replica {
            instance: InstanceId::new(instance).unwrap(),
            region: Region::new("eu").unwrap(),
            role: Role::new("primary").unwrap(),
            state,
        }],
    };
    ShardMap { version, interval: KeyRange::ALL, shards: (0..).zip(holders).map(shard).collect() }
}

/// Whether the server holds keys 0 and 100; `None` while it knows no map.
fn holds(server: &MeshServer) -> Option<(bool, bool)> {
    let own = server.inner.layer.shared.ownership.load();
    own.as_ref().map(|own| (own.holds(ShardKey(0), None), own.holds(ShardKey(100), None)))
}

#[tokio::test]
async fn server_follows_shard_map_from_its_agent() {
    use ReplicaState::{Serving, Starting, Stopping};
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).start().await.unwrap();
    assert_eq!(holds(&server), None);
    control.registry.publish(&service(), &map(1, [("cart-0", Serving), ("cart-1", Serving)]));
    until(|| holds(&server) == Some((true, false))).await;
    // A server without hooks is ready for a shard at once.
    control.registry.publish(&service(), &map(2, [("cart-0", Stopping), ("cart-0", Starting)]));
    until(|| holds(&server) == Some((true, true))).await;
    control.registry.publish(&service(), &map(3, [("cart-1", Serving), ("cart-0", Serving)]));
    until(|| holds(&server) == Some((false, true))).await;
}

#[tokio::test]
async fn server_with_hooks_loads_shard_before_it_is_ready() {
    use ReplicaState::{Serving, Starting};
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    control.registry.publish(&service(), &map(1, [("cart-0", Serving), ("cart-1", Serving)]));
    let may_load = Arc::new(Semaphore::new(0));
    let permits = Arc::clone(&may_load);
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let (started, mut starts) = mpsc::unbounded_channel();
    let server = builder(&control.address)
        .on_shard_start(move |shard, range| {
            let permits = Arc::clone(&permits);
            started.send((shard, range.first)).unwrap();
            async move {
                permits.acquire().await?.forget();
                Ok(())
            }
        })
        .on_shard_stop(move |shard| {
            stopped.send(shard).unwrap();
            async { Ok(()) }
        })
        .start()
        .await
        .unwrap();
    assert_eq!(starts.recv().await, Some((ShardId(0), ShardKey(0))));
    assert!(
        !control.registry.requests().contains(&RegistryRequest::Report(State::Serving)),
        "its first shard is not loaded"
    );
    may_load.add_permits(1);
    control.registry.until(|requests| requests.contains(&RegistryRequest::Report(State::Serving))).await;

    control.registry.publish(&service(), &map(2, [("cart-0", Serving), ("cart-0", Starting)]));
    assert_eq!(starts.recv().await, Some((ShardId(1), ShardKey(100))));
    assert_eq!(holds(&server), Some((true, false)));
    may_load.add_permits(1);
    control.registry.until(|requests| requests.contains(&RegistryRequest::Ready(vec![1]))).await;
    assert_eq!(holds(&server), Some((true, true)), "callers may know before this server does");

    control.registry.publish(&service(), &map(3, [("cart-1", Serving), ("cart-0", Serving)]));
    assert_eq!(stops.recv().await, Some(ShardId(0)));
    assert_eq!(holds(&server), Some((false, true)));
}

#[tokio::test]
async fn unresponsive_registry_does_not_delay_shard_map_updates() {
    use ReplicaState::{Serving, Starting};
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    control.registry.hangs.store(true, Relaxed);
    let server = builder(&control.address).on_shard_start(async |_, _| Ok(())).start().await.unwrap();
    control.registry.publish(&service(), &map(1, [("cart-0", Serving), ("cart-0", Starting)]));
    control.registry.until(|requests| requests.contains(&RegistryRequest::Ready(vec![1]))).await;
    let published_at = Instant::now();
    control.registry.publish(&service(), &map(2, [("cart-1", Serving), ("cart-0", Starting)]));
    until(|| holds(&server) == Some((false, true))).await;
    assert!(published_at.elapsed() < Duration::from_secs(4), "before the timeout of the report");
    // Reports that became due meanwhile are sent once the registry responds again.
    control.registry.hangs.store(false, Relaxed);
    let reports = |requests: &Vec<RegistryRequest>| {
        requests.iter().filter(|request| **request == RegistryRequest::Ready(vec![1])).count()
    };
    control.registry.until(|requests| reports(requests) >= 2).await;
}
