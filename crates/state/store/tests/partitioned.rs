//! Behaviour specific to a partitioned store: unresponsive partitions, multi-partition batches, takeovers during
//! either, and moves under concurrent writes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_rib::{Commit, Expect};
use fairmesh_store::{
    Commits, Compacted, EtcdStore, PartitionedStore, SplitEvent, SplitRequest, Store, StoreError, WriteError,
};
use fairmesh_test_support::{Etcd, eventually};
use support::{
    batch, delete, etcd_config,
    proxy::{Link, Proxy},
    put,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};

/// Time limit for operations that normally take moments.
const TIMEOUT: Duration = Duration::from_secs(30);
/// TTL of the writer lease, which is also how long the lease outlives a killed process.
const LEASE_TTL: Duration = Duration::from_secs(3);

async fn open(home: &str) -> PartitionedStore {
    PartitionedStore::open(&etcd_config(&[home], ""), "the test", LEASE_TTL).await.unwrap()
}

/// Moves services to the cluster at `into`. If `services` is empty, half of all services are moved.
async fn split(
    store: &PartitionedStore,
    into: &str,
    services: &[&str],
) -> Result<Vec<SplitEvent>, StoreError> {
    let wish = SplitRequest {
        into: etcd_config(&[into], "").address,
        services: services.iter().map(|&service| service.to_owned()).collect(),
        dry_run: false,
    };
    let (progress, mut receiver) = mpsc::channel(1);
    let listening = async {
        let mut events = Vec::new();
        while let Some(event) = receiver.recv().await {
            events.push(event);
        }
        events
    };
    let (ended, events) =
        timeout(TIMEOUT, async { tokio::join!(store.split(wish, progress), listening) }).await.unwrap();
    ended.map(|()| events)
}

/// Key of a service declaration.
fn key(service: &str) -> String {
    format!("/t/shop/services/{service}")
}

async fn write(store: &PartitionedStore, service: &str, value: &str) -> u64 {
    let written = store.write(batch([put(key(service), value.to_owned(), Expect::Any)]));
    timeout(TIMEOUT, written).await.unwrap().unwrap().number
}

async fn next(commits: &mut Commits) -> Result<Option<Commit>, Compacted> {
    timeout(TIMEOUT, commits.next()).await.unwrap()
}

type Rows = BTreeMap<String, (String, u64)>;

async fn rows(store: &PartitionedStore) -> (u64, Rows) {
    let (newest, entries) = store.load().await.unwrap();
    let row = |value: &[u8], revision| (String::from_utf8(value.to_vec()).unwrap(), revision);
    let count = entries.len();
    let rows: Rows = entries
        .into_iter()
        .map(|(key, entry)| (key.to_string(), row(&entry.value, entry.revision)))
        .collect();
    assert_eq!(rows.len(), count, "a record is in two partitions");
    (newest, rows)
}

/// Applies a commit to `rows`.
fn apply(rows: &mut Rows, commit: Commit) {
    for (key, value) in commit.changes {
        match value {
            Some(value) => {
                rows.insert(key.to_string(), (String::from_utf8(value.to_vec()).unwrap(), commit.revision));
            }
            None => {
                rows.remove(&*key);
            }
        }
    }
}

/// Reads commits up to a revision, asserts that revisions ascend, and applies them to `rows`.
async fn follow(commits: &mut Commits, rows: &mut Rows, (mut at, until): (u64, u64)) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    while at < until {
        let commit = next(commits).await.unwrap().unwrap();
        assert!(commit.revision > at, "{} after {at}", commit.revision);
        at = commit.revision;
        numbers.insert(at);
        apply(rows, commit);
    }
    numbers
}

/// Writes services that no other writer uses until `stop` is set, and returns the revisions.
async fn keep_writing(store: Arc<PartitionedStore>, stop: Arc<AtomicBool>, writer: u32) -> Vec<u64> {
    let mut numbers = Vec::new();
    for round in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        let service = |i: u32| key(&format!("s{}", writer * 25 + (round + i) % 25));
        let value = format!("{writer}/{round}");
        // Some batches write two services, which may be in two partitions. Some batches delete a service.
        let ops = match round % 4 {
            0 => vec![put(service(0), value.clone(), Expect::Any), put(service(7), value, Expect::Any)],
            1 => vec![delete(service(3), Expect::Any)],
            _ => vec![put(service(0), value, Expect::Any)],
        };
        numbers.push(store.write(batch(ops)).await.unwrap().number);
    }
    numbers
}

