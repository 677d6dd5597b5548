//! An agent between an in-memory upstream and readers, over real sockets and a real directory.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod calls;
mod disk;
mod fixture;
// The upstream and the reader from the tests of crate `rib`.
#[path = "../../../../state/rib/tests/watch/support.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod support;

use std::time::Duration;

use fairmesh_rib::server::ServedRib;
use fixture::AgentFixture;
use support::{BOUND, Memory, Reader, copy, prefix};
use tokio::time::Instant;

#[tokio::test]
async fn readers_of_one_prefix_share_one_upstream_subscription() {
    let fixture = AgentFixture::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let control = fixture.control(&memory).await;
    let agent = fixture.agent();
    let mut first = Reader::following(&[&fixture.socket], &["/a/"]).await;
    let mut second = Reader::following(&[&fixture.socket], &["/a/", "/b/"]).await;
    assert_eq!(second.copy, copy(&[("/a/1", "x"), ("/b/1", "x")]));
    let watchers = memory.node().watchers(&prefix("/"));
    assert_eq!(watchers.len(), 1, "{watchers:?}");
    assert_eq!(watchers[0].software, "agent test");
    memory.put(&[("/a/1", "y"), ("/b/1", "y"), ("/c/1", "y")]);
    first.update().await;
    assert_eq!(second.update().await.puts.len(), 2, "one update upstream is one update here");
    assert_eq!((&*first.copy["/a/1"], &*second.copy["/b/1"]), ("y", "y"));
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn agent_acknowledges_revision_only_after_its_last_reader() {
    let fixture = AgentFixture::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/quiet/1", "x")]);
    let control = fixture.control(&memory).await;
    let agent = fixture.agent();
    let mut quick = Reader::following(&[&fixture.socket], &["/a/"]).await;
    let mut slow = Reader::following(&[&fixture.socket], &["/a/"]).await;
    // This reader has applied its snapshot and gets no further update, but must not delay acknowledgements.
    let mut quiet = Reader::start(&[&fixture.socket], true);
    quiet.handle.subscribe(prefix("/quiet/"));
    let revision = quiet.update().await.revision;
    quiet.handle.ack(revision);

    let revision = memory.put(&[("/a/1", "y")]);
    let update = quick.update().await;
    quick.handle.ack(update.revision);
    slow.update().await;
    let soon = Instant::now() + Duration::from_millis(50);
    assert!(
        !memory.node.wait_acked(&prefix("/a/"), revision, soon).await.all,
        "one of two has not applied it"
    );
    slow.handle.ack(update.revision);
    assert!(memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + BOUND).await.all);

    drop((quick, slow));
    let revision = memory.put(&[("/a/1", "z")]);
    let alone = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + BOUND).await;
    assert!(alone.all, "without a reader the agent acknowledges itself: {:?}", alone.behind);
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn readers_keep_their_copy_when_agent_restarts() {
    let fixture = AgentFixture::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/a/2", "x")]);
    let control = fixture.control(&memory).await;
    let agent = fixture.agent();
    let mut reader = Reader::following(&[&fixture.socket], &["/a/"]).await;
    agent.stop().await;
    memory.put(&[("/a/1", "y")]);
    memory.delete("/a/2");
    let agent = fixture.agent();
    while reader.copy != copy(&[("/a/1", "y")]) {
        assert!(!reader.update().await.snapshots.iter().any(|snapshot| snapshot.entries.is_empty()));
    }
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn readers_replace_their_copy_when_upstream_has_new_store() {
    let fixture = AgentFixture::new();
    let (old, new) = (Memory::new(1), Memory::new(2));
    for _ in 0..9 {
        old.put(&[("/a/1", "old"), ("/a/2", "old")]);
    }
    let control = fixture.control(&old).await;
    let agent = fixture.agent();
    let mut reader = Reader::following(&[&fixture.socket], &["/a/"]).await;
    control.stop().await;
    new.put(&[("/a/1", "new")]);
    let control = fixture.control(&new).await;
    let update = reader.update().await;
    assert_eq!((update.revision.store.0, update.revision.number), (2, 1));
    assert_eq!(reader.copy, copy(&[("/a/1", "new")]));
    agent.stop().await;
    control.stop().await;
}
