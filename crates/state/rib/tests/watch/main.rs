//! Tests a server and a reader over real sockets.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod acks;
mod calls;
mod patches;
mod signals;
mod staleness;
mod support;
mod traffic;

use std::time::Duration;

use fairmesh_model::StoreId;
use fairmesh_rib::{Node, Table, follower::Backoff};
use support::{BOUND, Memory, Reader, Server, copy, prefix};
use tokio::time::timeout;

/// Returns a socket path that exists as long as the test.
fn socket() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("unix:{}/rib.sock", folder.path().display());
    (folder, path)
}

async fn snapshot_then_deltas(address: &str) {
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "y")]);
    let server = Server::start(memory.clone(), address).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    assert_eq!(reader.copy, copy(&[("/a/1", "x")]));
    memory.put(&[("/a/2", "z"), ("/b/2", "y")]);
    let update = reader.update().await;
    assert_eq!((update.revision.number, update.snapshots.len(), update.puts.len()), (2, 0, 1));
    memory.delete("/a/1");
    assert_eq!(reader.update().await.deletes.len(), 1);
    assert_eq!(reader.copy, copy(&[("/a/2", "z")]));
    server.stop().await;
}

#[tokio::test]
async fn reader_gets_snapshot_then_deltas_over_tcp() {
    snapshot_then_deltas("127.0.0.1:0").await;
}

#[tokio::test]
async fn reader_gets_snapshot_then_deltas_over_unix_socket() {
    let (_folder, path) = socket();
    snapshot_then_deltas(&path).await;
}

#[tokio::test]
async fn returning_reader_gets_missed_changes_without_snapshot() {
    let (_folder, path) = socket();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "old"), ("/b/1", "old"), ("/c/1", "old")]);
    let server = Server::start(memory.clone(), &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/", "/b/", "/c/"]).await;
    server.stop().await;
    memory.put(&[("/a/1", "new")]);
    memory.put(&[("/b/1", "new")]);
    memory.delete("/a/1");
    let server = Server::start(memory.clone(), &path).await;
    let update = reader.update().await;
    assert_eq!((update.resumed.len(), update.snapshots.len()), (3, 0));
    assert_eq!((update.puts.len(), update.deletes.len()), (1, 1), "the last value of each key, once");
    assert_eq!(reader.copy, copy(&[("/b/1", "new"), ("/c/1", "old")]));
    server.stop().await;
}

