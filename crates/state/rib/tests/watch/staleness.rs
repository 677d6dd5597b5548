use std::time::Duration;

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    server::{ServedRib, WriteError},
};
use fairmesh_wire::{
    handshake,
    transport::Address,
    v1::{self, watch_request, watch_response::Kind},
    watch::Watch,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tonic::Code;

use crate::support::{BOUND, Memory, Reader, Server, SinkCall, prefix};

/// A node whose data ages when the test says so.
#[derive(Clone, Debug)]
struct AgingNode {
    memory: Memory,
    age: watch::Sender<Duration>,
    ages: watch::Sender<u64>,
}

impl AgingNode {
    fn new() -> Self {
        Self { memory: Memory::new(1), age: watch::Sender::new(Duration::ZERO), ages: watch::Sender::new(0) }
    }

    fn ages(&self, age: Duration) {
        self.age.send_replace(age);
        self.ages.send_modify(|ticks| *ticks += 1);
    }
}

impl ServedRib for AgingNode {
    fn node(&self) -> &Node {
        &self.memory.node
    }

    fn software(&self) -> String {
        "edge".into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, batch: Batch, identity: Identity) -> Result<Revision, WriteError> {
        self.memory.write(batch, identity).await
    }

    async fn ensure_linearizable(&self) -> Result<(), String> {
        if self.age.borrow().is_zero() { Ok(()) } else { Err("read from the other one".into()) }
    }

    fn age(&self, _: &Prefix) -> Duration {
        *self.age.borrow()
    }

    fn max_age(&self) -> Duration {
        *self.age.borrow()
    }

    fn age_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.ages.subscribe())
    }
}

#[tokio::test]
async fn watcher_is_notified_when_its_data_starts_and_stops_aging() {
    let edge = AgingNode::new();
    edge.memory.put(&[("/a/1", "x")]);
    let server = Server::start(edge.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    for age in [Duration::from_micros(1), Duration::from_secs(7)] {
        edge.ages(age);
        assert_eq!(
            reader.age_update().await,
            age.max(Duration::from_millis(1)),
            "zero stands for current data"
        );
        edge.ages(2 * age);
        edge.ages(Duration::ZERO);
        assert_eq!(reader.age_update().await, Duration::ZERO, "continued aging is not reported");
    }
    edge.ages(Duration::ZERO);
    edge.memory.put(&[("/a/1", "y")]);
    reader.update().await;
    assert!(reader.no_more_age_updates());

    edge.ages(Duration::from_secs(1));
    reader.age_update().await;
    reader.handle.subscribe(prefix("/b/"));
    assert_eq!(reader.update().await.snapshots[0].age, Duration::from_secs(1));
    assert!(reader.no_more_age_updates());
    server.stop().await;
}

#[tokio::test]
async fn linearizable_read_is_refused_if_backend_cannot_serve_it() {
    let edge = AgingNode::new();
    edge.memory.put(&[("/a/1", "x")]);
    let server = Server::start(edge.clone(), "127.0.0.1:0").await;
    let mut rib = handshake::connect(&Default::default(), &server.address, "test").await.unwrap().rib();
    let request = v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: None };
    assert_eq!(rib.read(request.clone()).await.unwrap().into_inner().entries.len(), 1);
    edge.ages(Duration::from_secs(1));
    let refusal = rib.read(request).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.message()), (Code::Unavailable, "read from the other one"));
    server.stop().await;
}

/// Waits until an upstream is followed, and returns when the connection was established.
async fn followed(reader: &Reader, address: &Address) -> Instant {
    let mut state = reader.handle.state();
    let there = state.wait_for(|state| state.connected && state.address.as_ref() == Some(address));
    timeout(BOUND, there).await.unwrap().unwrap().since
}

#[tokio::test]
async fn follower_leaves_stale_upstream_for_current_one() {
    let (old, new) = (AgingNode::new(), AgingNode::new());
    for edge in [&old, &new] {
        edge.memory.put(&[("/a/1", "x")]);
    }
    let (left, found) =
        (Server::start(old.clone(), "127.0.0.1:0").await, Server::start(new.clone(), "127.0.0.1:0").await);
    let mut reader = Reader::following(&[&left.address, &found.address], &["/a/"]).await;
    followed(&reader, &left.address).await;
    old.ages(Duration::from_secs(1));
    reader.age_update().await;
    new.memory.put(&[("/a/1", "y")]);
    assert_eq!(reader.update().await.revision.number, 2, "the other one serves the later write");
    followed(&reader, &found.address).await;
    left.stop().await;
    found.stop().await;
}

