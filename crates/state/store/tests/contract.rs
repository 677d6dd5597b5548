//! The contract of every store, tested in a file and in one or several etcd clusters: conflicts, atomicity, order,
//! restarts and limits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;

use fairmesh_model::Revision;
use fairmesh_rib::{Batch, Commit, Conflict, Expect, MAX_VALUE_BYTES};
use fairmesh_store::{Compacted, EtcdStore, PartitionedStore, RedbStore, SplitRequest, Store, WriteError};
use fairmesh_test_support::Etcd;
use support::{batch, delete, etcd_config, put};
use tokio::sync::mpsc;

/// Where a store keeps its data.
enum Backend {
    File(tempfile::TempDir),
    Etcd(Etcd),
    Partitioned(Etcd, #[expect(dead_code, reason = "it runs for as long as this lives")] Etcd),
}

impl Backend {
    /// Creates a home partition, and another partition with some of the services that the tests use.
    async fn partitioned() -> Self {
        let (first, second) = (Etcd::with(&["--max-txn-ops=1000"]), Etcd::with(&["--max-txn-ops=1000"]));
        let into = etcd_config(&[&second.client()], "").address;
        let backend = Self::Partitioned(first, second);
        let store = backend.open_partitioned().await;
        let services =
            ["b", "none", "1", "3", "5", "7", "42"].map(|service| format!("test/{service}")).into();
        let (progress, _) = mpsc::channel(1);
        store.split(SplitRequest { into, services, dry_run: false }, progress).await.unwrap();
        assert_eq!(["a", "b"].map(|name| store.partition(&format!("/t/test/services/{name}"))), [0, 1]);
        store.close().await;
        backend
    }

    async fn open_partitioned(&self) -> PartitionedStore {
        let Self::Partitioned(home, _) = self else { unreachable!() };
        let config = etcd_config(&[&home.client()], "");
        PartitionedStore::open(&config, "the test", std::time::Duration::from_secs(2)).await.unwrap()
    }

    /// Opens or reopens the store.
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::File(folder) => Arc::new(RedbStore::open(folder.path().join("data/store")).unwrap()),
            Self::Etcd(etcd) => Arc::new(EtcdStore::open(&etcd_config(&[&etcd.client()], "")).await.unwrap()),
            Self::Partitioned(..) => Arc::new(self.open_partitioned().await),
        }
    }

    /// Discards the commit history, as a restart does for a store in a file.
    fn compact_history(&self, newest: u64) {
        if let Self::Etcd(etcd) = self {
            etcd.post("kv/compaction", &format!("{{\"revision\":{newest}}}"));
        }
    }
}

/// Instantiates each test for each kind of store.
macro_rules! for_each_store {
    ($($property:ident,)*) => {
        mod file {
            $(#[tokio::test]
            async fn $property() {
                super::$property(super::Backend::File(tempfile::tempdir().unwrap())).await;
            })*
        }
        mod etcd {
            $(#[tokio::test]
            async fn $property() {
                super::$property(super::Backend::Etcd(super::Etcd::start())).await;
            })*
        }
        mod partitioned {
            $(#[tokio::test]
            async fn $property() {
                super::$property(super::Backend::partitioned().await).await;
            })*
        }
    };
}

for_each_store! {
    restart_keeps_id_revision_and_entries,
    stale_batch_conflicts_as_whole_and_reports_both_revisions,
    first_failed_expectation_is_reported,
    exactly_one_of_concurrent_writers_of_key_wins_each_round,
    commits_after_loaded_revision_are_complete_and_in_order,
    deletion_of_absent_key_gets_revision,
    subscription_before_retained_commits_is_compacted,
    oversized_batch_is_refused_and_empty_batch_takes_no_revision,
    store_with_many_pages_loads_completely,
}

/// Tests of a full write queue. They run once per kind of queue, because filling it takes disk time: stores in one
/// and in several etcd clusters share the queue.
mod queue {
    use super::{Backend, Etcd, batches_beyond_queue_capacity_are_refused_and_queued_ones_written as full};