#[tokio::test]
async fn service_move_under_writes_loses_and_repeats_no_commit() {
    let (home, first, second) = (Etcd::start(), Etcd::start(), Etcd::start());
    let store = Arc::new(open(&home.client()).await);
    let (began, mut seen) = rows(&store).await;
    let mut commits = store.commits(began);
    for service in 0..200 {
        write(&store, &format!("s{service}"), &"x".repeat(service)).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        writers.spawn(keep_writing(store.clone(), stop.clone(), writer));
    }
    let half = split(&store, &first.client(), &[]).await.unwrap();
    let named = split(&store, &second.client(), &["shop/s1", "shop/s2"]).await;
    // The named services may be in different partitions by now. The split is then refused.
    if named.is_err() {
        split(&store, &second.client(), &["shop/s1"]).await.unwrap();
    }
    let again = split(&store, &second.client(), &[]).await.unwrap();
    stop.store(true, Relaxed);
    let acknowledged: BTreeSet<u64> = writers.join_all().await.into_iter().flatten().collect();
    for events in [half, again] {
        assert!(matches!(events[0], SplitEvent::Planned { services: 1.., .. }), "{events:?}");
        assert_eq!(events.last(), Some(&SplitEvent::Done));
    }
    let newest = acknowledged.last().copied().unwrap();
    let numbers = follow(&mut commits, &mut seen, (began, newest)).await;
    assert!(acknowledged.is_subset(&numbers), "a write is lost");
    assert_eq!(numbers.len(), acknowledged.len() + 200, "a write is doubled");
    assert_eq!(rows(&store).await, (newest, seen.clone()));
    let parts: BTreeSet<u32> = (0..200).map(|i| store.partition(&key(&format!("s{i}")))).collect();
    assert_eq!(parts, BTreeSet::from([0, 1, 2]));

    store.close().await;
    drop(store);
    let store = open(&home.client()).await;
    assert_eq!(rows(&store).await, (newest, seen), "readers continue");
}

/// A store in a separate runtime, which can be killed at any moment like a process.
struct Process {
    runtime: Runtime,
    store: Arc<PartitionedStore>,
}

