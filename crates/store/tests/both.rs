//! What every store promises, whether it is a file or lies in etcd: conflicts, atomicity, order, restarts, limits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;

use fairmesh_model::Revision;
use fairmesh_rib::{Batch, Commit, Conflict, Expect, MAX_VALUE_BYTES};
use fairmesh_store::{Behind, EtcdStore, RedbStore, Store, WriteError};
use support::{batch, delete, etcd::Etcd, etcd_config, put};

/// Where a store persists.
enum Home {
    File(tempfile::TempDir),
    Etcd(Etcd),
}

impl Home {
    /// Opens the store, or opens it again.
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::File(folder) => Arc::new(RedbStore::open(folder.path().join("data/store")).unwrap()),
            Self::Etcd(etcd) => Arc::new(EtcdStore::open(&etcd_config(&[&etcd.client()], "")).await.unwrap()),
        }
    }

    /// Forgets how the store came to be what it is, as a restart does for a file.
    fn forget_history(&self, newest: u64) {
        if let Self::Etcd(etcd) = self {
            etcd.post("kv/compaction", &format!("{{\"revision\":{newest}}}"));
        }
    }
}

/// Makes a test of each behaviour for either store.
macro_rules! on_both {
    ($($behaviour:ident,)*) => {
        mod file {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Home::File(tempfile::tempdir().unwrap())).await;
            })*
        }
        mod etcd {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Home::Etcd(super::Etcd::start())).await;
            })*
        }
    };
}

on_both! {
    a_restart_keeps_id_revision_and_entries,
    a_stale_batch_is_refused_whole_and_names_both_revisions,
    the_first_expectation_that_fails_is_named,
    of_many_concurrent_writers_of_one_key_exactly_one_wins_each_round,
    commits_come_in_order_with_none_left_out_from_the_loaded_revision,
    a_delete_of_what_is_not_there_has_a_revision_too,
    a_subscriber_from_before_the_kept_commits_is_told_to_load_again,
    batches_out_of_bounds_are_refused_and_an_empty_one_takes_no_revision,
    more_than_the_queue_holds_is_refused_and_what_it_took_is_written,
    a_store_of_many_pages_loads_whole,
}

async fn number(store: &Arc<dyn Store>) -> u64 {
    store.write(Batch::default()).await.unwrap().number
}

async fn rows(store: &Arc<dyn Store>) -> Vec<(String, Vec<u8>, u64)> {
    let (_, entries) = store.load().await.unwrap();
    entries.into_iter().map(|(key, entry)| (key.to_string(), entry.value.to_vec(), entry.revision)).collect()
}

fn row(key: &str, value: &str, revision: u64) -> (String, Vec<u8>, u64) {
    (key.into(), value.into(), revision)
}

async fn conflict(store: &Arc<dyn Store>, batch: Batch) -> Conflict {
    match store.write(batch).await {
        Err(WriteError::Conflict(conflict)) => conflict,
        other => panic!("no conflict: {other:?}"),
    }
}

async fn a_restart_keeps_id_revision_and_entries(home: Home) {
    let store = home.open().await;
    let id = store.id();
    assert_eq!(rows(&store).await, []);
    let first =
        store.write(batch([put("/a", "1", Expect::Absent), put("/b", "1", Expect::Any)])).await.unwrap();
    let changed = batch([put("/a", "2", Expect::Revision(first.number)), delete("/b", Expect::Any)]);
    let second = store.write(changed).await.unwrap();
    assert!(second.number > first.number);
    assert_eq!(second, Revision { store: id, partition: 0, ..second });
    drop(store);

    let store = home.open().await;
    assert_eq!(store.id(), id);
    assert_eq!(store.load().await.unwrap().0, second.number);
    assert_eq!(rows(&store).await, [row("/a", "2", second.number)]);
    let third = store.write(batch([put("/c", "3", Expect::Absent)])).await.unwrap();
    assert!(third.number > second.number);
}

async fn a_stale_batch_is_refused_whole_and_names_both_revisions(home: Home) {
    let store = home.open().await;
    let mut written = Vec::new();
    for value in ["1", "2"] {
        written.push(store.write(batch([put("/a", value, Expect::Any)])).await.unwrap().number);
    }
    let (first, second) = (written[0], written[1]);
    let stale = batch([put("/new", "x", Expect::Absent), put("/a", "3", Expect::Revision(first))]);
    let refused = conflict(&store, stale).await;
    let expected = Expect::Revision(first);
    assert_eq!(refused, Conflict { key: "/a".into(), expected, found: Some(second), current: second });
    assert_eq!(conflict(&store, batch([put("/a", "3", Expect::Absent)])).await.found, Some(second));
    assert_eq!(conflict(&store, batch([delete("/gone", Expect::Revision(1))])).await.found, None);
    assert_eq!(rows(&store).await, [row("/a", "2", second)]);
    assert_eq!(store.load().await.unwrap().0, second, "a refused batch takes no revision");
}