#[tokio::test]
async fn reader_older_than_log_gets_snapshots() {
    let (_folder, path) = socket();
    let memory = Memory { node: Node::with_table(StoreId(1), Table::new(2)) };
    memory.put(&[("/a/1", "0")]);
    let server = Server::start(memory.clone(), &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    server.stop().await;
    for i in 1..5 {
        memory.put(&[("/a/1", &i.to_string())]);
    }
    memory.delete("/a/1");
    let server = Server::start(memory.clone(), &path).await;
    let update = reader.update().await;
    assert_eq!((update.resumed.len(), update.snapshots.len()), (0, 1));
    assert!(reader.copy.is_empty(), "keys missing from the snapshot are removed");
    server.stop().await;
}

#[tokio::test]
async fn new_store_behind_same_address_replaces_readers_whole_copy() {
    let (_folder, path) = socket();
    let (old, new) = (Memory::new(1), Memory::new(2));
    for _ in 0..9 {
        old.put(&[("/a/1", "old"), ("/a/2", "old")]);
    }
    let server = Server::start(old, &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    server.stop().await;
    new.put(&[("/a/1", "new")]);
    let server = Server::start(new, &path).await;
    let update = reader.update().await;
    assert_eq!((update.revision.store, update.revision.number), (StoreId(2), 1));
    assert_eq!(reader.copy, copy(&[("/a/1", "new")]));
    assert_eq!(reader.until(|state| state.connected).await.store, Some(StoreId(2)));
    server.stop().await;
}

#[tokio::test]
async fn write_batch_across_two_subscriptions_arrives_as_one_update() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/", "/b/"]).await;
    for i in 0..50 {
        let value = i.to_string();
        memory.put(&[("/a/1", &value), ("/b/1", &value)]);
    }
    loop {
        let update = reader.update().await;
        assert_eq!(reader.copy["/a/1"], reader.copy["/b/1"], "at revision {}", update.revision.number);
        if reader.copy["/a/1"] == "49" {
            break;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn unsubscribed_prefix_sends_nothing_and_resumes_with_snapshot() {
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/", "/b/"]).await;
    reader.handle.unsubscribe(&prefix("/a/"));
    reader.handle.subscribe(prefix("/a/"));
    let update = reader.update().await;
    assert_eq!(update.snapshots.len(), 1);
    reader.handle.unsubscribe(&prefix("/a/"));
    // Followed after the unsubscribe: the arrival of the snapshot shows that the server has read both requests.
    reader.handle.subscribe(prefix("/c/"));
    reader.update().await;
    memory.put(&[("/a/1", "y")]);
    memory.put(&[("/b/1", "y")]);
    let update = reader.update().await;
    assert_eq!((update.puts.len(), &*update.puts[0].0), (1, "/b/1"));
    server.stop().await;
}

#[tokio::test]
async fn upstream_addresses_are_attempted_in_turn() {
    let (_folder, dead) = socket();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let server = Server::start(memory, "127.0.0.1:0").await;
    let reader = Reader::following(&[&dead.parse().unwrap(), &server.address], &["/a/"]).await;
    assert_eq!(reader.until(|state| state.connected).await.address, Some(server.address.clone()));
    server.stop().await;
}

#[tokio::test]
async fn follower_retry_request_ends_reconnect_pause() {
    let (_folder, path) = socket();
    // With infinite backoff, only the call can end the pause.
    let backoff = Backoff { first: Duration::MAX, longest: Duration::MAX };
    let reader = Reader::start_with(&[&path.parse().unwrap()], true, backoff);
    reader.until(|state| state.failures == 1).await;
    let mut state = reader.handle.state();
    state.mark_unchanged();
    reader.handle.retry();
    timeout(BOUND, state.changed()).await.expect("it attempts").unwrap();
    let server = Server::start(Memory::new(1), &path).await;
    reader.handle.retry();
    reader.until(|state| state.connected).await;
    server.stop().await;
}

#[tokio::test]
async fn upstream_behind_readers_revision_is_retried_with_backoff() {
    let (_folder, path) = socket();
    let (ahead, behind) = (Memory::new(1), Memory::new(1));
    for i in 0..3 {
        ahead.put(&[("/a/1", &i.to_string())]);
    }
    let server = Server::start(ahead.clone(), &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    server.stop().await;
    reader.handle.subscribe(prefix("/b/"));
    behind.put(&[("/b/1", "0")]);
    let server = Server::start(behind.clone(), &path).await;
    let refused = reader.until(|state| !state.connected && state.failures > 3).await;
    assert!(refused.error.unwrap().contains("behind revision 3"), "connected and disconnected each time");
    for i in 0..3 {
        behind.put(&[("/a/1", &i.to_string())]);
    }
    reader.update().await;
    server.stop().await;
}

#[tokio::test]
async fn follower_leaves_lagging_upstream_until_it_catches_up() {
    let (_folder, path) = socket();
    let (ahead, behind) = (Memory::new(1), Memory::new(1));
    for i in 0..3 {
        ahead.put(&[("/a/1", &i.to_string())]);
    }
    let server = Server::start(ahead, &path).await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    server.stop().await;
    behind.put(&[("/a/1", "0"), ("/b/1", "0")]);
    let server = Server::start(behind.clone(), &path).await;
    reader.handle.subscribe(prefix("/b/"));
    let lagging = |text: &String| text.contains("behind revision 3");
    reader.until(|state| state.error.as_ref().is_some_and(lagging)).await;
    for i in 1..4 {
        behind.put(&[("/a/1", &i.to_string())]);
    }
    loop {
        assert!(reader.update().await.revision.number >= 3, "never backwards");
        if reader.copy == copy(&[("/a/1", "3"), ("/b/1", "0")]) {
            break;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn watch_of_many_prefixes_delivers_all_without_delaying_writes() {
    const MANY: usize = 20_000;
    let memory = Memory::new(1);
    memory.put(&[("/00001/1", "x"), ("/19999/1", "x"), ("/other/1", "x")]);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut quick = Reader::start(&[&server.address], true);
    quick.handle.subscribe(prefix("/other/"));
    quick.update().await;
    let mut reader = Reader::start(&[&server.address], true);
    reader.handle.subscribe_all((0..MANY).map(|i| prefix(&format!("/{i:05}/"))));
    let mut arrived = 0;
    while arrived < MANY {
        let update = reader.update().await;
        arrived += update.snapshots.len();
        assert!(update.snapshots.len() < MANY / 10, "updates of other watchers are sent in between");
        if arrived < MANY {
            memory.put(&[("/other/1", &arrived.to_string())]);
            quick.update().await;
        }
    }
    assert_eq!(reader.copy, copy(&[("/00001/1", "x"), ("/19999/1", "x")]));
    server.stop().await;
}