    #[tokio::test]
    async fn file_write_queue_refuses_batches_beyond_its_capacity() {
        full(Backend::File(tempfile::tempdir().unwrap())).await;
    }

    #[tokio::test]
    async fn etcd_write_queue_refuses_batches_beyond_its_capacity() {
        full(Backend::Etcd(Etcd::start())).await;
    }
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

async fn restart_keeps_id_revision_and_entries(backend: Backend) {
    let store = backend.open().await;
    let id = store.id();
    assert_eq!(rows(&store).await, []);
    let first = store
        .write(batch([
            put("/t/test/services/a", "1", Expect::Absent),
            put("/t/test/services/b", "1", Expect::Any),
        ]))
        .await
        .unwrap();
    let changed = batch([
        put("/t/test/services/a", "2", Expect::Revision(first.number)),
        delete("/t/test/services/b", Expect::Any),
    ]);
    let second = store.write(changed).await.unwrap();
    assert!(second.number > first.number);
    assert_eq!(second, Revision { store: id, partition: 0, ..second });
    drop(store);

    let store = backend.open().await;
    assert_eq!(store.id(), id);
    assert_eq!(store.load().await.unwrap().0, second.number);
    assert_eq!(rows(&store).await, [row("/t/test/services/a", "2", second.number)]);
    let third = store.write(batch([put("/t/test/services/c", "3", Expect::Absent)])).await.unwrap();
    assert!(third.number > second.number);
}

async fn stale_batch_conflicts_as_whole_and_reports_both_revisions(backend: Backend) {
    let store = backend.open().await;
    let mut written = Vec::new();
    for value in ["1", "2"] {
        written
            .push(store.write(batch([put("/t/test/services/a", value, Expect::Any)])).await.unwrap().number);
    }
    let (first, second) = (written[0], written[1]);
    let stale = batch([
        put("/t/test/services/new", "x", Expect::Absent),
        put("/t/test/services/a", "3", Expect::Revision(first)),
    ]);
    let refused = conflict(&store, stale).await;
    let expected = Expect::Revision(first);
    assert_eq!(
        refused,
        Conflict { key: "/t/test/services/a".into(), expected, found: Some(second), current: second }
    );
    assert_eq!(
        conflict(&store, batch([put("/t/test/services/a", "3", Expect::Absent)])).await.found,
        Some(second)
    );
    assert_eq!(
        conflict(&store, batch([delete("/t/test/services/gone", Expect::Revision(1))])).await.found,
        None
    );
    assert_eq!(rows(&store).await, [row("/t/test/services/a", "2", second)]);
    assert_eq!(store.load().await.unwrap().0, second, "a refused batch takes no revision");
}

async fn first_failed_expectation_is_reported(backend: Backend) {
    let store = backend.open().await;
    let first = store
        .write(batch([
            put("/t/test/services/a", "", Expect::Any),
            put("/t/test/services/b", "", Expect::Any),
        ]))
        .await
        .unwrap()
        .number;
    let wrong = batch([
        put("/t/test/services/any", "", Expect::Any),
        put("/t/test/services/a", "", Expect::Revision(first)),
        put("/t/test/services/none", "", Expect::Revision(first)),
        put("/t/test/services/b", "", Expect::Absent),
    ]);
    let expected = Expect::Revision(first);
    assert_eq!(
        conflict(&store, wrong).await,
        Conflict { key: "/t/test/services/none".into(), expected, found: None, current: first }
    );
}

async fn exactly_one_of_concurrent_writers_of_key_wins_each_round(backend: Backend) {
    let store = backend.open().await;
    let mut last = None;
    for round in 0..5 {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..20 {
            let store = store.clone();
            let expect = last.map_or(Expect::Absent, Expect::Revision);
            writers.spawn(async move {
                store.write(batch([put("/t/test/services/a", vec![writer], expect)])).await
            });
        }
        let won: Vec<_> = writers.join_all().await.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1, "round {round}");
        last = Some(won[0].number);
    }
    assert_eq!(Some(number(&store).await), last);
}