async fn the_first_expectation_that_fails_is_named(home: Home) {
    let store = home.open().await;
    let first =
        store.write(batch([put("/a", "", Expect::Any), put("/b", "", Expect::Any)])).await.unwrap().number;
    let wrong = batch([
        put("/any", "", Expect::Any),
        put("/a", "", Expect::Revision(first)),
        put("/none", "", Expect::Revision(first)),
        put("/b", "", Expect::Absent),
    ]);
    let expected = Expect::Revision(first);
    assert_eq!(
        conflict(&store, wrong).await,
        Conflict { key: "/none".into(), expected, found: None, current: first }
    );
}

async fn of_many_concurrent_writers_of_one_key_exactly_one_wins_each_round(home: Home) {
    let store = home.open().await;
    let mut last = None;
    for round in 0..5 {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..20 {
            let store = store.clone();
            let expect = last.map_or(Expect::Absent, Expect::Revision);
            writers.spawn(async move { store.write(batch([put("/a", vec![writer], expect)])).await });
        }
        let won: Vec<_> = writers.join_all().await.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1, "round {round}");
        last = Some(won[0].number);
    }
    assert_eq!(Some(number(&store).await), last);
}

async fn commits_come_in_order_with_none_left_out_from_the_loaded_revision(home: Home) {
    let store = home.open().await;
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
    acknowledged.dedup();
    assert_eq!(acknowledged.len(), 100, "each batch has its own revision");

    let mut commits = store.commits(loaded);
    for expected in acknowledged {
        let commit = commits.next().await.unwrap().unwrap();
        assert_eq!((commit.revision, commit.changes.len()), (expected, 1));
    }
    store.write(batch([delete("/before", Expect::Any)])).await.unwrap();
    let live = commits.next().await.unwrap().unwrap();
    assert_eq!(live.changes, [("/before".into(), None)]);
    drop(store);
    assert_eq!(commits.next().await, Ok(None), "the stream ends with the store");
}

async fn a_delete_of_what_is_not_there_has_a_revision_too(home: Home) {
    let store = home.open().await;
    let (loaded, _) = store.load().await.unwrap();
    let mut commits = store.commits(loaded);
    let revision = store.write(batch([delete("/gone", Expect::Absent)])).await.unwrap().number;
    let Commit { revision: seen, changes } = commits.next().await.unwrap().unwrap();
    assert_eq!((seen, number(&store).await), (revision, revision));
    assert!(revision > loaded && changes.iter().all(|(_, value)| value.is_none()), "{changes:?}");
}

async fn a_subscriber_from_before_the_kept_commits_is_told_to_load_again(home: Home) {
    let store = home.open().await;
    let before = number(&store).await;
    let newest = store.write(batch([put("/a", "", Expect::Any)])).await.unwrap().number;
    drop(store);
    home.forget_history(newest);
    let store = home.open().await;
    let mut commits = store.commits(before);
    assert_eq!(commits.next().await, Err(Behind { after: before, oldest: newest + 1 }));
}

async fn batches_out_of_bounds_are_refused_and_an_empty_one_takes_no_revision(home: Home) {
    let store = home.open().await;
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
    let written = store.write(batch([put("/a", large(), Expect::Any)])).await.unwrap();
    assert_eq!(store.write(Batch::default()).await.unwrap(), written);
}

async fn more_than_the_queue_holds_is_refused_and_what_it_took_is_written(home: Home) {
    let store = home.open().await;
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
    assert_eq!(rows(&store).await.len(), taken.len() * 5);
}

async fn a_store_of_many_pages_loads_whole(home: Home) {
    let store = home.open().await;
    let mut expected = Vec::new();
    for part in 0..8 {
        let keys: Vec<_> = (0..100).map(|i| format!("/{part}/{i:03}")).collect();
        let ops = keys.iter().map(|key| put(key, key.clone(), Expect::Absent));
        let revision = store.write(batch(ops)).await.unwrap().number;
        expected.extend(keys.iter().map(|key| row(key, key, revision)));
    }
    assert_eq!(rows(&store).await, expected);
}
