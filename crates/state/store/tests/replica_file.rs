//! Tests of a replica's on-disk copy.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::Entry;
use fairmesh_store::{ReplicaContents, ReplicaFile, ReplicaUpdate, StoreError};

fn at(store: u128, number: u64) -> Revision {
    Revision { store: StoreId(store), partition: 0, number }
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn put(key: &str, revision: u64) -> (Arc<str>, Option<Entry>) {
    (key.into(), Some(Entry { value: Bytes::from(revision.to_string()), revision }))
}

fn keys(contents: &ReplicaContents) -> Vec<(&str, u64)> {
    contents.entries.iter().map(|(key, entry)| (&**key, entry.revision)).collect()
}

#[test]
fn replica_file_accumulates_updates_until_store_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/copy.redb");
    let (mut file, contents) = ReplicaFile::open(&path).unwrap();
    assert_eq!(contents, None);
    file.write(&ReplicaUpdate {
        revision: at(1, 5),
        at: time(10),
        floor: 0,
        keys: vec![put("/a", 3), put("/b", 5)],
    })
    .unwrap();
    file.write(&ReplicaUpdate {
        revision: at(1, 7),
        at: time(11),
        floor: 0,
        keys: vec![("/a".into(), None), put("/c", 7)],
    })
    .unwrap();
    drop(file);
    let (mut file, contents) = ReplicaFile::open(&path).unwrap();
    let contents = contents.unwrap();
    assert_eq!((contents.revision, contents.at), (at(1, 7), time(11)));
    assert_eq!(keys(&contents), [("/b", 5), ("/c", 7)]);
    assert!(file.bytes() > 0);

    file.write(&ReplicaUpdate { revision: at(2, 1), at: time(12), floor: 0, keys: vec![put("/c", 1)] })
        .unwrap();
    drop(file);
    let contents = ReplicaFile::open(&path).unwrap().1.unwrap();
    assert_eq!((contents.revision, keys(&contents)), (at(2, 1), vec![("/c", 1)]));
}

#[test]
fn replica_change_log_survives_restart_and_starts_at_retained_revision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.redb");
    let write = |number, floor, keys| {
        let (mut file, _) = ReplicaFile::open(&path).unwrap();
        file.write(&ReplicaUpdate { revision: at(1, number), at: time(1), floor, keys }).unwrap();
    };
    let log = || {
        let contents = ReplicaFile::open(&path).unwrap().1.unwrap();
        let log = contents.log.iter().map(|(number, key)| format!("{number}{key}"));
        (contents.floor, log.collect::<Vec<_>>())
    };
    write(5, 0, vec![put("/a", 3), put("/b", 5)]);
    assert_eq!(log(), (5, vec![]), "changes before the first write are unknown");
    write(7, 5, vec![("/a".into(), None), put("/c", 6)]);
    write(9, 5, vec![put("/a", 9)]);
    assert_eq!(log(), (5, vec!["7/a".into(), "7/c".into(), "9/a".into()]));
    write(10, 8, vec![put("/d", 10)]);
    assert_eq!(log(), (8, vec!["9/a".into(), "10/d".into()]), "the upstream's floor");
    write(11, 11, vec![put("/e", 11)]);
    assert_eq!(log(), (11, vec![]), "a snapshot has no log");
    let many = (0..fairmesh_rib::DEFAULT_LOG_LEN + 1).map(|i| put(&format!("/{i}"), 12)).collect();
    write(12, 11, many);
    let (floor, log) = log();
    assert_eq!((floor, log.len()), (12, 0), "a revision is logged whole or not at all");
}

#[test]
fn replica_file_is_locked_by_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.redb");
    let _first = ReplicaFile::open(&path).unwrap();
    assert!(matches!(ReplicaFile::open(&path), Err(StoreError::Locked { .. })));
}

#[test]
fn unreadable_replica_file_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.redb");
    for damage in ["", "no copy at all"] {
        fs::write(&path, damage).unwrap();
        let (mut file, contents) = ReplicaFile::open(&path).unwrap();
        assert_eq!(contents, None, "after '{damage}'");
        assert_eq!(fs::read_to_string(folder.path().join("copy.unreadable")).unwrap(), damage);
        file.write(&ReplicaUpdate { revision: at(1, 1), at: time(1), floor: 0, keys: vec![put("/a", 1)] })
            .unwrap();
    }
}
