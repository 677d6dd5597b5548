use std::time::Duration;

use fairmesh_model::{Cursor, Revision, StoreId};
use fairmesh_rib::{Node, Table, server::FollowedPrefixes};
use fairmesh_wire::{
    handshake,
    v1::{self, watch_request, watch_response},
    watch::Watch,
};
use tokio::time::timeout;
use tonic::{Code, Request};

use crate::support::{BOUND, Memory, Reader, Server, SinkCall, prefix};

fn delete(key: &str, revision: Option<u64>) -> v1::WriteRequest {
    let condition =
        revision.map(|revision| v1::Condition { kind: Some(v1::condition::Kind::Revision(revision)) });
    v1::WriteRequest { ops: vec![v1::Op { key: key.into(), value: None, condition }] }
}

#[tokio::test]
async fn writes_are_validated_before_reaching_store() {
    let memory = Memory::new(1);
    memory.put(&[("/t/shop/services/cart", "x")]);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut rib = handshake::connect(&Default::default(), &server.address, "test").await.unwrap().rib();
    let wrong = rib.write(delete("/nonsense", None)).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert!(wrong.message().starts_with("ops[0].key"), "{}", wrong.message());
    let conflict = rib.write(delete("/t/shop/services/cart", Some(9))).await.unwrap_err();
    assert_eq!(conflict.code(), Code::Aborted);
    assert!(conflict.message().contains("revision 9") && conflict.message().contains("revision 1"));
    let none = rib.write(v1::WriteRequest::default()).await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);
    let written = rib.write(delete("/t/shop/services/cart", Some(1))).await.unwrap().into_inner();
    assert_eq!(written.revision.unwrap().number, 2);
    server.stop().await;
}

fn at(store: u128, partition: u32, number: u64) -> v1::Cursor {
    Cursor::at(Revision { store: StoreId(store), partition, number }).into()
}

#[tokio::test]
async fn read_of_impossible_revision_is_refused_at_once() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut rib = handshake::connect(&Default::default(), &server.address, "test").await.unwrap().rib();
    for (from, code, why) in [
        (at(2, 0, 1), Code::FailedPrecondition, "another store"),
        (at(1, 1, 1), Code::InvalidArgument, "partition 1"),
        (v1::Cursor::default(), Code::InvalidArgument, "at_least.store_id"),
    ] {
        let request = v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: Some(from) };
        let refused = timeout(BOUND, rib.read(request)).await.expect("nothing is waited for").unwrap_err();
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains(why), "{}", refused.message());
    }
    server.stop().await;
}

#[tokio::test]
async fn read_waits_for_requested_revision() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut rib = handshake::connect(&Default::default(), &server.address, "test").await.unwrap().rib();
    let request = v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: Some(at(1, 0, 2)) };
    let mut short = Request::new(request.clone());
    short.set_timeout(Duration::from_millis(50));
    assert!(rib.read(short).await.is_err(), "nothing was written yet");
    let mut waiting = rib.clone();
    let read = tokio::spawn(async move { waiting.read(request).await });
    memory.put(&[("/a/1", "x")]);
    memory.put(&[("/a/2", "x")]);
    let read = timeout(BOUND, read).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!((read.at, read.entries.len()), (Some(at(1, 0, 2)), 2));
    server.stop().await;
}

#[tokio::test]
async fn watch_delta_larger_than_one_message_arrives_as_one_change() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let value = "v".repeat(100_000);
    let keys: Vec<_> = (0..100).map(|i| format!("/a/{i}")).collect();
    memory.put(&keys.iter().map(|key| (key.as_str(), value.as_str())).collect::<Vec<_>>());
    let update = reader.update().await;
    assert_eq!(
        (update.revision.number, update.puts.len(), update.snapshots.len()),
        (1, 100, 0),
        "10 MB at once"
    );
    server.stop().await;
}

#[tokio::test]
async fn watch_snapshot_larger_than_one_message_arrives_as_one_change() {
    let memory = Memory::new(1);
    let value = "v".repeat(100_000);
    for i in 0..100 {
        memory.put(&[(&format!("/a/{i}"), &value)]);
    }
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let reader = Reader::following(&[&server.address], &["/a/"]).await;
    assert_eq!(reader.copy.len(), 100, "10 MB at once");
    let mut rib = handshake::connect(&Default::default(), &server.address, "test").await.unwrap().rib();
    let all = rib.read(v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: None }).await.unwrap_err();
    assert_eq!(all.code(), Code::ResourceExhausted);
    assert!(all.message().contains("watch"));
    let watchers = rib.watchers(v1::WatchersRequest { prefix: "/a/1".into() }).await.unwrap().into_inner();
    assert_eq!(
        (&*watchers.watchers[0].software, &watchers.watchers[0].applied),
        ("reader", &Some(at(1, 0, 0)))
    );
    server.stop().await;
}

#[tokio::test]
async fn watch_prefixes_beyond_shared_limit_are_refused_individually() {
    // A watch may use half of three quarters of the memory: two prefixes.
    let node = Node::bounded(StoreId(1), Table::default(), FollowedPrefixes::at_most(2800, 0));
    let server = Server::start(Memory { node: node.clone() }, "127.0.0.1:0").await;
    let mut greedy = Reader::following(&[&server.address], &["/a/"]).await;
    greedy.handle.subscribe(prefix("/b/"));
    greedy.update().await;
    greedy.handle.subscribe(prefix("/c/"));
    let SinkCall::Refused(refused, reason) = greedy.got().await else { panic!("it is followed") };
    assert_eq!(refused, prefix("/c/"));
    assert!(reason.starts_with("RESOURCE_EXHAUSTED: "), "{reason}");
    let _modest = Reader::following(&[&server.address], &["/d/"]).await;
    assert_eq!(node.followed().count(), 3);
    // The reader subscribes again from time to time, and is refused again.
    assert!(node.followed().refused() >= 1);
    drop(greedy);
    let gone = async {
        while node.followed().count() > 1 {
            tokio::task::yield_now().await
        }
    };
    timeout(BOUND, gone).await.expect("places are free again when a watch ends");
    server.stop().await;
}

#[tokio::test]
async fn watch_requests_wait_until_earlier_refusals_are_read() {
    const PREFIXES: usize = 20_000;
    let (_folder, path) = crate::socket();
    let node = Node::bounded(StoreId(1), Table::default(), FollowedPrefixes::at_most(0, 0));
    let server = Server::start(Memory { node: node.clone() }, &path).await;
    let mut watch = Watch::open(&Default::default(), &server.address, "refused").await.unwrap();
    for i in 0..PREFIXES {
        let subscribe = v1::Subscribe { prefix: format!("/a/{i}/"), ..v1::Subscribe::default() };
        watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    }
    let mut refused = 0;
    while refused < PREFIXES {
        let response = timeout(BOUND, watch.next()).await.unwrap().unwrap();
        assert!(matches!(response.kind, Some(watch_response::Kind::Refused(_))), "{response:?}");
        refused += 1;
        // At most 64 KB of refusals are pending, plus those buffered in the socket and in this reader.
        let unread = node.followed().refused() - refused as u64;
        assert!(unread < 4_000, "{unread} refusals wait to be read");
    }
    server.stop().await;
}
