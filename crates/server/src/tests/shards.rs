use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{
    InstanceId, KeyRange, Region, Replica, ReplicaState, Role, ServiceName, Shard, ShardId, ShardKey,
    ShardMap,
};
use fairmesh_test_support::eventually;
use fairmesh_wire::{transport::Address, v1::endpoint::State};
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

use super::control::{Facts, Told, somewhere};
use crate::{Server, ServerBuilder};

fn builder(control: &Address) -> ServerBuilder {
    Server::builder("shop/cart").instance("cart-0").address(somewhere()).agent(control.clone())
}

fn service() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

/// A map of two shards cut at key 100 with the holders given.
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

/// Whether the server answers for keys 0 and 100; `None` while it knows no map.
fn answers(server: &Server) -> Option<(bool, bool)> {
    let own = server.inner.layer.shared.ownership.load();
    own.as_ref().map(|own| (own.holds(ShardKey(0), None), own.holds(ShardKey(100), None)))
}

#[tokio::test]
async fn a_server_answers_by_the_map_that_the_agent_tells() {
    use ReplicaState::{Serving, Starting, Stopping};
    let control = Facts::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).start().await.unwrap();
    assert_eq!(answers(&server), None);
    control.facts.publish(&service(), &map(1, [("cart-0", Serving), ("cart-1", Serving)]));
    eventually("only the first shard is served", || answers(&server) == Some((true, false))).await;
    // A server that knows nothing of shards is ready for one at once.
    control.facts.publish(&service(), &map(2, [("cart-0", Stopping), ("cart-0", Starting)]));
    eventually("both shards are served", || answers(&server) == Some((true, true))).await;
    control.facts.publish(&service(), &map(3, [("cart-1", Serving), ("cart-0", Serving)]));
    eventually("only the second shard is served", || answers(&server) == Some((false, true))).await;
}

#[tokio::test]
async fn an_aware_server_loads_a_shard_before_it_says_ready_and_answers() {
    use ReplicaState::{Serving, Starting};
    let control = Facts::new(Some("eu")).serve(None).await;
    control.facts.publish(&service(), &map(1, [("cart-0", Serving), ("cart-1", Serving)]));
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
    assert!(!control.facts.told().contains(&Told::Report(State::Serving)), "its first shard is not loaded");
    may_load.add_permits(1);
    control.facts.until(|told| told.contains(&Told::Report(State::Serving))).await;

    control.facts.publish(&service(), &map(2, [("cart-0", Serving), ("cart-0", Starting)]));
    assert_eq!(starts.recv().await, Some((ShardId(1), ShardKey(100))));
    assert_eq!(answers(&server), Some((true, false)));
    may_load.add_permits(1);
    control.facts.until(|told| told.contains(&Told::Ready(vec![1]))).await;
    assert_eq!(answers(&server), Some((true, true)), "callers may hear of it before this server does");

    control.facts.publish(&service(), &map(3, [("cart-1", Serving), ("cart-0", Serving)]));
    assert_eq!(stops.recv().await, Some(ShardId(0)));
    assert_eq!(answers(&server), Some((false, true)));
}

#[tokio::test]
async fn a_registry_that_hangs_does_not_keep_a_server_from_its_map() {
    use ReplicaState::{Serving, Starting};
    let control = Facts::new(Some("eu")).serve(None).await;
    control.facts.hangs.store(true, Relaxed);
    let server = builder(&control.address).on_shard_start(async |_, _| Ok(())).start().await.unwrap();
    control.facts.publish(&service(), &map(1, [("cart-0", Serving), ("cart-0", Starting)]));
    control.facts.until(|told| told.contains(&Told::Ready(vec![1]))).await;
    let told = Instant::now();
    control.facts.publish(&service(), &map(2, [("cart-1", Serving), ("cart-0", Starting)]));
    eventually("only the second shard is served", || answers(&server) == Some((false, true))).await;
    assert!(told.elapsed() < Duration::from_secs(4), "before the report is given up");
    // What became due meanwhile is said once the registry answers again.
    control.facts.hangs.store(false, Relaxed);
    let reports = |told: &Vec<Told>| told.iter().filter(|told| **told == Told::Ready(vec![1])).count();
    control.facts.until(|told| reports(told) >= 2).await;
}
