//! Behaviour specific to a store in a file; `contract.rs` tests the contract of every store.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use fairmesh_rib::Expect;
use fairmesh_store::{RedbStore, ReplicaFile, Store, StoreError};
use support::{batch, put};

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

#[tokio::test]
async fn store_range_includes_start_and_excludes_end() {
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
async fn new_stores_have_different_ids() {
    let (one, other) = (Folder::new(), Folder::new());
    assert_ne!(one.open().id(), other.open().id());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn opened_store_file_is_readable_by_owner_only() {
    let folder = Folder::new();
    let copy = folder.0.path().join("copy");
    for path in [folder.file(), copy] {
        let open = || match path == folder.file() {
            true => drop(folder.open()),
            false => drop(ReplicaFile::open(&path).unwrap()),
        };
        open();
        assert_eq!(mode(&path), 0o600, "a new one");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        open();
        assert_eq!(mode(&path), 0o600, "one of a release before");
    }
    fs::write(folder.file(), "something else").unwrap();
    fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o640)).unwrap();
    RedbStore::open(folder.file()).unwrap_err();
    assert_eq!(mode(&folder.file()), 0o640, "what is no store stays as it is");
}

#[test]
fn store_in_use_cannot_be_opened_again() {
    let folder = Folder::new();
    let first = folder.open();
    let refusal = RedbStore::open(folder.file()).unwrap_err();
    assert!(matches!(refusal, StoreError::Locked { .. }), "{refusal}");
    drop(first);
    folder.open();
}

#[test]
fn unusable_data_directory_is_named_in_error() {
    let folder = Folder::new();
    let taken = folder.0.path().join("data");
    fs::write(&taken, "a file where a directory should be").unwrap();
    let refusal = RedbStore::open(taken.join("store")).unwrap_err();
    assert!(matches!(refusal, StoreError::Io { .. }), "{refusal}");
    assert!(refusal.to_string().contains(taken.to_str().unwrap()), "{refusal}");
}

#[tokio::test]
async fn restored_backup_gets_new_id_and_keeps_records() {
    let folder = Folder::new();
    assert!(matches!(RedbStore::regenerate_id(folder.file()), Err(StoreError::Io { .. })), "no file, no id");
    let store = folder.open();
    store.write(batch([put("/a", "1", Expect::Any)])).await.unwrap();
    let (before, kept) = (store.id(), rows(&store).await);
    assert!(
        matches!(RedbStore::regenerate_id(folder.file()), Err(StoreError::Locked { .. })),
        "never while it serves"
    );
    drop(store);

    let renewed = RedbStore::regenerate_id(folder.file()).unwrap();
    let store = folder.open();
    assert_ne!(renewed, before);
    assert_eq!((store.id(), rows(&store).await), (renewed, kept));
}