#[tokio::test]
async fn reader_cycles_through_stale_upstreams_but_stays_at_single_one() {
    let (one, other) = (AgingNode::new(), AgingNode::new());
    for edge in [&one, &other] {
        edge.ages(Duration::from_secs(1));
    }
    let (first, second) =
        (Server::start(one, "127.0.0.1:0").await, Server::start(other, "127.0.0.1:0").await);
    let lone = Reader::following(&[&first.address], &["/a/"]).await;
    let since = followed(&lone, &first.address).await;
    let reader = Reader::following(&[&first.address, &second.address], &["/a/"]).await;
    followed(&reader, &second.address).await;
    // Two stays take longer than the longest first stay. By then the other reader would have left too.
    followed(&reader, &first.address).await;
    assert_eq!(followed(&lone, &first.address).await, since);
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn watcher_that_declines_age_updates_gets_none() {
    let edge = AgingNode::new();
    let server = Server::start(edge.clone(), "127.0.0.1:0").await;
    let mut watch = Watch::open(&Default::default(), &server.address, "of an earlier release").await.unwrap();
    let subscribe = v1::Subscribe { prefix: "/a/".into(), ..Default::default() };
    watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    let mut response = async || timeout(BOUND, watch.next()).await.unwrap().unwrap().kind;
    assert!(matches!(response().await, Some(Kind::Snapshot(_))));
    edge.ages(Duration::from_secs(1));
    edge.memory.put(&[("/a/1", "x")]);
    assert!(matches!(response().await, Some(Kind::Delta(_))));
    server.stop().await;
}

#[tokio::test]
async fn error_about_lagging_upstream_names_remedy() {
    let (current, restored) = (Memory::new(1), Memory::new(1));
    for value in ["x", "y", "z"] {
        current.put(&[("/a/1", value)]);
    }
    restored.put(&[("/a/1", "x")]);
    let first = Server::start(current, "127.0.0.1:0").await;
    let second = Server::start(restored.clone(), "127.0.0.1:0").await;
    let reader = Reader::following(&[&first.address, &second.address], &["/a/"]).await;
    first.stop().await;
    let state = reader.until(|state| state.connected && state.error.is_some()).await;
    let error = state.error.unwrap();
    assert!(error.contains("at revision 1 of its store") && error.contains("copy at 3"), "{error}");
    assert!(error.contains("--new-store-id"), "{error}");
    for value in ["y", "z"] {
        restored.put(&[("/a/1", value)]);
    }
    reader.until(|state| state.connected && state.error.is_none()).await;
    second.stop().await;
}

/// A node that serves no prefix before its own upstream responds, like an agent without a control plane.
#[derive(Clone, Debug)]
struct StartingNode {
    memory: Memory,
    has_upstream: watch::Sender<bool>,
}

impl ServedRib for StartingNode {
    fn node(&self) -> &Node {
        &self.memory.node
    }

    fn software(&self) -> String {
        "agent web-1".into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, batch: Batch, identity: Identity) -> Result<Revision, WriteError> {
        self.memory.write(batch, identity).await
    }

    async fn ready(&self, _: &Prefix) -> Result<(), String> {
        if *self.has_upstream.borrow() { Ok(()) } else { Err("no control plane answers this agent".into()) }
    }
}

#[tokio::test]
async fn refused_prefix_arrives_on_same_connection_once_upstream_serves_it() {
    let node = StartingNode { memory: Memory::new(1), has_upstream: watch::Sender::new(false) };
    node.memory.put(&[("/a/x", "1")]);
    let server = Server::start(node.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::start(&[&server.address], false);
    reader.handle.subscribe(prefix("/a/"));
    let SinkCall::Refused(refused, reason) = reader.got().await else { panic!("it is served") };
    assert_eq!((refused, &*reason), (prefix("/a/"), "no control plane answers this agent"));
    let connected = reader.until(|state| state.connected).await.since;
    node.has_upstream.send_replace(true);
    reader.update().await;
    assert_eq!(reader.copy["/a/x"], "1");
    let state = reader.until(|state| state.connected).await;
    assert_eq!(state.since, connected, "the connection stays");
    server.stop().await;
}
