//! A store in a cluster of three members, while some of them fail.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use fairmesh_rib::Expect;
use fairmesh_store::{Commits, EtcdStore, Store, WriteError};
use support::{batch, etcd_config, members::Members, put};
use tokio::time::timeout;

/// Time limit for operations that normally take moments.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Writes a key, with retries until the write succeeds.
async fn write(store: &EtcdStore, key: &str) -> u64 {
    let written = async {
        loop {
            match store.write(batch([put(key, "", Expect::Any)])).await {
                Ok(written) => return written.number,
                Err(
                    WriteError::Unavailable { .. } | WriteError::Unknown { .. } | WriteError::Refused { .. },
                ) => {}
                Err(refusal) => panic!("{refusal}"),
            }
        }
    };
    timeout(TIMEOUT, written).await.unwrap()
}

/// Reads commits up to a revision, asserts that revisions ascend, and returns the number of commits.
async fn read_to(commits: &mut Commits, revision: u64) -> usize {
    let (mut read, mut last) = (0, 0);
    while last < revision {
        let commit = timeout(TIMEOUT, commits.next()).await.unwrap().unwrap().unwrap();
        assert!(commit.revision > last);
        (read, last) = (read + 1, commit.revision);
    }
    assert_eq!(last, revision);
    read
}

#[tokio::test]
async fn etcd_writes_survive_minority_loss_and_fail_without_majority() {
    let mut members = Members::start();
    let store = EtcdStore::open(&etcd_config(&members.clients(), "")).await.unwrap();
    store.acquire_writer_lease("the test", Duration::from_secs(2)).await.unwrap();
    let mut commits = store.commits(store.load().await.unwrap().0);
    let first = write(&store, "/a").await;
    assert_eq!(read_to(&mut commits, first).await, 1);

    let leader = members.leader();
    members.kill(leader);
    // A write with an unknown outcome may have been repeated, but none is lost.
    let last = write(&store, "/b").await;
    assert!(read_to(&mut commits, last).await >= 1);
    for key in ["/c", "/d", "/e"] {
        let written = write(&store, key).await;
        assert!(read_to(&mut commits, written).await >= 1, "a minority may be down");
    }

    let second = members.leader();
    members.kill(second);
    let refusal = timeout(TIMEOUT, store.write(batch([put("/f", "", Expect::Any)]))).await.unwrap();
    let refusal = refusal.unwrap_err();
    assert!(matches!(refusal, WriteError::Unavailable { .. } | WriteError::Unknown { .. }), "{refusal:?}");
    let words = refusal.to_string();
    assert!(words.contains("nothing was written, retry") || words.contains("read before"), "{words}");
    assert_eq!(store.fatal_error(), None, "no other process can have taken over");

    members.restart(leader);
    let back = write(&store, "/g").await;
    assert!(read_to(&mut commits, back).await >= 1);
    members.restart(second);
    let whole = write(&store, "/h").await;
    assert!(read_to(&mut commits, whole).await >= 1);
    let keys: Vec<_> = store.load().await.unwrap().1.into_iter().map(|(key, _)| key.to_string()).collect();
    for key in ["/a", "/b", "/c", "/d", "/e", "/g", "/h"] {
        assert!(keys.iter().any(|held| held == key), "{key} is lost");
    }
    assert_eq!(store.fatal_error(), None);
}