impl Process {
    async fn start(home: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let home = home.to_owned();
        let store = runtime.spawn(async move { open(&home).await });
        let store = Arc::new(timeout(TIMEOUT, store).await.unwrap().unwrap());
        Self { runtime, store }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// Returns the number of keys in a range of an etcd; both ends are base64.
fn count(etcd: &Etcd, from: &str, until: &str) -> usize {
    let ask = format!(r#"{{"key":"{from}","range_end":"{until}","count_only":true}}"#);
    let response = etcd.post("kv/range", &ask);
    let Some((_, rest)) = response.split_once(r#""count":""#) else { return 0 };
    rest.split_once('"').unwrap().0.parse().unwrap()
}

/// Returns the number of records in an etcd, in whichever partition.
fn records(etcd: &Etcd) -> usize {
    // From "/fairmesh/records/" to "/fairmesh/records0", in base64.
    count(etcd, "L2ZhaXJtZXNoL3JlY29yZHMv", "L2ZhaXJtZXNoL3JlY29yZHMw")
}

/// Returns the number of intents, which are committed batches that are not applied in every partition.
fn intents(etcd: &Etcd) -> usize {
    // From "/fairmesh/meta/intent/" to "/fairmesh/meta/intent0", in base64.
    count(etcd, "L2ZhaXJtZXNoL21ldGEvaW50ZW50Lw==", "L2ZhaXJtZXNoL21ldGEvaW50ZW50MA==")
}

#[tokio::test]
async fn killed_partition_move_keeps_records_and_is_repeatable() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let process = Process::start(&home.client()).await;
    for service in 0..300 {
        write(&process.store, &format!("s{service:03}"), "0").await;
    }
    process.kill();
    for events in 1..=5 {
        let process = Process::start(&home.client()).await;
        let (acknowledged, written) = (Arc::new(AtomicU64::new(0)), process.store.clone());
        let last = acknowledged.clone();
        process.runtime.spawn(async move {
            for value in 1.. {
                // Both services change in one batch, in whichever partitions they are.
                let both =
                    ["a", "b"].map(|service| put(key(service), format!("{events}{value:06}"), Expect::Any));
                written.write(batch(both)).await.unwrap();
                last.store(value, Relaxed);
            }
        });
        let (progress, mut receiver) = mpsc::channel(1);
        let (store, into) = (process.store.clone(), etcd_config(&[&part.client()], "").address);
        process.runtime.spawn(async move {
            let wish = SplitRequest { into, services: Vec::new(), dry_run: false };
            store.split(wish, progress).await
        });
        for _ in 0..events {
            timeout(TIMEOUT, receiver.recv()).await.unwrap();
        }
        process.kill();

        let store = open(&home.client()).await;
        let (newest, held) = rows(&store).await;
        assert_eq!(held.len(), 302, "killed after {events} progress events");
        let (a, b) = (&held[&key("a")], &held[&key("b")]);
        assert_eq!(a.0, b.0, "half a batch is there");
        let last: u64 = a.0[1..].parse().unwrap();
        assert!(last >= acknowledged.load(Relaxed), "{last} is older than what was acknowledged");
        assert!(newest >= a.1 && held.values().all(|(_, number)| *number <= newest));
        assert_eq!(intents(&home), 0);
        store.close().await;
    }
    let store = open(&home.client()).await;
    let before = rows(&store).await;
    split(&store, &part.client(), &[]).await.unwrap();
    assert_eq!(rows(&store).await, before);
    assert_eq!(records(&home) + records(&part), before.1.len(), "no leftovers");
}

/// A store whose service "far" is in a partition behind a link that can be cut; "near" is in the home partition.
async fn partitioned_store(home: &Etcd, part: &Etcd) -> (PartitionedStore, Proxy) {
    let link = Proxy::to(part.client()).await;
    let store = open(&home.client()).await;
    write(&store, "near", "0").await;
    write(&store, "far", "0").await;
    split(&store, &link.address, &["shop/far"]).await.unwrap();
    (store, link)
}

#[tokio::test]
async fn unresponsive_partition_blocks_no_other_and_catches_up() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, link) = partitioned_store(&home, &part).await;
    let store = Arc::new(store);
    let (began, mut seen) = rows(&store).await;
    let mut commits = store.commits(began);
    link.set(Link::Mute);
    let (before, writer) = (etcd_revision(&part), store.clone());
    let stuck = tokio::spawn(async move { write(&writer, "far", "1").await });
    for value in ["1", "2", "3"] {
        let near = write(&store, "near", value).await;
        let commit = next(&mut commits).await.unwrap().unwrap();
        assert_eq!(commit, batch([put(key("near"), value, Expect::Any)]).into_commit(near));
        apply(&mut seen, commit);
    }
    eventually("etcd has another revision", || etcd_revision(&part) != before).await;
    link.set(Link::Cut);
    let near = write(&store, "near", "4").await;
    link.set(Link::Open);
    let commit = next(&mut commits).await.unwrap().unwrap();
    assert_eq!(commit.revision, near);
    apply(&mut seen, commit);
    let late = timeout(TIMEOUT, stuck).await.unwrap().unwrap();
    let commit = next(&mut commits).await.unwrap().unwrap();
    assert_eq!(
        commit,
        batch([put(key("far"), "1", Expect::Any)]).into_commit(late),
        "once, under a new revision"
    );
    apply(&mut seen, commit);
    assert_eq!(rows(&store).await, (late, seen));
    let again = store.write(batch([put(key("far"), "2", Expect::Revision(late))])).await.unwrap();
    assert_eq!(next(&mut commits).await.unwrap().unwrap().revision, again.number);
}

/// Returns the current revision of an etcd.
fn etcd_revision(etcd: &Etcd) -> u64 {
    let response = etcd.post("maintenance/status", "{}");
    let (_, rest) = response.split_once(r#""revision":""#).unwrap();
    rest.split_once('"').unwrap().0.parse().unwrap()
}

#[tokio::test]
async fn partitions_accept_writes_during_home_outage() {
    let (mut home, part) = (Etcd::start(), Etcd::start());
    let (store, _way) = partitioned_store(&home, &part).await;
    let (began, mut seen) = rows(&store).await;
    let mut commits = store.commits(began);
    home.kill();
    for value in ["1", "2"] {
        let far = write(&store, "far", value).await;
        apply(&mut seen, next(&mut commits).await.unwrap().unwrap());
        assert_eq!(seen[&key("far")], (value.into(), far));
    }
    let refusal = store.write(batch([put(key("near"), "lost", Expect::Any)])).await.unwrap_err();
    assert!(matches!(refusal, WriteError::Unavailable { .. }), "{refusal}");
    home.restart();
    let both = || batch(["near", "far"].map(|service| put(key(service), "both", Expect::Any)));
    // The lease may have to be reacquired before.
    let written = timeout(TIMEOUT, async {
        loop {
            match store.write(both()).await {
                Ok(written) => return written.number,
                Err(refusal) => assert_eq!(store.fatal_error(), None, "{refusal}"),
            }
            tokio::task::yield_now().await;
        }
    });
    let written = written.await.unwrap();
    assert_eq!(next(&mut commits).await.unwrap().unwrap(), both().into_commit(written));
    let (newest, held) = rows(&store).await;
    assert_eq!((newest, &held[&key("near")]), (written, &("both".into(), written)));
}

#[tokio::test]
async fn store_readers_with_missing_revisions_load_again_after_takeover() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, link) = partitioned_store(&home, &part).await;
    store.close().await;
    drop(store);
    let process = Process::start(&home.client()).await;
    let (began, _) = rows(&process.store).await;
    let mut commits = process.store.commits(began);
    link.set(Link::Mute);
    let (before, writer) = (etcd_revision(&part), process.store.clone());
    process.runtime.spawn(async move { write(&writer, "far", "1").await });
    eventually("etcd has another revision", || etcd_revision(&part) != before).await;
    let told = write(&process.store, "near", "1").await;
    assert_eq!(next(&mut commits).await.unwrap().unwrap().revision, told);
    process.kill();
    link.set(Link::Cut);
    link.set(Link::Open);

