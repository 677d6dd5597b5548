//! Trees of replicas between an upstream and readers, over real sockets and real folders.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod disk;
mod former_release;
mod processes;
mod reconnect_storm;
mod services;
// The upstream and the reader from the tests of `rib`.
#[path = "../../../rib/tests/watch/support.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod support;

use std::time::Duration;

use fairmesh_model::{Cursor, Revision, StoreId};
use fairmesh_wire::{transport::Address, v1};
use processes::Processes;
use support::{BOUND, Memory, Reader, copy, prefix};
use tokio::time::{Instant, timeout};
use tonic::Code;

/// Time in which an error would show, for checks that nothing happens.
const MOMENT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn two_replica_layers_relay_changes_and_acknowledgements() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let control = processes.control("control", &memory).await;
    let root = processes.replica("root", std::slice::from_ref(&control.address)).await;
    let region = processes.replica("region", std::slice::from_ref(&root.address)).await;
    let agent = processes.agent("agent", &region.address);
    let mut below = Reader::following(&[&agent.address], &["/a/"]).await;
    let mut beside = Reader::following(&[&region.address], &["/"]).await;
    assert_eq!(below.copy, copy(&[("/a/1", "x")]));
    assert_eq!(beside.copy, copy(&[("/a/1", "x"), ("/b/1", "x")]));
    let watchers = memory.node.watchers(&prefix("/"));
    assert_eq!(watchers.len(), 1, "the control plane sees the root only: {watchers:?}");
    assert_eq!(watchers[0].software, "replica root");

    let revision = memory.put(&[("/a/1", "y")]);
    let update = beside.update().await;
    assert_eq!(update.revision.number, revision);
    beside.handle.ack(update.revision);
    let update = below.update().await;
    assert_eq!(below.copy["/a/1"], "y");
    let early = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + MOMENT).await;
    assert_eq!((early.all, early.behind.len()), (false, 1), "the reader below the agent has not applied it");
    below.handle.ack(update.revision);
    let all = memory.node.wait_acked(&prefix("/a/"), revision, Instant::now() + BOUND).await;
    assert!(all.all, "{:?}", all.behind);
    root.shows(&["connected 1", "watchers 1", "data_age_seconds 0.0", "snapshots_total 1"]).await;
    region.shows(&["watchers 2", "revision 2", "acknowledged_revision 2", "save_failures_total 0"]).await;
    agent.stop().await;
    region.stop().await;
    root.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn replica_fails_over_without_returning_to_older_revision() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "0")]);
    let control = processes.control("control", &memory).await;
    let first = processes.replica("first", std::slice::from_ref(&control.address)).await;
    let second = processes.replica("second", std::slice::from_ref(&control.address)).await;
    let both = [first.address.clone(), second.address.clone()];
    let leaf = processes.replica("leaf", &both).await;
    let mut reader = Reader::following(&[&leaf.address], &["/a/"]).await;
    let (mut first, mut second, mut last) = (Some(first), Some(second), 0);
    for round in 1..=6 {
        let (gone, name) = match round % 2 {
            1 => (first.take().unwrap(), "first"),
            _ => (second.take().unwrap(), "second"),
        };
        gone.stop().await;
        let value = round.to_string();
        memory.put(&[("/a/1", &value)]);
        while reader.copy["/a/1"] != value {
            let update = reader.update().await;
            assert!(update.revision.number >= last, "{update:?} after {last}");
            assert!(update.snapshots.is_empty(), "only the missed changes: {update:?}");
            last = update.revision.number;
        }
        let again = processes.replica(name, std::slice::from_ref(&control.address)).await;
        let returned = if round % 2 == 1 { &mut first } else { &mut second };
        *returned = Some(again);
    }
    leaf.shows(&["snapshots_total 1"]).await;
    leaf.stop().await;
    first.unwrap().stop().await;
    second.unwrap().stop().await;
    control.stop().await;
}

