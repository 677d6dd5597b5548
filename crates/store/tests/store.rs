//! What the store promises while it runs: conflicts, atomicity, order, restarts, limits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{fs, path::PathBuf, sync::Arc};

use fairmesh_model::Revision;
use fairmesh_rib::{Batch, Conflict, Expect, MAX_VALUE_BYTES};
use fairmesh_store::{Behind, RedbStore, Store, StoreError, WriteError};
use support::{batch, delete, put};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("data/store")
    }

    fn open(&self) -> RedbStore {
        RedbStore::open(self.file()).unwrap()
    }
}

async fn rows(store: &impl Store) -> Vec<(String, Vec<u8>, u64)> {
    let (_, entries) = store.load().await.unwrap();
    entries.into_iter().map(|(key, entry)| (key.to_string(), entry.value.to_vec(), entry.revision)).collect()
}

fn row(key: &str, value: &str, revision: u64) -> (String, Vec<u8>, u64) {
    (key.into(), value.into(), revision)
}

async fn conflict(store: &impl Store, batch: Batch) -> Conflict {
    match store.write(batch).await {
        Err(WriteError::Conflict(conflict)) => conflict,
        other => panic!("no conflict: {other:?}"),
    }
}

#[tokio::test]
async fn a_restart_keeps_id_revision_and_entries() {
    let folder = Folder::new();
    let store = folder.open();
    let id = store.id();
    store.write(batch([put("/a", "1", Expect::Absent), put("/b", "1", Expect::Any)])).await.unwrap();
    let second =
        store.write(batch([put("/a", "2", Expect::Revision(1)), delete("/b", Expect::Any)])).await.unwrap();
    assert_eq!(second, Revision { store: id, partition: 0, number: 2 });
    drop(store);

    let store = folder.open();
    assert_eq!(store.id(), id);
    assert_eq!(store.load().await.unwrap().0, 2);
    assert_eq!(rows(&store).await, [row("/a", "2", 2)]);
    assert_eq!(store.write(batch([put("/c", "3", Expect::Absent)])).await.unwrap().number, 3);
}

#[tokio::test]
async fn a_range_holds_its_first_key_and_not_its_last() {
    let folder = Folder::new();
    let store = folder.open();
    let keys = ["/a", "/b/1", "/b/2", "/b0", "/c"].map(|key| put(key, "1", Expect::Any));
    store.write(batch(keys)).await.unwrap();
    let keys = |from: &str, to: &str| {
        let range = store.range(from.to_owned()..to.to_owned());
        async { range.await.unwrap().into_iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>() }
    };
    assert_eq!(keys("/b/", "/b0").await, ["/b/1", "/b/2"]);
    assert_eq!(keys("/b/2", "/c").await, ["/b/2", "/b0"]);
    assert_eq!(keys("/d", "/e").await, [""; 0]);
}

#[tokio::test]
async fn two_stores_have_different_ids() {
    let (one, other) = (Folder::new(), Folder::new());
    assert_ne!(one.open().id(), other.open().id());
}

#[tokio::test]
async fn a_stale_batch_is_refused_whole_and_names_both_revisions() {
    let folder = Folder::new();
    let store = folder.open();
    for value in ["1", "2"] {
        store.write(batch([put("/a", value, Expect::Any)])).await.unwrap();
    }
    let stale = batch([put("/new", "x", Expect::Absent), put("/a", "3", Expect::Revision(1))]);
    let refused = conflict(&store, stale).await;
    assert_eq!((&*refused.key, refused.expected, refused.found), ("/a", Expect::Revision(1), Some(2)));
    assert_eq!(refused.current, 2);
    assert_eq!(conflict(&store, batch([put("/a", "3", Expect::Absent)])).await.found, Some(2));
    assert_eq!(conflict(&store, batch([delete("/gone", Expect::Revision(1))])).await.found, None);
    assert_eq!(rows(&store).await, [row("/a", "2", 2)]);
    assert_eq!(store.load().await.unwrap().0, 2, "a refused batch takes no revision");
}

#[tokio::test]
async fn of_many_concurrent_writers_of_one_key_exactly_one_wins_each_round() {
    let folder = Folder::new();
    let store = Arc::new(folder.open());
    let mut last = 0;
    for round in 0..5 {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..20 {
            let store = store.clone();
            let expect = if last == 0 { Expect::Absent } else { Expect::Revision(last) };
            writers.spawn(async move { store.write(batch([put("/a", vec![writer], expect)])).await });
        }
        let won: Vec<_> = writers.join_all().await.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1, "round {round}");
        last = won[0].number;
    }
    assert_eq!(last, 5);
}