    let store = open(&home.client()).await;
    let (newest, held) = rows(&store).await;
    assert!(newest > told, "a reader at {told} lacks a record");
    assert!(matches!(next(&mut store.commits(told)).await, Err(Compacted { .. })));
    let value = |service: &str| held[&key(service)].0.clone();
    assert_eq!((value("far"), value("near")), ("1".into(), "1".into()));
    assert!(held[&key("far")].1 < told, "it has the earlier revision");
    store.close().await;
    drop(store);
    let store = open(&home.client()).await;
    assert_eq!(store.load().await.unwrap().0, newest, "the gap is cleared once");
}

#[tokio::test]
async fn committed_multi_partition_batch_is_completed_after_takeover() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, _way) = partitioned_store(&home, &part).await;
    store.close().await;
    drop(store);
    let link = Proxy::to(home.client()).await;
    let process = Process::start(&link.address).await;
    let (began, _) = rows(&process.store).await;
    link.set(Link::Mute);
    let writer = process.store.clone();
    process.runtime.spawn(async move {
        let both = ["near", "far"].map(|service| put(key(service), "both", Expect::Any));
        writer.write(batch(both)).await
    });
    eventually("an intent is written", || intents(&home) > 0).await;
    process.kill();
    let store = open(&home.client()).await;
    let (newest, held) = rows(&store).await;
    assert!(newest > began + 1, "readers of its revision load again");
    for service in ["near", "far"] {
        assert_eq!(held[&key(service)].0, "both");
    }
    assert_eq!(intents(&home), 0);
    assert!(write(&store, "far", "after").await > newest);
}

#[tokio::test]
async fn multi_partition_batch_is_atomic_and_reports_first_conflict() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, link) = partitioned_store(&home, &part).await;
    let (newest, held) = rows(&store).await;
    let at = |service: &str| held[&key(service)].1;
    let wrong = batch([
        put(key("near"), "1", Expect::Revision(at("near"))),
        put(key("far"), "1", Expect::Absent),
        put(key("new"), "1", Expect::Revision(7)),
    ]);
    let Err(WriteError::Conflict(conflict)) = store.write(wrong).await else { panic!("no conflict") };
    assert_eq!((&*conflict.key, conflict.found, conflict.current), (&*key("far"), Some(at("far")), newest));
    assert_eq!(rows(&store).await, (newest, held.clone()));

    link.set(Link::Cut);
    let both = || batch(["near", "far"].map(|name| put(key(name), "2", Expect::Revision(at(name)))));
    let refusal = timeout(TIMEOUT, store.write(both())).await.unwrap().unwrap_err();
    assert!(matches!(refusal, WriteError::Unavailable { .. } | WriteError::Unknown { .. }), "{refusal}");
    write(&store, "other", "1").await;
    link.set(Link::Open);
    let mut written = None;
    while written.is_none() {
        // Nothing was written in part, so both expectations still hold.
        written = store.write(both()).await.ok();
    }
    let (_, held) = rows(&store).await;
    assert_eq!(held[&key("near")], held[&key("far")]);
}

