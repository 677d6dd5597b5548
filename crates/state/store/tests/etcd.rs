//! Behaviour specific to a store in etcd: lost connections, failing members, compacted revisions, foreign keys, etcd's
//! limits, users and certificates.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{path::Path, process::Command, time::Duration};

use fairmesh_rib::{Batch, Commit, Expect, MAX_VALUE_BYTES};
use fairmesh_store::{
    Commits, Compacted, EtcdConfig, EtcdLogin, EtcdStore, EtcdTls, Store, StoreError, WriteError,
};
use fairmesh_test_support::Etcd;
use support::{
    batch, delete, etcd_config,
    proxy::{Link, Proxy},
    put,
};
use tokio::time::{Instant, timeout};

/// Time limit for operations that normally take moments.
const TIMEOUT: Duration = Duration::from_secs(30);

async fn open(members: &[&str], root: &str) -> EtcdStore {
    EtcdStore::open(&etcd_config(members, root)).await.unwrap()
}

/// Writes a value that is used only once. If the response is lost, checks whether the value was written.
async fn write(store: &EtcdStore, key: &str, value: &'static str) -> u64 {
    loop {
        match store.write(batch([put(key, value, Expect::Any)])).await {
            Ok(written) => return written.number,
            Err(WriteError::Unknown { .. }) => {
                let (_, entries) = store.load().await.unwrap();
                let found = entries.iter().find(|(held, entry)| **held == *key && entry.value == value);
                if let Some((_, entry)) = found {
                    return entry.revision;
                }
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

async fn next(commits: &mut Commits) -> Result<Option<Commit>, Compacted> {
    timeout(TIMEOUT, commits.next()).await.unwrap()
}

async fn next_number(commits: &mut Commits) -> u64 {
    next(commits).await.unwrap().unwrap().revision
}

fn large() -> Vec<u8> {
    vec![7; MAX_VALUE_BYTES]
}

#[tokio::test]
async fn etcd_stores_with_same_root_share_data_and_others_are_isolated() {
    let etcd = Etcd::start();
    let member = etcd.client();
    let (one, same, other) =
        (open(&[&member], "").await, open(&[&member], "/fairmesh").await, open(&[&member], "/fair").await);
    assert_eq!(one.id(), same.id());
    assert_ne!(one.id(), other.id());
    let mut seen = same.commits(same.load().await.unwrap().0);
    let first = write(&one, "/a", "1").await;
    for value in ["x", "y", "z"] {
        write(&other, "/a", value).await;
    }
    let second = write(&one, "/b", "2").await;
    assert!(second > first + 1, "revisions have gaps where others write");
    assert_eq!(
        next(&mut seen).await.unwrap().unwrap(),
        batch([put("/a", "1", Expect::Any)]).into_commit(first)
    );
    assert_eq!(next_number(&mut seen).await, second);
    for value in ["x", "y", "z"] {
        write(&other, "/a", value).await;
    }
    assert_eq!(same.write(Batch::default()).await.unwrap().number, second, "foreign writes do not count");
    assert_eq!(same.load().await.unwrap().0, second);
    let stale = one.write(batch([put("/b", "3", Expect::Revision(first))])).await;
    let Err(WriteError::Conflict(conflict)) = stale else { panic!("{stale:?}") };
    assert_eq!((conflict.found, conflict.current), (Some(second), second));
}

#[tokio::test]
async fn etcd_member_restart_loses_and_repeats_no_commit() {
    let mut etcd = Etcd::start();
    let store = std::sync::Arc::new(open(&["127.0.0.1:1", &etcd.client()], "").await);
    let mut commits = store.commits(0);
    assert!(commits.next().await.is_err(), "the creation of the store is not a commit");
    let mut commits = store.commits(store.load().await.unwrap().0);
    for round in ["1", "2", "3"] {
        let before = write(&store, "/a", round).await;
        assert_eq!(next_number(&mut commits).await, before);
        etcd.kill();
        let writer = store.clone();
        // No member accepts the write, so it waits for the member to return.
        let waiting = tokio::spawn(async move { write(&writer, "/b", round).await });
        tokio::task::yield_now().await;
        etcd.restart();
        let during = waiting.await.unwrap();
        let after = write(&store, "/c", round).await;
        assert_eq!((next_number(&mut commits).await, next_number(&mut commits).await), (during, after));
    }
    assert_eq!(store.fatal_error(), None);
}

#[tokio::test]
async fn commits_during_etcd_disconnect_arrive_complete_afterwards() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.client()).await;
    let (cut, direct) = (open(&[&proxy.address], "").await, open(&[&etcd.client()], "").await);
    let mut commits = cut.commits(cut.load().await.unwrap().0);
    proxy.set(Link::Cut);
    let mut expected = Vec::new();
    for round in 0..6 {
        let ops = (0..5).map(|i| put(format!("/{round}/{i}"), large(), Expect::Absent));
        let batch = batch(ops);
        expected.push(batch.clone().into_commit(direct.write(batch).await.unwrap().number));
    }
    proxy.set(Link::Open);
    for expected in expected {
        let commit = next(&mut commits).await.unwrap().unwrap();
        assert!(commit == expected, "revision {} instead of {}", commit.revision, expected.revision);
    }
}

#[tokio::test]
async fn store_watcher_behind_etcd_compaction_must_load_and_then_continues() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.client()).await;
    let (lagging, direct) = (open(&[&proxy.address], "").await, open(&[&etcd.client()], "").await);
    let loaded = lagging.load().await.unwrap().0;
    let mut commits = lagging.commits(loaded);
    proxy.set(Link::Cut);
    for value in ["1", "2", "3"] {
        write(&direct, "/a", value).await;
    }
    let newest =
        direct.write(batch([delete("/a", Expect::Any), put("/b", "4", Expect::Any)])).await.unwrap().number;
    etcd.post("kv/compaction", &format!("{{\"revision\":{newest}}}"));
    proxy.set(Link::Open);

    assert_eq!(next(&mut commits).await, Err(Compacted { after: loaded, oldest: newest + 1 }));
    let (revision, entries) = lagging.load().await.unwrap();
    assert_eq!(revision, newest);
    assert_eq!(
        entries.iter().map(|(key, entry)| (&**key, entry.revision)).collect::<Vec<_>>(),
        [("/b", newest)]
    );
    let mut commits = lagging.commits(revision);
    let live = write(&direct, "/c", "5").await;
    assert_eq!(next_number(&mut commits).await, live);
    assert_eq!(lagging.fatal_error(), None);
}

