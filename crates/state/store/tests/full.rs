//! A full disk, and a disk that fails a sync: batches are refused, reads continue, and writes succeed again later.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;

use fairmesh_rib::Expect;
use fairmesh_store::{Store, StoreError, WriteError};
use support::{batch, disk::Disk, put};

#[tokio::test]
async fn store_on_full_disk_refuses_writes_serves_reads_and_recovers() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    store.write(batch([put("/a", "1", Expect::Absent)])).await.unwrap();
    let before = store.load().await.unwrap();
    let mut commits = store.commits(1);

    disk.set_full(true);
    for _ in 0..3 {
        let refusal =
            store.write(batch([put("/a", "2", Expect::Revision(1)), put("/b", "2", Expect::Any)])).await;
        assert!(matches!(refusal, Err(WriteError::DiskFull { .. })), "{refusal:?}");
        assert_eq!(store.load().await.unwrap(), before, "reads continue, and nothing is half written");
    }

    disk.set_full(false);
    let again = store.write(batch([put("/a", "3", Expect::Revision(1))])).await.unwrap();
    assert_eq!(again.number, 2, "refused batches took no revision");
    assert_eq!(commits.next().await.unwrap().unwrap().revision, 2);
    drop(store);
    let (revision, entries) = disk.open().unwrap().load().await.unwrap();
    assert_eq!((revision, entries.len()), (2, 1));
}

#[tokio::test]
async fn store_on_full_disk_is_refused_with_hint() {
    let refused = |disk: &Disk| {
        let refusal = disk.open().map(drop).unwrap_err();
        assert!(matches!(refusal, StoreError::DiskFull { .. }), "{refusal:?}");
        assert_eq!(refusal.to_string(), "store disk: the disk is full; free some space, then start again",);
    };
    let disk = Disk::default();
    disk.set_full(true);
    refused(&disk);
    disk.set_full(false);
    let store = disk.open().unwrap();
    store.write(batch([put("/a", "1", Expect::Absent)])).await.unwrap();
    let before = store.load().await.unwrap();
    drop(store);

    disk.set_full(true);
    refused(&disk);
    disk.set_full(false);
    assert_eq!(disk.open().unwrap().load().await.unwrap(), before, "nothing is lost by the attempt");
}

/// Outcome of a write whose sync failed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WriteOutcome {
    /// The batch was found when the file was reopened, and was then acknowledged.
    Acknowledged,
    /// The batch was refused because the file could not be reopened, and was found there later.
    FoundLater,
    Refused,
}

async fn write_over_failing_syncs(healthy: usize, failures: usize) -> WriteOutcome {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    store.write(batch([put("/a", "1", Expect::Absent)])).await.unwrap();
    let mut commits = store.commits(1);
    disk.fail_syncs(healthy, failures);
    let first = store.write(batch([put("/b", "2", Expect::Absent)])).await;
    assert!(store.load().await.is_ok(), "reads continue");
    disk.fail_syncs(0, 0);
    let last = store.write(batch([put("/c", "3", Expect::Absent)])).await.unwrap().number;
    for expected in 2..=last {
        assert_eq!(commits.next().await.unwrap().unwrap().revision, expected, "published without gap");
    }
    drop(store);
    let (revision, entries) = disk.open().unwrap().load().await.unwrap();
    assert_eq!((revision, entries.len() as u64), (last, last), "one row a revision");
    match (first, last) {
        (Ok(revision), 3) => {
            assert_eq!(revision.number, 2);
            WriteOutcome::Acknowledged
        }
        (Err(WriteError::Failed { .. }), 3) => WriteOutcome::FoundLater,
        (Err(WriteError::Failed { .. }), 2) => WriteOutcome::Refused,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn published_and_stored_commits_agree_after_failed_fsync() {
    let mut outcomes = BTreeSet::new();
    // A commit syncs its pages and then the header. Reopening syncs too.
    for healthy in 0..3 {
        for failures in 1..6 {
            outcomes.insert(write_over_failing_syncs(healthy, failures).await);
        }
    }
    assert_eq!(
        outcomes.into_iter().collect::<Vec<_>>(),
        [WriteOutcome::Acknowledged, WriteOutcome::FoundLater, WriteOutcome::Refused]
    );
}
