use std::time::Duration;

use fairmesh_model::{Cursor, Prefix, Revision, StoreId};
use fairmesh_rib::{
    Node, Update,
    follower::{Backoff, Follower, FollowerConfig, Sink, relay_acks},
};
use fairmesh_wire::{
    v1::{self, watch_request, watch_response::Kind},
    watch::Watch,
};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{BOUND, Memory, Reader, Server, prefix};

fn later() -> Instant {
    Instant::now() + BOUND
}

#[tokio::test]
async fn wait_for_acks_ends_when_last_watcher_of_prefix_acknowledges() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let bystander = Reader::following(&[&server.address], &["/b/"]).await;
    let revision = memory.put(&[("/a/1", "x")]);
    let update = reader.update().await;

    let early =
        memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + Duration::from_millis(20)).await;
    assert!(!early.all);
    let behind: Vec<_> = early.behind.iter().map(ToString::to_string).collect();
    assert_eq!(behind, ["reader (anonymous) at 0"], "the watcher of /b/ owes nothing");

    let node = memory.node.clone();
    let wait = tokio::spawn(async move { node.wait_acked(&prefix("/a/"), revision, later()).await });
    reader.handle.ack(update.revision);
    assert!(timeout(BOUND, wait).await.unwrap().unwrap().all);
    drop(bystander);
    server.stop().await;
}

#[tokio::test]
async fn wait_for_acks_includes_disconnected_watcher_until_it_reconnects() {
    let (_folder, path) = crate::socket();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let server = Server::start(memory.clone(), &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    reader.handle.ack(memory.node.revision());
    assert!(memory.node.wait_acked(&prefix("/a/"), 1, later()).await.all);
    let mut acks = memory.node.acks();
    // The server stops, but the node stays.
    server.stop().await;
    timeout(BOUND, acks.wait_for(|_| memory.node.watcher_count() == 0)).await.unwrap().unwrap();
    let revision = memory.put(&[("/a/1", "y")]);
    let at_once = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now()).await;
    assert!(at_once.behind[0].applied == Some(1) && at_once.behind[0].is_disconnected, "{at_once:?}");
    assert_eq!(memory.node.applied_by_all().number, 1);

    let server = Server::start(memory.clone(), &path).await;
    let update = reader.update().await;
    let known = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now()).await;
    assert!(
        known.behind.len() == 1 && !known.behind[0].is_disconnected,
        "reconnected, and at the old revision: {known:?}"
    );
    reader.handle.ack(update.revision);
    let back = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + BOUND).await;
    assert!(back.all, "{back:?}");
    server.stop().await;
}

#[tokio::test]
async fn wait_for_acks_ignores_watcher_that_closed_its_watch() {
    let (_folder, path) = crate::socket();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let server = Server::start(memory.clone(), &path).await;
    let reader = Reader::following(&[&server.address], &["/a/"]).await;
    reader.handle.ack(memory.node.revision());
    assert!(memory.node.wait_acked(&prefix("/a/"), 1, later()).await.all);
    reader.handle.close().await;
    let revision = memory.put(&[("/a/1", "y")]);
    let at_once = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now()).await;
    assert!(at_once.all, "{at_once:?}");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wait_for_acks_after_restart_gives_watchers_time_to_reconnect() {
    let node = Node::load(StoreId(1), 5, []);
    let started = Instant::now();
    let early = node.wait_acked(&prefix("/a/"), 5, started + Duration::from_secs(1)).await;
    assert!(!early.all && early.behind.len() == 1, "{early:?}");
    assert!(node.wait_acked(&prefix("/a/"), 5, started + Duration::from_secs(60)).await.all);
    assert!(started.elapsed() > Backoff::default().longest, "time to reconnect");
    assert!(started.elapsed() < 2 * Backoff::default().longest, "and not for ever");
    let fresh = Node::load(StoreId(1), 0, []);
    assert!(fresh.wait_acked(&prefix("/a/"), 0, Instant::now()).await.all, "it has no earlier watchers");
}

#[tokio::test]
async fn wait_for_acks_ends_when_silent_watcher_disconnects() {
    let (_folder, path) = crate::socket();
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let revision = memory.put(&[("/a/1", "x")]);
    reader.update().await;
    let node = memory.node.clone();
    let wait = tokio::spawn(async move { node.wait_acked(&prefix("/a/"), revision, later()).await });
    drop(reader);
    assert!(timeout(BOUND, wait).await.unwrap().unwrap().all);
    server.stop().await;
}

