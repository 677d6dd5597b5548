//! Tests the registry with an on-disk store across restarts of the process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{path::Path, sync::Arc, time::Duration};

use fairmesh_model::{
    Endpoint, KeyRange, Protocol, Replica, ReplicaState, Service, ServiceKind, ServiceName, Shard, ShardId,
    ShardKey, ShardMap, ShardMove,
};
use fairmesh_registry::{Phase, Registration, Registry};
use fairmesh_rib::Node;
use fairmesh_store::{RedbStore, Store};
use fairmesh_test_support::endpoint;
use tokio::task::JoinSet;

/// The registry of a control plane.
struct Process {
    registry: Registry,
    node: Node,
    tasks: JoinSet<()>,
}

impl Process {
    /// Opens the store. Runs the registry's background tasks only if `runs` is set.
    async fn start(path: &Path, runs: bool) -> Self {
        let store = Arc::new(RedbStore::open(path).unwrap());
        let (revision, entries) = store.load().await.unwrap();
        let node = Node::load(store.id(), revision, entries);
        let mut tasks = JoinSet::new();
        let (follower, mut commits) = (node.clone(), store.commits(revision));
        tasks.spawn(async move {
            while let Ok(Some(commit)) = commits.next().await {
                follower.apply(commit);
            }
        });
        let registry = Registry::new(store, node.clone());
        if runs {
            let registry = registry.clone();
            tasks.spawn(async move { registry.run(std::future::pending()).await });
        }
        Self { registry, node, tasks }
    }

    async fn stop(mut self) {
        self.tasks.shutdown().await;
    }

    async fn until(&self, holds: impl Fn(&Registry) -> bool) {
        let mut revisions = self.node.revisions();
        let wait = async {
            while !holds(&self.registry) {
                revisions.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it never came to hold");
    }
}

fn cart() -> ServiceName {
    "shop/cart".parse().unwrap()
}

fn registration(instance: &str) -> Registration {
    let service = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Grpc,
        virtual_address: None,
        identity: None,
    };
    let endpoint = Endpoint { lease: Some(Duration::from_secs(3600)), ..endpoint(instance, "eu") };
    Registration { service: cart(), endpoint, explicit_state: true, declaration: Some(service) }
}

fn map() -> ShardMap {
    let replica = Replica {
        instance: "x".parse().unwrap(),
        region: "eu".parse().unwrap(),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    };
    let shard = Shard { id: ShardId(0), start: ShardKey(0), replicas: vec![replica] };
    ShardMap { version: 0, interval: KeyRange::ALL, shards: vec![shard] }
}

#[tokio::test]
async fn requested_shard_move_survives_control_plane_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let first = Process::start(&path, false).await;
    first.registry.register(&[registration("x"), registration("y")]).await.unwrap();
    first.registry.put_shards(&cart(), &map()).await.unwrap();
    let [from, to] = ["x", "y"].map(|name| name.parse().unwrap());
    let shard_move =
        ShardMove { shard: ShardId(0), role: "primary".parse().unwrap(), from: Some(from), to: Some(to) };
    first.registry.move_shard(&cart(), &shard_move).await.unwrap();
    assert_eq!(first.registry.list_moves(&cart()).unwrap()[0].phase, Phase::Starting);
    first.stop().await;

    let second = Process::start(&path, true).await;
    second.until(|registry| registry.list_moves(&cart()).unwrap().is_empty()).await;
    let moved = second.registry.shards(&cart()).unwrap();
    assert_eq!(moved.shards[0].replicas.len(), 1);
    assert_eq!(Some(&moved.shards[0].replicas[0].instance), shard_move.to.as_ref());
    second.stop().await;

    let third = Process::start(&path, false).await;
    assert_eq!(third.registry.shards(&cart()).unwrap(), moved);
    third.stop().await;
}

#[tokio::test]
async fn concurrent_registrations_of_fleet_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&folder.path().join("store"), true).await;
    let mut fleet = JoinSet::new();
    for i in 0..200 {
        let registry = process.registry.clone();
        fleet.spawn(async move { registry.register(&[registration(&format!("cart-{i}"))]).await });
    }
    while let Some(done) = fleet.join_next().await {
        done.unwrap().unwrap();
    }
    let (_, entries) = process.node.read(&[fairmesh_model::Prefix::endpoints(&cart(), None)]);
    assert_eq!(entries.len(), 200);
    process.stop().await;
}
