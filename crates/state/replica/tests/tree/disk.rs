//! Tests of a replica's copy on disk, and of its recovery without a copy.

use std::{fs, time::Duration};

use fairmesh_store::ReplicaFile;

use crate::{
    processes::Processes,
    support::{Memory, Reader, copy, prefix},
};

#[tokio::test]
async fn replica_without_upstream_serves_from_disk_and_resumes() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/a/2", "x")]);
    let control = processes.control("control", &memory).await;
    let upstream = [control.address.clone()];
    let replica = processes.replica("replica", &upstream).await;
    let mut old = Reader::following(&[&replica.address], &["/a/"]).await;
    memory.put(&[("/a/2", "y")]);
    old.update().await;
    control.stop().await;
    assert!(old.age_update().await > Duration::ZERO);
    replica.stop().await;

    let replica = processes.replica("replica", &upstream).await;
    let mut fresh = Reader::start(&[&replica.address], true);
    fresh.handle.subscribe(prefix("/a/"));
    let update = fresh.update().await;
    assert_eq!(fresh.copy, copy(&[("/a/1", "x"), ("/a/2", "y")]));
    assert_eq!(update.revision.number, 2);
    assert!(update.snapshots[0].age > Duration::ZERO, "{:?}", update.snapshots[0].age);
    assert_eq!(old.update().await.resumed.len(), 1, "a returning reader needs no snapshot");
    assert!(replica.page("/readyz").await.contains("from the copy on disk"));
    replica.shows(&["connected 0", "revision 2"]).await;

    memory.put(&[("/a/1", "z")]);
    let control = processes.control("control", &memory).await;
    while fresh.copy["/a/1"] != "z" {
        let update = fresh.update().await;
        assert_eq!((update.snapshots.len(), update.puts.len()), (0, 1), "only the missed changes");
    }
    assert_eq!(fresh.age_update().await, Duration::ZERO);
    replica.shows(&["connected 1", "snapshots_total 0", "deltas_total 1", "data_age_seconds 0.0"]).await;
    replica.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn idle_reader_resumes_after_restart_without_snapshot() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/a/2", "x"), ("/b/1", "x")]);
    let control = processes.control("control", &memory).await;
    let upstream = [control.address.clone()];
    let replica = processes.replica("replica", &upstream).await;
    let mut quiet = Reader::following(&[&replica.address], &["/a/"]).await;
    let mut busy = Reader::following(&[&replica.address], &["/b/"]).await;
    replica.stop().await;
    let replica = processes.replica("replica", &upstream).await;
    assert_eq!((quiet.update().await.resumed.len(), busy.update().await.resumed.len()), (1, 1));
    for i in 0..10 {
        memory.put(&[("/b/1", &i.to_string())]);
    }
    while busy.copy["/b/1"] != "9" {
        busy.update().await;
    }
    replica.stop().await;
    memory.put(&[("/a/1", "y")]);
    memory.delete("/a/2");

    let replica = processes.replica("replica", &upstream).await;
    while quiet.copy != copy(&[("/a/1", "y")]) {
        let update = quiet.update().await;
        assert!(update.snapshots.is_empty(), "{update:?}");
    }
    replica.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn stopped_replica_leaves_last_revision_on_disk() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/a/2", "x")]);
    let control = processes.control("control", &memory).await;
    let replica = processes.replica("replica", std::slice::from_ref(&control.address)).await;
    let mut reader = Reader::following(&[&replica.address], &["/"]).await;
    for i in 0..50 {
        memory.put(&[("/a/1", &i.to_string()), (&format!("/b/{i}"), "x")]);
    }
    memory.delete("/a/2");
    while reader.copy.contains_key("/a/2") {
        reader.update().await;
    }
    replica.stop().await;
    control.stop().await;
    let (_, copied) = ReplicaFile::open(processes.copy("replica")).unwrap();
    let copied = copied.unwrap();
    assert_eq!((copied.revision, copied.entries), memory.node.read(&[prefix("/")]));
}

#[tokio::test]
async fn unusable_replica_copy_is_fetched_again() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/a/2", "x")]);
    let mut control = processes.control("control", &memory).await;
    let upstream = [control.address.clone()];
    processes.replica("replica", &upstream).await.stop().await;

    fs::remove_dir_all(processes.state("replica")).unwrap();
    let replica = processes.replica("replica", &upstream).await;
    let reader = Reader::following(&[&replica.address], &["/a/"]).await;
    assert_eq!(reader.copy.len(), 2);
    drop(reader);
    replica.stop().await;

    let mut bytes = fs::read(processes.copy("replica")).unwrap();
    let middle = bytes.len() / 2;
    bytes[64..middle].fill(0x5a);
    fs::write(processes.copy("replica"), bytes).unwrap();
    let replica = processes.replica("replica", &upstream).await;
    let reader = Reader::following(&[&replica.address], &["/a/"]).await;
    assert_eq!(reader.copy.len(), 2);
    assert!(processes.state("replica").join("copy.unreadable").exists(), "kept for inspection");
    replica.shows(&["snapshots_total 1"]).await;
    drop(reader);
    replica.stop().await;

    control.stop().await;
    let other = Memory::new(2);
    other.put(&[("/a/1", "other")]);
    control = processes.control("control", &other).await;
    let replica = processes.replica("replica", &upstream).await;
    let mut reader = Reader::start(&[&replica.address], true);
    reader.handle.subscribe(prefix("/a/"));
    while reader.copy != copy(&[("/a/1", "other")]) {
        reader.update().await;
    }
    replica.stop().await;
    control.stop().await;
    let (_, copied) = ReplicaFile::open(processes.copy("replica")).unwrap();
    let copied = copied.unwrap();
    assert_eq!(
        (copied.revision, copied.entries),
        other.node.read(&[prefix("/")]),
        "nothing of the old store"
    );
}
