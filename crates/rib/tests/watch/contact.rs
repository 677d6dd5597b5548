use std::time::Duration;

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    server::{Backend, WriteError},
};
use fairmesh_wire::{
    v1::{self, watch_request, watch_response::Kind},
    watch::Watch,
};
use tokio::{sync::watch, time::timeout};

use crate::support::{BOUND, Memory, Reader, Server, prefix};

/// A node whose data ages when the test says so.
#[derive(Clone, Debug)]
struct Edge {
    memory: Memory,
    age: watch::Sender<Duration>,
    ages: watch::Sender<u64>,
}

impl Edge {
    fn new() -> Self {
        Self { memory: Memory::new(1), age: watch::Sender::new(Duration::ZERO), ages: watch::Sender::new(0) }
    }

    fn ages(&self, age: Duration) {
        self.age.send_replace(age);
        self.ages.send_modify(|ticks| *ticks += 1);
    }
}

impl Backend for Edge {
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

    fn age(&self, _: &Prefix) -> Duration {
        *self.age.borrow()
    }

    fn ages(&self) -> Option<watch::Receiver<u64>> {
        Some(self.ages.subscribe())
    }
}

#[tokio::test]
async fn a_watcher_is_told_when_its_data_begins_to_age_and_when_it_ceases_to() {
    let edge = Edge::new();
    edge.memory.put(&[("/a/1", "x")]);
    let server = Server::start(edge.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    for age in [Duration::from_micros(1), Duration::from_secs(7)] {
        edge.ages(age);
        assert_eq!(
            reader.contact().await,
            age.max(Duration::from_millis(1)),
            "zero is for what does not age"
        );
        edge.ages(2 * age);
        edge.ages(Duration::ZERO);
        assert_eq!(reader.contact().await, Duration::ZERO, "that it goes on to age needs no telling");
    }
    edge.ages(Duration::ZERO);
    edge.memory.put(&[("/a/1", "y")]);
    reader.update().await;
    assert!(reader.no_more_contact());

    edge.ages(Duration::from_secs(1));
    reader.contact().await;
    reader.handle.subscribe(prefix("/b/"));
    assert_eq!(reader.update().await.snapshots[0].age, Duration::from_secs(1));
    assert!(reader.no_more_contact());
    server.stop().await;
}

#[tokio::test]
async fn a_watcher_that_does_not_say_that_it_understands_is_told_nothing_new() {
    let edge = Edge::new();
    let server = Server::start(edge.clone(), "127.0.0.1:0").await;
    let mut watch = Watch::open(&server.address, "of an earlier release").await.unwrap();
    let subscribe = v1::Subscribe { prefix: "/a/".into(), ..Default::default() };
    watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    let mut answer = async || timeout(BOUND, watch.next()).await.unwrap().unwrap().kind;
    assert!(matches!(answer().await, Some(Kind::Snapshot(_))));
    edge.ages(Duration::from_secs(1));
    edge.memory.put(&[("/a/1", "x")]);
    assert!(matches!(answer().await, Some(Kind::Delta(_))));
    server.stop().await;
}