#[tokio::test]
async fn etcd_compaction_of_foreign_keys_requires_no_load() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.client()).await;
    let lagging = open(&[&proxy.address], "").await;
    let (direct, other) = (open(&[&etcd.client()], "").await, open(&[&etcd.client()], "/other").await);
    let mut commits = lagging.commits(lagging.load().await.unwrap().0);
    proxy.set(Link::Cut);
    write(&other, "/a", "1").await;
    let newest = write(&other, "/a", "2").await;
    etcd.post("kv/compaction", &format!("{{\"revision\":{newest}}}"));
    proxy.set(Link::Open);
    let live = write(&direct, "/c", "5").await;
    assert_eq!(next_number(&mut commits).await, live);
}

#[tokio::test]
async fn etcd_write_with_lost_response_has_unknown_outcome() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.client()).await;
    let (muted, direct) =
        (std::sync::Arc::new(open(&[&proxy.address], "").await), open(&[&etcd.client()], "").await);
    let loaded = direct.load().await.unwrap().0;
    let (mut seen, mut own) = (direct.commits(loaded), muted.commits(loaded));
    proxy.set(Link::Mute);
    let writer = muted.clone();
    let waiting = tokio::spawn(async move { writer.write(batch([put("/a", "1", Expect::Absent)])).await });
    let applied = next_number(&mut seen).await;
    proxy.set(Link::Cut);
    let refusal = timeout(TIMEOUT, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(refusal, WriteError::Unknown { .. }), "{refusal}");
    assert!(refusal.to_string().contains("may have been applied"), "{refusal}");
    proxy.set(Link::Open);
    assert_eq!(next_number(&mut own).await, applied);
    let live = write(&muted, "/b", "2").await;
    assert_eq!(next_number(&mut own).await, live, "it was written once and is delivered once");
}