#[tokio::test]
async fn replica_does_not_revert_changes_at_lagging_upstream() {
    let processes = Processes::new();
    let (ahead, behind) = (Memory::new(1), Memory::new(1));
    for memory in [&ahead, &behind] {
        memory.put(&[("/a/1", "1")]);
    }
    ahead.put(&[("/a/1", "2")]);
    let good = processes.control("good", &ahead).await;
    let lagging = processes.control("lagging", &behind).await;
    let replica = processes.replica("replica", &[good.address.clone(), lagging.address.clone()]).await;
    let mut reader = Reader::following(&[&replica.address], &["/a/"]).await;
    good.stop().await;
    assert!(reader.age_update().await > Duration::ZERO);
    // The replica follows the lagging upstream once that upstream has a watcher.
    let found = async {
        while behind.node.watchers(&prefix("/")).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, found).await.unwrap();
    assert_eq!(Reader::following(&[&replica.address], &["/a/"]).await.copy, copy(&[("/a/1", "2")]));
    behind.put(&[("/a/1", "2")]);
    behind.put(&[("/a/1", "3")]);
    while reader.copy["/a/1"] != "3" {
        assert!(reader.update().await.revision.number >= 2);
    }
    assert_eq!(reader.age_update().await, Duration::ZERO);
    replica.stop().await;
    lagging.stop().await;
}

#[tokio::test]
async fn replica_reads_wait_for_revision_and_refused_writes_name_control_plane() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = processes.control("control", &memory).await;
    let replica = processes.replica("replica", std::slice::from_ref(&control.address)).await;
    let connection = replica.connect().await;
    assert_eq!(connection.hello.location, None, "it is not on the machine of its callers");
    let read = |number| {
        let at = Cursor::at(Revision { store: StoreId(1), partition: 0, number });
        v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: Some(at.into()) }
    };
    let there = async {
        let mut rib = connection.rib();
        // The store is unknown until the first copy arrives.
        loop {
            match rib.read(read(1)).await {
                Ok(response) => return response.into_inner(),
                Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status}"),
            }
        }
    };
    assert_eq!(&*timeout(BOUND, there).await.unwrap().entries[0].value, b"x");
    let mut rib = connection.rib();
    let mut waiting = tokio::spawn(async move { rib.read(read(2)).await });
    assert!(timeout(MOMENT, &mut waiting).await.is_err(), "revision 2 is not there yet");
    memory.put(&[("/a/1", "y")]);
    let response = timeout(BOUND, waiting).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!(&*response.entries[0].value, b"y");

    let op = v1::Op { key: "/t/shop/services/cart".into(), value: None, condition: None };
    let refused = connection.rib().write(v1::WriteRequest { ops: vec![op] }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("control.sock"), "{}", refused.message());
    replica.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn slow_watcher_gets_latest_value_of_each_key_after_burst() {
    let processes = Processes::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "0"), ("/a/2", "0")]);
    let control = processes.control("control", &memory).await;
    let replica = processes.replica("replica", std::slice::from_ref(&control.address)).await;
    let mut reader = Reader::following(&[&replica.address], &["/a/"]).await;
    let (bursts, mut updates) = (2000, 0);
    for i in 1..=bursts {
        memory.put(&[("/a/1", &i.to_string())]);
    }
    while reader.copy["/a/1"] != bursts.to_string() {
        reader.update().await;
        updates += 1;
    }
    assert!(updates < bursts / 2, "{updates} updates for {bursts} changes of one key");
    replica.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn replica_start_error_names_missing_setting() {
    let processes = Processes::new();
    let none: [Address; 0] = [];
    let error = processes.try_replica("replica", &none).await.err().unwrap();
    assert!(error.to_string().contains("127.0.0.1:7400"), "{error}");
    let upstream = processes.socket("control");
    let first = processes.replica("replica", std::slice::from_ref(&upstream)).await;
    let error = processes.try_replica("replica", &[upstream]).await.err().unwrap();
    assert!(error.to_string().contains("another process has it open"), "{error}");
    let unready = first.page("/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("no copy on disk"), "{unready}");
    assert!(first.page("/healthz").await.ends_with("ok\n"));
    first.stop().await;
}