#[tokio::test]
async fn watch_acknowledgement_of_another_store_is_ignored() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let revision = memory.put(&[("/a/1", "x")]);
    let update = reader.update().await;
    reader.handle.ack(Revision { store: StoreId(2), ..update.revision });
    // The snapshot arrives after the server has read the acknowledgement, because one stream carries both.
    reader.handle.subscribe(prefix("/b/"));
    let update = reader.update().await;
    assert!(memory.node.applied_by_all().number < revision);
    reader.handle.ack(update.revision);
    let acked = memory.node.wait_acked(&prefix("/"), revision, later()).await;
    assert!(acked.all);
    server.stop().await;
}

#[tokio::test]
async fn watch_acknowledgements_are_batched_unless_requested() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let first = memory.put(&[("/a/1", "0")]);
    let update = reader.update().await;
    reader.handle.ack(update.revision);
    assert!(memory.node.wait_acked(&prefix("/"), first, later()).await.all);

    let (mut acks, started) = (memory.node.acks(), Instant::now());
    acks.mark_unchanged();
    let (mut received, mut last) = (0, first);
    while started.elapsed() < Duration::from_secs(1) {
        last = memory.put(&[("/a/1", "x")]);
        let update = reader.update().await;
        reader.handle.ack(update.revision);
        received += u32::from(acks.has_changed().unwrap());
        acks.mark_unchanged();
    }
    assert!(received <= 3, "{received} acknowledgements of {} updates in a second", last - first);

    // The wait requests the delayed acknowledgement, and the acknowledgement of the next revision as soon as it is
    // applied.
    let held_back = reader.handle.clone();
    assert!(memory.node.wait_acked(&prefix("/"), last, later()).await.all);
    let next = memory.put(&[("/a/1", "y")]);
    let update = reader.update().await;
    let node = memory.node.clone();
    let wait = tokio::spawn(async move { node.wait_acked(&prefix("/"), next, later()).await });
    held_back.ack(update.revision);
    assert!(timeout(BOUND, wait).await.unwrap().unwrap().all);
    server.stop().await;
}

/// Applies the upstream's updates to a node.
struct ApplyToNode(Node);

impl Sink for ApplyToNode {
    fn update(&mut self, update: Update) {
        self.0.apply_update(update).unwrap();
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}

#[tokio::test]
async fn request_for_acknowledgement_is_forwarded_to_watchers_below() {
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let between = Memory { node: Node::replica() };
    let config = FollowerConfig {
        transport: Default::default(),
        addresses: vec![server.address.clone()],
        software: "between".into(),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    let upstream = Follower::spawn(config, ApplyToNode(between.node.clone()));
    upstream.subscribe(prefix("/"));
    let stop = CancellationToken::new();
    tokio::spawn(relay_acks(between.node.clone(), upstream, stop.clone()));
    let replica = Server::start(between, "127.0.0.1:0").await;

    let mut last = Watch::open(&Default::default(), &replica.address, "last").await.unwrap();
    let subscribe = v1::Subscribe { prefix: "/a/".into(), ..Default::default() };
    last.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    let first = timeout(BOUND, last.next()).await.unwrap().unwrap().kind;
    assert!(matches!(first, Some(Kind::Snapshot(_))), "{first:?}");
    let number = memory.put(&[("/a/1", "y")]);
    let change = timeout(BOUND, last.next()).await.unwrap().unwrap().kind;
    assert!(matches!(change, Some(Kind::Delta(_))), "{change:?}");

    let node = memory.node.clone();
    let wait = tokio::spawn(async move { node.wait_acked(&prefix("/a/"), number, later()).await });
    let message = timeout(BOUND, last.next()).await.unwrap().unwrap().kind;
    let Some(Kind::AckRequest(request)) = message else { panic!("{message:?}") };
    let applied = Revision { store: StoreId(1), partition: 0, number };
    assert_eq!(request.revision, Some(applied.into()));
    last.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Applied(Cursor::at(applied).into())) });
    tokio::select! {
        waited = timeout(BOUND, wait) => assert!(waited.unwrap().unwrap().all),
        more = last.next() => panic!("{more:?}"),
    }
    drop(last);
    stop.cancel();
    replica.stop().await;
    server.stop().await;
}
