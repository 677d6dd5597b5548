//! A disk without space, and one that fails a sync: batches are refused, reads go on, and writes work again later.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use fairmesh_rib::Expect;
use fairmesh_store::{Store, WriteError};
use support::{batch, disk::Disk, put};

#[tokio::test]
async fn a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    store.write(batch([put("/a", "1", Expect::Absent)])).await.unwrap();
    let before = store.load().await.unwrap();
    let mut commits = store.commits(1);

    disk.set_full(true);
    for _ in 0..3 {
        let refusal =
            store.write(batch([put("/a", "2", Expect::Revision(1)), put("/b", "2", Expect::Any)])).await;
        assert!(matches!(refusal, Err(WriteError::Full { .. })), "{refusal:?}");
        assert_eq!(store.load().await.unwrap(), before, "reads go on, and nothing is half written");
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
async fn after_a_failed_sync_what_is_published_and_what_is_stored_agree() {
    // The first sync of a commit is about pages, the second about the header; recovery syncs too.
    for failures in 1..8 {
        let disk = Disk::default();
        let store = disk.open().unwrap();
        store.write(batch([put("/a", "1", Expect::Absent)])).await.unwrap();
        let mut commits = store.commits(1);
        disk.fail_syncs(failures);
        let first = store.write(batch([put("/b", "2", Expect::Absent)])).await;
        disk.fail_syncs(0);
        let (stored, _) = store.load().await.unwrap();
        if let Ok(revision) = first {
            assert_eq!((revision.number, stored), (2, 2));
        }
        let last = store.write(batch([put("/c", "3", Expect::Absent)])).await.unwrap().number;
        let mut published = 1;
        while published < last {
            let commit = commits.next().await.unwrap().unwrap();
            published += 1;
            assert_eq!(commit.revision, published);
        }
        drop(store);
        let (revision, entries) = disk.open().unwrap().load().await.unwrap();
        assert_eq!((revision, entries.len() as u64), (last, last), "one row a revision");
    }
}