#[tokio::test]
async fn batch_above_etcd_limits_names_flag_and_passes_with_it() {
    let keys = |count: usize, long: usize| {
        batch((0..count).map(move |i| put(format!("/{i:0long$}"), "", Expect::Absent)))
    };
    let etcd = Etcd::start();
    let store = open(&[&etcd.client()], "").await;
    assert!(store.write(keys(127, 8)).await.is_ok(), "one operation records the revision");
    let refusal = store.write(keys(128, 9)).await.unwrap_err().to_string();
    assert!(refusal.contains("--max-txn-ops=10001"), "{refusal}");

    let etcd = Etcd::with(&["--max-txn-ops=10001"]);
    let store = open(&[&etcd.client()], "").await;
    let refusal = store.write(keys(10_000, 130)).await.unwrap_err().to_string();
    assert!(refusal.contains("--max-request-bytes=8388608"), "{refusal}");

    let etcd = Etcd::with(&["--max-txn-ops=10001", "--max-request-bytes=8388608"]);
    let store = open(&[&etcd.client()], "").await;
    let mut commits = store.commits(store.load().await.unwrap().0);
    let written = store.write(keys(10_000, 130)).await.unwrap().number;
    let commit = next(&mut commits).await.unwrap().unwrap();
    assert_eq!((commit.revision, commit.changes.len()), (written, 10_000));
    assert_eq!(store.load().await.unwrap().1.len(), 10_000);
}

#[tokio::test]
async fn full_etcd_error_explains_how_to_free_space() {
    let etcd = Etcd::with(&["--quota-backend-bytes=1000000"]);
    let store = open(&[&etcd.client()], "").await;
    let mut refusal = None;
    // Etcd updates its recorded size only at intervals.
    for i in 0..400 {
        refusal = store.write(batch([put(format!("/{i}"), large(), Expect::Any)])).await.err();
        if refusal.is_some() {
            break;
        }
    }
    let refusal = refusal.unwrap().to_string();
    assert!(refusal.contains("--quota-backend-bytes") && refusal.contains("alarm disarm"), "{refusal}");
}

#[tokio::test]
async fn replaced_etcd_store_fails_and_is_not_written() {
    let mut etcd = Etcd::start();
    let store = open(&[&etcd.client()], "").await;
    let mut commits = store.commits(store.load().await.unwrap().0);
    let config = etcd_config(&[&etcd.client()], "");
    let renewed = EtcdStore::regenerate_id(&config).await.unwrap();
    assert_ne!(renewed, store.id());
    let refusal = store.write(batch([put("/a", "1", Expect::Any)])).await.unwrap_err().to_string();
    assert!(refusal.contains("another store"), "{refusal}");
    assert!(store.fatal_error().unwrap().contains("another store"));
    assert_eq!(next(&mut commits).await, Ok(None));
    let store = EtcdStore::open(&config).await.unwrap();
    assert_eq!((store.id(), store.load().await.unwrap().1.len()), (renewed, 0));

    let mut commits = store.commits(store.load().await.unwrap().0);
    etcd.kill();
    etcd.wipe();
    etcd.restart();
    assert_eq!(next(&mut commits).await, Ok(None));
    assert!(store.fatal_error().unwrap().contains("another store, or none"));
    let nothing = EtcdStore::regenerate_id(&config).await.unwrap_err().to_string();
    assert!(nothing.contains("leave --new-store-id out"), "{nothing}");
}

