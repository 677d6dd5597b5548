//! The file of a replica's copy.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::Entry;
use fairmesh_store::{Changes, Copied, CopyFile, StoreError};

fn at(store: u128, number: u64) -> Revision {
    Revision { store: StoreId(store), partition: 0, number }
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn put(key: &str, revision: u64) -> (Arc<str>, Option<Entry>) {
    (key.into(), Some(Entry { value: Bytes::from(revision.to_string()), revision }))
}

fn keys(copied: &Copied) -> Vec<(&str, u64)> {
    copied.entries.iter().map(|(key, entry)| (&**key, entry.revision)).collect()
}

#[test]
fn changes_add_up_and_another_store_replaces_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/copy.redb");
    let (mut file, copied) = CopyFile::open(&path).unwrap();
    assert_eq!(copied, None);
    file.write(&Changes {
        revision: at(1, 5),
        at: time(10),
        floor: 0,
        keys: vec![put("/a", 3), put("/b", 5)],
    })
    .unwrap();
    file.write(&Changes {
        revision: at(1, 7),
        at: time(11),
        floor: 0,
        keys: vec![("/a".into(), None), put("/c", 7)],
    })
    .unwrap();
    drop(file);
    let (mut file, copied) = CopyFile::open(&path).unwrap();
    let copied = copied.unwrap();
    assert_eq!((copied.revision, copied.at), (at(1, 7), time(11)));
    assert_eq!(keys(&copied), [("/b", 5), ("/c", 7)]);
    assert!(file.bytes() > 0);

    file.write(&Changes { revision: at(2, 1), at: time(12), floor: 0, keys: vec![put("/c", 1)] }).unwrap();
    drop(file);
    let copied = CopyFile::open(&path).unwrap().1.unwrap();
    assert_eq!((copied.revision, keys(&copied)), (at(2, 1), vec![("/c", 1)]));
}

#[test]
fn what_changed_lately_is_known_after_a_restart_but_never_further_back_than_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.redb");
    let write = |number, floor, keys| {
        let (mut file, _) = CopyFile::open(&path).unwrap();
        file.write(&Changes { revision: at(1, number), at: time(1), floor, keys }).unwrap();
    };
    let log = || {
        let copied = CopyFile::open(&path).unwrap().1.unwrap();
        let log = copied.log.iter().map(|(number, key)| format!("{number}{key}"));
        (copied.floor, log.collect::<Vec<_>>())
    };
    write(5, 0, vec![put("/a", 3), put("/b", 5)]);
    assert_eq!(log(), (5, vec![]), "nobody knows what there was before the first write");
    write(7, 5, vec![("/a".into(), None), put("/c", 6)]);
    write(9, 5, vec![put("/a", 9)]);
    assert_eq!(log(), (5, vec!["7/a".into(), "7/c".into(), "9/a".into()]));
    write(10, 8, vec![put("/d", 10)]);
    assert_eq!(log(), (8, vec!["9/a".into(), "10/d".into()]), "the source knows no more");
    write(11, 11, vec![put("/e", 11)]);
    assert_eq!(log(), (11, vec![]), "a snapshot does not say what changed");
    let many = (0..fairmesh_rib::DEFAULT_LOG + 1).map(|i| put(&format!("/{i}"), 12)).collect();
    write(12, 11, many);
    let (floor, log) = log();
    assert_eq!((floor, log.len()), (12, 0), "half a revision is none");
}

#[test]
fn one_process_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.redb");
    let _first = CopyFile::open(&path).unwrap();
    assert!(matches!(CopyFile::open(&path), Err(StoreError::Locked { .. })));
}

#[test]
fn a_file_that_cannot_be_read_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.redb");
    for damage in ["", "no copy at all"] {
        fs::write(&path, damage).unwrap();
        let (mut file, copied) = CopyFile::open(&path).unwrap();
        assert_eq!(copied, None, "after '{damage}'");
        assert_eq!(fs::read_to_string(folder.path().join("copy.unreadable")).unwrap(), damage);
        file.write(&Changes { revision: at(1, 1), at: time(1), floor: 0, keys: vec![put("/a", 1)] }).unwrap();
    }
}