#[tokio::test]
async fn commits_come_in_order_without_gap_from_the_loaded_revision() {
    let folder = Folder::new();
    let store = Arc::new(folder.open());
    store.write(batch([put("/before", "", Expect::Any)])).await.unwrap();
    let (loaded, _) = store.load().await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..100 {
        let store = store.clone();
        writers
            .spawn(async move { store.write(batch([put(format!("/{writer}"), "", Expect::Absent)])).await });
    }
    let mut acknowledged: Vec<u64> =
        writers.join_all().await.into_iter().map(|r| r.unwrap().number).collect();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, (2..=101).collect::<Vec<_>>(), "each batch has its own revision");

    let mut commits = store.commits(loaded);
    for expected in 2..=101 {
        let commit = commits.next().await.unwrap().unwrap();
        assert_eq!((commit.revision, commit.changes.len()), (expected, 1));
    }
    store.write(batch([delete("/before", Expect::Any)])).await.unwrap();
    let live = commits.next().await.unwrap().unwrap();
    assert_eq!(live.changes, [("/before".into(), None)]);
    drop(store);
    assert_eq!(commits.next().await, Ok(None), "the stream ends with the store");
}

#[tokio::test]
async fn a_subscriber_from_before_the_kept_commits_is_told_to_load_again() {
    let folder = Folder::new();
    folder.open().write(batch([put("/a", "", Expect::Any)])).await.unwrap();
    let store = folder.open();
    let mut commits = store.commits(0);
    assert_eq!(commits.next().await, Err(Behind { after: 0, oldest: 2 }));
}

#[tokio::test]
async fn batches_out_of_bounds_are_refused_and_an_empty_one_takes_no_revision() {
    let folder = Folder::new();
    let store = folder.open();
    let large = || vec![7; MAX_VALUE_BYTES];
    let over = [
        batch([put("/a", vec![7; MAX_VALUE_BYTES + 1], Expect::Any)]),
        batch([put("/".repeat(513), "", Expect::Any)]),
        batch((0..6).map(|i| put(format!("/{i}"), large(), Expect::Any))),
        batch((0..10_001).map(|i| delete(format!("/{i}"), Expect::Any))),
        batch([put("/a", "1", Expect::Any), delete("/a", Expect::Any)]),
    ];
    for batch in over {
        assert!(matches!(store.write(batch).await, Err(WriteError::TooLarge(_))));
    }
    store.write(batch([put("/a", large(), Expect::Any)])).await.unwrap();
    assert_eq!(store.write(Batch::default()).await.unwrap().number, 1);
}

#[tokio::test]
async fn more_than_the_queue_holds_is_refused_and_what_it_took_is_written() {
    let folder = Folder::new();
    let store = Arc::new(folder.open());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..100 {
        let store = store.clone();
        let ops: Vec<_> =
            (0..5).map(|i| put(format!("/{writer}/{i}"), vec![0; MAX_VALUE_BYTES], Expect::Any)).collect();
        writers.spawn(async move { store.write(batch(ops)).await });
    }
    let (taken, refused): (Vec<_>, Vec<_>) = writers.join_all().await.into_iter().partition(Result::is_ok);
    assert!(refused.iter().all(|r| matches!(r, Err(WriteError::Overloaded { .. }))), "{:?}", refused[0]);
    assert!(!refused.is_empty() && !taken.is_empty());
    assert_eq!(store.load().await.unwrap().0, taken.len() as u64);
}

#[test]
fn a_second_opener_is_told_that_the_store_is_in_use() {
    let folder = Folder::new();
    let first = folder.open();
    let refusal = RedbStore::open(folder.file()).unwrap_err();
    assert!(matches!(refusal, StoreError::Locked { .. }), "{refusal}");
    drop(first);
    folder.open();
}

#[test]
fn a_place_that_cannot_be_used_is_named() {
    let folder = Folder::new();
    let taken = folder.0.path().join("data");
    fs::write(&taken, "a file where a directory should be").unwrap();
    let refusal = RedbStore::open(taken.join("store")).unwrap_err();
    assert!(matches!(refusal, StoreError::Unreadable { .. }), "{refusal}");
    assert!(refusal.to_string().contains(taken.to_str().unwrap()), "{refusal}");
}

#[tokio::test]
async fn a_copy_that_is_put_back_may_get_a_new_id_and_keeps_the_rest() {
    let folder = Folder::new();
    assert!(
        matches!(RedbStore::renew_id(folder.file()), Err(StoreError::Unreadable { .. })),
        "no file, no id"
    );
    let store = folder.open();
    store.write(batch([put("/a", "1", Expect::Any)])).await.unwrap();
    let (before, kept) = (store.id(), rows(&store).await);
    assert!(
        matches!(RedbStore::renew_id(folder.file()), Err(StoreError::Locked { .. })),
        "never while it serves"
    );
    drop(store);

    let renewed = RedbStore::renew_id(folder.file()).unwrap();
    let store = folder.open();
    assert_ne!(renewed, before);
    assert_eq!((store.id(), rows(&store).await), (renewed, kept));
}
