//! A database that panics during a write: no caller waits forever, each caller gets the reason, and the file is
//! undamaged.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use fairmesh_rib::Expect;
use fairmesh_store::Store;
use support::{batch, disk::Disk, put};

#[tokio::test]
async fn panicking_writer_ends_store_and_keeps_acknowledged_batches() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    store.write(batch([put("/a", "1", Expect::Absent)])).await.unwrap();
    let mut commits = store.commits(0);
    assert_eq!(store.fatal_error(), None);

    disk.set_panics(true);
    for _ in 0..2 {
        let refusal = store.write(batch([put("/b", "2", Expect::Absent)])).await.unwrap_err().to_string();
        assert!(refusal.contains("page 7 is not where it should be"), "{refusal}");
        assert!(refusal.contains("start the process again"), "{refusal}");
    }
    assert!(store.fatal_error().unwrap().contains("panicked"));
    assert_eq!(commits.next().await.unwrap().unwrap().revision, 1);
    assert_eq!(commits.next().await.unwrap(), None, "subscriptions end");

    disk.set_panics(false);
    drop(store);
    let again = disk.open().unwrap();
    let (revision, entries) = again.load().await.unwrap();
    assert_eq!((revision, entries.len()), (1, 1));
    again.write(batch([put("/b", "2", Expect::Absent)])).await.unwrap();
}