#[tokio::test]
async fn former_writer_writes_nothing_in_any_partition() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, _open) = partitioned_store(&home, &part).await;
    store.close().await;
    drop(store);
    let link = Proxy::to(home.client()).await;
    let first = open(&link.address).await;
    let mut ending = first.commits(first.load().await.unwrap().0);
    let mut expiry = first.lease_expiry().unwrap();
    timeout(TIMEOUT, expiry.wait_for(|expiry| Instant::now() < *expiry)).await.unwrap().unwrap();
    link.set(Link::Cut);
    let second = open(&home.client()).await;
    assert!(
        *expiry.borrow() < Instant::now(),
        "its lease expires by its own clock before another can take over"
    );
    let taken = write(&second, "far", "2").await;
    let before = rows(&second).await;
    // The former holder's link to that partition is open.
    let late = timeout(TIMEOUT, first.write(batch([put(key("far"), "late", Expect::Any)]))).await.unwrap();
    assert!(matches!(late, Err(WriteError::Refused { .. })), "{late:?}");
    link.set(Link::Open);
    let both = ["near", "far"].map(|service| put(key(service), "late", Expect::Any));
    assert!(timeout(TIMEOUT, first.write(batch(both))).await.unwrap().is_err());
    assert_eq!(rows(&second).await, before);
    assert_eq!(next(&mut ending).await, Ok(None), "the subscription ends");
    assert!(first.fatal_error().is_some());
    assert!(write(&second, "far", "3").await > taken);
}

#[tokio::test]
async fn unresponsive_partition_leaves_write_capacity_to_others() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, link) = partitioned_store(&home, &part).await;
    let store = Arc::new(store);
    link.set(Link::Mute);
    let mut waiting = JoinSet::new();
    let near = put(key("near"), "1", Expect::Any);
    let mut begin = |ops| {
        let writer = store.clone();
        waiting.spawn(async move { writer.write(batch(ops)).await })
    };
    begin(vec![near.clone(), put(key("far"), "1", Expect::Any)]);
    eventually("an intent is written", || intents(&home) > 0).await;
    // More batches than one partition has lanes.
    for _ in 0..64 {
        begin(vec![near.clone()]);
    }
    tokio::task::yield_now().await;
    write(&store, "other", "1").await;
    assert!(waiting.try_join_next().is_none());
}

#[tokio::test]
async fn partitioned_store_publishes_nothing_after_unknown_write_outcome() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let (store, link) = partitioned_store(&home, &part).await;
    let store = Arc::new(store);
    let mut ending = store.commits(store.load().await.unwrap().0);
    link.set(Link::Mute);
    let (before, writer) = (etcd_revision(&part), store.clone());
    let ops = || batch([put(key("far"), "1", Expect::Any)]);
    let stuck = tokio::spawn(async move { writer.write(ops()).await });
    eventually("etcd has another revision", || etcd_revision(&part) != before).await;
    // Another process takes the partition over: its "/fairmesh/meta/fence" is greater than any fence of this process.
    part.post("kv/put", r#"{"key":"L2ZhaXJtZXNoL21ldGEvZmVuY2U=","value":"//////////8="}"#);
    link.set(Link::Cut);
    write(&store, "near", "1").await;
    link.set(Link::Open);
    let lost = timeout(TIMEOUT, stuck).await.unwrap().unwrap();
    assert!(matches!(lost, Err(WriteError::Unknown { .. })), "{lost:?}");
    assert!(store.fatal_error().is_some());
    // A gap was recorded for the commits published before, so readers of the next process load again.
    while next(&mut ending).await.unwrap().is_some() {}
    let near = store.write(batch([put(key("near"), "2", Expect::Any)])).await;
    assert!(matches!(near, Err(WriteError::Refused { .. })), "{near:?}");
}