async fn commits_after_loaded_revision_are_complete_and_in_order(backend: Backend) {
    let store = backend.open().await;
    store.write(batch([put("/t/test/services/before", "", Expect::Any)])).await.unwrap();
    let (loaded, _) = store.load().await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..100 {
        let store = store.clone();
        writers.spawn(async move {
            store.write(batch([put(format!("/t/test/services/{writer}"), "", Expect::Absent)])).await
        });
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
    store.write(batch([delete("/t/test/services/before", Expect::Any)])).await.unwrap();
    let live = commits.next().await.unwrap().unwrap();
    assert_eq!(live.changes, [("/t/test/services/before".into(), None)]);
    drop(store);
    assert_eq!(commits.next().await, Ok(None), "the stream ends with the store");
}

async fn deletion_of_absent_key_gets_revision(backend: Backend) {
    let store = backend.open().await;
    let (loaded, _) = store.load().await.unwrap();
    let mut commits = store.commits(loaded);
    let revision =
        store.write(batch([delete("/t/test/services/gone", Expect::Absent)])).await.unwrap().number;
    let Commit { revision: seen, changes } = commits.next().await.unwrap().unwrap();
    assert_eq!((seen, number(&store).await), (revision, revision));
    assert!(revision > loaded && changes.iter().all(|(_, value)| value.is_none()), "{changes:?}");
}

async fn subscription_before_retained_commits_is_compacted(backend: Backend) {
    let store = backend.open().await;
    let before = number(&store).await;
    let newest = store.write(batch([put("/t/test/services/a", "", Expect::Any)])).await.unwrap().number;
    drop(store);
    backend.compact_history(newest);
    let store = backend.open().await;
    let mut commits = store.commits(before);
    assert_eq!(commits.next().await, Err(Compacted { after: before, oldest: newest + 1 }));
}

async fn oversized_batch_is_refused_and_empty_batch_takes_no_revision(backend: Backend) {
    let store = backend.open().await;
    let large = || vec![7; MAX_VALUE_BYTES];
    let over = [
        batch([put("/t/test/services/a", vec![7; MAX_VALUE_BYTES + 1], Expect::Any)]),
        batch([put("/".repeat(513), "", Expect::Any)]),
        batch((0..6).map(|i| put(format!("/t/test/services/{i}"), large(), Expect::Any))),
        batch((0..10_001).map(|i| delete(format!("/t/test/services/{i}"), Expect::Any))),
        batch([put("/t/test/services/a", "1", Expect::Any), delete("/t/test/services/a", Expect::Any)]),
    ];
    for batch in over {
        assert!(matches!(store.write(batch).await, Err(WriteError::TooLarge(_))));
    }
    let written = store.write(batch([put("/t/test/services/a", large(), Expect::Any)])).await.unwrap();
    assert_eq!(store.write(Batch::default()).await.unwrap(), written);
}

async fn batches_beyond_queue_capacity_are_refused_and_queued_ones_written(backend: Backend) {
    let store = backend.open().await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..100 {
        let store = store.clone();
        let ops: Vec<_> = (0..5)
            .map(|i| put(format!("/t/test/endpoints/{writer}/{i}"), vec![0; MAX_VALUE_BYTES], Expect::Any))
            .collect();
        writers.spawn(async move { store.write(batch(ops)).await });
    }
    let (taken, refused): (Vec<_>, Vec<_>) = writers.join_all().await.into_iter().partition(Result::is_ok);
    assert!(refused.iter().all(|r| matches!(r, Err(WriteError::Overloaded { .. }))), "{:?}", refused[0]);
    assert!(!refused.is_empty() && !taken.is_empty());
    assert_eq!(rows(&store).await.len(), taken.len() * 5);
}

async fn store_with_many_pages_loads_completely(backend: Backend) {
    let store = backend.open().await;
    let mut expected = Vec::new();
    for part in 0..8 {
        let keys: Vec<_> = (0..100).map(|i| format!("/t/test/endpoints/{part}/{i:03}")).collect();
        let ops = keys.iter().map(|key| put(key, key.clone(), Expect::Absent));
        let revision = store.write(batch(ops)).await.unwrap().number;
        expected.extend(keys.iter().map(|key| row(key, key, revision)));
    }
    assert_eq!(rows(&store).await, expected);
}