#[tokio::test]
async fn foreign_keys_are_refused_and_unchanged() {
    let etcd = Etcd::start();
    // The keys decode to "/fairmesh/meta/store" = "hello".
    etcd.post("kv/put", r#"{"key":"L2ZhaXJtZXNoL21ldGEvc3RvcmU=","value":"aGVsbG8="}"#);
    let refusal = EtcdStore::open(&etcd_config(&[&etcd.client()], "")).await.unwrap_err().to_string();
    assert!(refusal.contains("give another root"), "{refusal}");
}

// With paused time, timeouts elapse at once.
#[tokio::test(start_paused = true)]
async fn unreachable_etcd_is_named_in_error() {
    let refusal = EtcdStore::open(&etcd_config(&["127.0.0.1:1", "127.0.0.1:2"], "/x")).await.unwrap_err();
    assert!(matches!(refusal, StoreError::Unavailable { .. }), "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains("etcd://127.0.0.1:1,127.0.0.1:2/x") && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn etcd_user_logs_in_again_and_accesses_only_its_root() {
    let mut etcd = Etcd::start();
    let login = |user: &str, password: &str, root: &str| EtcdConfig {
        login: Some(EtcdLogin { user: user.into(), password: password.into() }),
        ..etcd_config(&[&etcd.client()], root)
    };
    let (right, wrong, astray, nobody) = (
        login("mesh", "secret", ""),
        login("mesh", "guess", ""),
        login("mesh", "secret", "/other"),
        etcd_config(&[&etcd.client()], ""),
    );
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"r"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("user/add", r#"{"name":"mesh","password":"secret"}"#),
        ("role/add", r#"{"name":"mesh"}"#),
        // From "/fairmesh/" to "/fairmesh0", in base64.
        (
            "role/grant",
            r#"{"name":"mesh","perm":{"permType":"READWRITE","key":"L2ZhaXJtZXNoLw==","range_end":"L2ZhaXJtZXNoMA=="}}"#,
        ),
        ("user/grant", r#"{"user":"mesh","role":"mesh"}"#),
    ] {
        etcd.post(&format!("auth/{path}"), body);
    }
    assert!(EtcdStore::open(&right).await.is_ok(), "while authentication is disabled");
    etcd.post("auth/enable", "{}");
    for refused in [wrong, astray, nobody] {
        let refusal = EtcdStore::open(&refused).await.unwrap_err().to_string();
        assert!(refusal.contains("FAIRMESH_ETCD_PASSWORD"), "{refusal}");
        assert!(!refusal.contains("secret") && !refusal.contains("guess"), "{refusal}");
    }

    let store = EtcdStore::open(&right).await.unwrap();
    let mut commits = store.commits(store.load().await.unwrap().0);
    // Etcd keeps tokens in memory, so a restart invalidates them.
    etcd.kill();
    etcd.restart();
    let first = write(&store, "/a", "1").await;
    assert_eq!(next_number(&mut commits).await, first);
    assert_eq!(store.load().await.unwrap().0, first);
}

#[tokio::test]
async fn paused_writer_writes_nothing_and_fails_after_takeover() {
    let ttl = Duration::from_secs(3);
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.client()).await;
    let first = open(&[&proxy.address], "").await;
    first.acquire_writer_lease("first", ttl).await.unwrap();
    let held = write(&first, "/a", "1").await;
    let second = std::sync::Arc::new(open(&[&etcd.client()], "").await);
    let standby = second.clone();
    let mut taking = tokio::spawn(async move { standby.acquire_writer_lease("second", ttl).await });
    // Longer than the TTL, so only renewals keep the other process waiting.
    assert!(timeout(ttl * 2, &mut taking).await.is_err(), "the first holds the lease");
    let mut expiry = first.lease_expiry().unwrap();
    timeout(TIMEOUT, expiry.wait_for(|expiry| Instant::now() < *expiry)).await.unwrap().unwrap();
    assert_eq!(second.lease_expiry().map(|_| ()), None, "it holds no lease");

    let mut ending = first.commits(held);
    proxy.set(Link::Cut);
    timeout(TIMEOUT, taking).await.unwrap().unwrap().unwrap();
    assert!(
        *expiry.borrow() < Instant::now(),
        "its lease expires by its own clock before another can take over"
    );
    let taken = write(&second, "/a", "2").await;
    let before = second.load().await.unwrap();
    proxy.set(Link::Open);
    // The write may have been sent and lost while the link was cut, but it was never applied.
    let late = first.write(batch([put("/a", "late", Expect::Any), put("/b", "late", Expect::Any)])).await;
    assert!(late.is_err(), "{late:?}");
    assert_eq!(second.load().await.unwrap(), before);
    while let Some(commit) = next(&mut ending).await.unwrap() {
        assert_eq!(commit.revision, taken, "a commit of the other process");
    }
    assert!(first.fatal_error().unwrap().contains("another process took over"), "{:?}", first.fatal_error());

    // A released lease is free at once.
    second.close().await;
    let third = open(&[&etcd.client()], "").await;
    timeout(TIMEOUT, third.acquire_writer_lease("third", Duration::from_secs(3600))).await.unwrap().unwrap();
    write(&third, "/a", "3").await;
}

#[tokio::test]
async fn expired_lease_is_reacquired_if_no_other_process_wrote() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.client()).await;
    let store = open(&[&proxy.address], "").await;
    store.acquire_writer_lease("only", Duration::from_secs(3)).await.unwrap();
    write(&store, "/a", "1").await;
    let direct = open(&[&etcd.client()], "").await;
    proxy.set(Link::Cut);
    // Another process can acquire the lease only once it has expired.
    direct.acquire_writer_lease("other", Duration::from_secs(1)).await.unwrap();
    let mut expiry = store.lease_expiry().unwrap();
    assert!(*expiry.borrow_and_update() < Instant::now());
    direct.close().await;
    proxy.set(Link::Open);
    timeout(TIMEOUT, expiry.wait_for(|expiry| Instant::now() < *expiry)).await.unwrap().unwrap();
    let again = timeout(TIMEOUT, async {
        loop {
            match store.write(batch([put("/a", "2", Expect::Any)])).await {
                Ok(written) => return written.number,
                // Writes are refused until the lease is reacquired.
                Err(refusal) => {
                    assert_eq!(store.fatal_error(), None, "{refusal}");
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    let again = again.await.unwrap();
    assert_eq!(store.load().await.unwrap().0, again);
    assert_eq!(store.fatal_error(), None);
}

/// Creates a certificate authority and a certificate signed by it, as `NAME.pem` and `NAME.key`.
fn certificates(folder: &Path, authority: &str, name: &str) {
    let extensions = folder.join("extensions");
    std::fs::write(&extensions, "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        .unwrap();
    let openssl = |arguments: &str| {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
        let made = made.expect("this test needs openssl; run scripts/setup.sh etcd");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!(
        "req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"
    ));
    openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    openssl(&format!(
        "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 \
         -extfile extensions -out {name}.pem"
    ));
}

#[tokio::test]
async fn mutual_tls_accepts_only_configured_authority() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "ca", "node");
    certificates(folder.path(), "stranger", "other");
    let file = |name: &str| folder.path().join(name);
    let etcd = Etcd::secured(&file("node.pem"), &file("node.key"), &file("ca.pem"));
    let with = |ca: &str, name: Option<&str>| EtcdConfig {
        tls: Some(EtcdTls {
            ca: file(ca),
            identity: name.map(|name| (file(&format!("{name}.pem")), file(&format!("{name}.key")))),
        }),
        ..etcd_config(&[&etcd.client()], "")
    };
    let store = EtcdStore::open(&with("ca.pem", Some("node"))).await.unwrap();
    let mut commits = store.commits(store.load().await.unwrap().0);
    let first = write(&store, "/a", "1").await;
    assert_eq!(next_number(&mut commits).await, first);

    let refused = async |config| EtcdStore::open(&config).await.unwrap_err().to_string();
    let plain = etcd_config(&[&etcd.client()], "");
    // Each attempt fails at once, but its retries take ten seconds, so all attempts run concurrently.
    let (stranger, unsigned, nobody, plain) = tokio::join!(
        refused(with("stranger.pem", Some("node"))),
        refused(with("ca.pem", Some("other"))),
        refused(with("ca.pem", None)),
        refused(plain)
    );
    assert!(stranger.contains("UnknownIssuer"), "{stranger}");
    for refusal in [unsigned, nobody, plain] {
        assert!(refusal.contains("check its addresses, its certificates"), "{refusal}");
    }
    let missing = refused(with("none.pem", None)).await;
    assert!(missing.contains("none.pem") && missing.contains("PEM"), "{missing}");
}

#[tokio::test]
async fn replaced_certificates_apply_to_new_connections() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "ca", "node");
    let file = |name: &str| folder.path().join(name);
    let mut etcd = Etcd::secured(&file("node.pem"), &file("node.key"), &file("ca.pem"));
    let tls = EtcdTls { ca: file("ca.pem"), identity: Some((file("node.pem"), file("node.key"))) };
    let config = EtcdConfig { tls: Some(tls), ..etcd_config(&[&etcd.client()], "") };
    let store = EtcdStore::open(&config).await.unwrap();
    write(&store, "/a", "1").await;
    etcd.kill();
    // Another authority with the same names: neither side accepts the previous certificates.
    certificates(folder.path(), "ca", "node");
    etcd.restart();
    let writing = async {
        while let Err(refusal) = store.write(batch([put("/a", "2", Expect::Any)])).await {
            assert_eq!(store.fatal_error(), None, "{refusal}");
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, writing).await.expect("the files are read again");
}