#[tokio::test]
async fn store_conversion_keeps_id_records_and_revisions() {
    let (home, part) = (Etcd::start(), Etcd::start());
    let config = etcd_config(&[&home.client()], "");
    let whole = EtcdStore::open(&config).await.unwrap();
    for service in 0..300 {
        whole.write(batch([put(key(&format!("s{service}")), "1", Expect::Absent)])).await.unwrap();
    }
    let newest = whole.write(batch([delete(key("s7"), Expect::Any)])).await.unwrap().number;
    let (id, before) = (whole.id(), whole.load().await.unwrap());
    drop(whole);
    let refusal = PartitionedStore::open(&config, "the test", LEASE_TTL).await.unwrap_err().to_string();
    assert!(refusal.contains("--partitioned"), "{refusal}");
    let standby = EtcdStore::open(&config).await.unwrap();
    for _ in 0..2 {
        PartitionedStore::convert(&config, "the test", LEASE_TTL).await.unwrap();
    }
    let refusal = standby.acquire_writer_lease("another", LEASE_TTL).await.unwrap_err().to_string();
    assert!(refusal.contains("start the process again"), "{refusal}");
    let store = open(&home.client()).await;
    assert_eq!((store.id(), store.load().await.unwrap()), (id, before));
    assert_eq!(store.write(batch([])).await.unwrap().number, newest);
    split(&store, &part.client(), &[]).await.unwrap();
    assert_eq!(store.load().await.unwrap().1.len(), 299);
    // From "/fairmesh/rib/" to "/fairmesh/rib0", in base64: records in the unpartitioned format.
    assert_eq!(count(&home, "L2ZhaXJtZXNoL3JpYi8=", "L2ZhaXJtZXNoL3JpYjA="), 0);
    store.close().await;
    drop(store);

    let refusal = EtcdStore::open(&config).await.unwrap_err().to_string();
    assert!(refusal.contains("several clusters"), "{refusal}");
    let renewed = PartitionedStore::regenerate_id(&config).await.unwrap();
    let store = open(&home.client()).await;
    assert_eq!((store.id(), store.load().await.unwrap().1.len()), (renewed, 299));
}

#[tokio::test]
async fn impossible_store_split_is_refused_and_dry_run_changes_nothing() {
    let (home, part, other) = (Etcd::start(), Etcd::start(), Etcd::start());
    let (store, _way) = partitioned_store(&home, &part).await;
    let stranger = EtcdStore::open(&etcd_config(&[&other.client()], "")).await.unwrap();
    let refusal =
        async |into: &str, services: &[&str]| split(&store, into, services).await.unwrap_err().to_string();
    assert!(refusal(&other.client(), &["shop/near"]).await.contains("another store lies there"));
    assert!(refusal(&part.client(), &["shop/far"]).await.contains("there already"));
    assert!(refusal(&part.client(), &["shop/far", "shop/near"]).await.contains("several partitions"));
    assert!(refusal(&part.client(), &[]).await.contains("--services"), "one service is left in the home");
    drop(stranger);
    let (progress, mut receiver) = mpsc::channel(4);
    let into = etcd_config(&[&other.client()], "/empty").address;
    let wish = SplitRequest { into: into.clone(), services: vec!["shop/near".into()], dry_run: true };
    store.split(wish, progress).await.unwrap();
    let planned = receiver.recv().await.unwrap();
    assert!(
        matches!(planned, SplitEvent::Planned { from: 0, to: 2, services: 1, records: 1, .. }),
        "{planned:?}"
    );
    assert_eq!((receiver.recv().await, store.partition(&key("near"))), (None, 0));
    let wish = |services: &str, into| SplitRequest { into, services: vec![services.into()], dry_run: false };
    store.split(wish("shop/near", into), mpsc::channel(9).0).await.unwrap();
    // Moves the service back: the home can be a target like any other partition.
    let home = etcd_config(&[&home.client()], "").address;
    store.split(wish("shop/far", home), mpsc::channel(9).0).await.unwrap();
    assert_eq!(["near", "far"].map(|service| store.partition(&key(service))), [2, 0]);
    assert_eq!(rows(&store).await.1.len(), 2);
}
