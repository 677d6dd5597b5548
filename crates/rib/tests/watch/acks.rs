use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::support::{BOUND, Memory, Reader, Server, prefix};

fn later() -> Instant {
    Instant::now() + BOUND
}

#[tokio::test]
async fn a_wait_ends_when_the_last_watcher_of_the_prefix_says_that_it_has_applied() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let bystander = Reader::following(&[&server.address], &["/b/"]).await;
    let revision = memory.put(&[("/a/1", "x")]);
    let update = reader.update().await;

    let early =
        memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + Duration::from_millis(20)).await;
    assert!(!early.all);
    assert_eq!(early.behind, ["reader (anonymous) at 0"], "the watcher of /b/ owes nothing");

    let node = memory.node.clone();
    let wait = tokio::spawn(async move { node.wait_acked(&prefix("/a/"), revision, later()).await });
    reader.handle.ack(update.revision);
    assert!(timeout(BOUND, wait).await.unwrap().unwrap().all);
    drop(bystander);
    server.stop().await;
}

#[tokio::test]
async fn a_wait_ends_when_the_laggard_disconnects() {
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
async fn an_acknowledgement_of_another_store_does_not_count() {
    let memory = Memory::new(1);
    let server = Server::start(memory.clone(), "127.0.0.1:0").await;
    let mut reader = Reader::following(&[&server.address], &["/a/"]).await;
    let revision = memory.put(&[("/a/1", "x")]);
    let update = reader.update().await;
    reader.handle.ack(fairmesh_model::Revision { store: fairmesh_model::StoreId(2), ..update.revision });
    // The snapshot comes after the server has read the acknowledgement: one stream carries both.
    reader.handle.subscribe(prefix("/b/"));
    let update = reader.update().await;
    assert!(memory.node.applied_by_all().number < revision);
    reader.handle.ack(update.revision);
    let acked = memory.node.wait_acked(&prefix("/"), revision, later()).await;
    assert!(acked.all);
    server.stop().await;
}
