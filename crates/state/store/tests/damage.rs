//! A damaged or foreign store file is refused with a hint and stays unchanged. It is never taken for an empty store.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{fs, path::Path};

use fairmesh_rib::Expect;
use fairmesh_store::{RedbStore, Store, StoreError};
use redb::TableDefinition;
use support::{Random, batch, put};

const ROWS: usize = 400;

fn rows(path: &Path) -> Result<Vec<String>, StoreError> {
    let store = RedbStore::open(path)?;
    let (_, entries) = runtime().block_on(store.load())?;
    Ok(entries.into_iter().map(|(key, entry)| format!("{key} {entry:?}")).collect())
}

fn fill(path: &Path) -> RedbStore {
    let store = RedbStore::open(path).unwrap();
    for i in 0..ROWS / 20 {
        let ops = (0..20).map(|j| put(format!("/{i}/{j}"), vec![b'v'; 300], Expect::Absent));
        runtime().block_on(store.write(batch(ops))).unwrap();
    }
    store
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Asserts that the store is refused, that the error names its path, and that the file is unchanged.
fn refused(path: &Path) -> StoreError {
    let before = fs::read(path).unwrap();
    let refusal = rows(path).unwrap_err();
    assert!(refusal.to_string().contains(path.to_str().unwrap()), "{refusal}");
    assert_eq!(fs::read(path).unwrap(), before, "a refused file is unchanged");
    refusal
}

#[test]
fn files_of_other_formats_are_refused_as_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    fs::write(&path, "kind: Service\n".repeat(1000)).unwrap();
    assert!(matches!(refused(&path), StoreError::Foreign { .. }));

    fs::remove_file(&path).unwrap();
    let other = redb::Database::create(&path).unwrap();
    let transaction = other.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u32, u32>::new("theirs")).unwrap();
    transaction.commit().unwrap();
    drop(other);
    assert!(matches!(refused(&path), StoreError::Foreign { .. }));
}

#[test]
fn store_file_of_newer_format_is_refused_as_newer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    drop(fill(&path));
    let database = redb::Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = TableDefinition::<&str, u128>::new("fairmesh.meta");
    transaction.open_table(meta).unwrap().insert("format", 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    assert!(matches!(refused(&path), StoreError::NewerFormat { found: 2, known: 1, .. }));
}

#[test]
fn empty_or_truncated_store_file_counts_as_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    drop(fill(&path));
    let whole = fs::read(&path).unwrap();
    for length in [0, 5, 4096, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let refusal = refused(&path);
        assert!(
            matches!(refusal, StoreError::Corrupt { .. } | StoreError::Foreign { .. }),
            "{length}: {refusal}"
        );
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(rows(&path).unwrap().len(), ROWS);
}

#[test]
fn flipped_bits_in_store_file_are_detected_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = fill(&path);
    let killed = fs::read(&path).unwrap();
    drop(store);
    let closed = fs::read(&path).unwrap();
    let expected = rows(&path).unwrap();
    let mut random = Random::new(5);
    for whole in [closed, killed] {
        let mut detected = 0;
        for round in 0..400 {
            // Flips every byte of the header first, then bytes anywhere.
            let at =
                if round < 320 { round } else { usize::try_from(random.below(whole.len() as u64)).unwrap() };
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << random.below(8);
            fs::write(&path, &damaged).unwrap();
            match rows(&path) {
                Ok(found) => assert!(found == expected, "byte {at}: other content than was written"),
                Err(_) => detected += 1,
            }
        }
        assert!(detected > 50, "{detected}");
    }
}

#[test]
fn interrupted_creation_of_store_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    fs::write(folder.path().join("store.new"), "half a header").unwrap();
    drop(fill(&path));
    assert_eq!(rows(&path).unwrap().len(), ROWS);
}

#[test]
fn store_verification_finds_flipped_bits_while_open() {
    use std::os::unix::fs::FileExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = fill(&path);
    runtime().block_on(store.verify()).unwrap();
    runtime().block_on(store.write(batch([put("/more", b"x".to_vec(), Expect::Absent)]))).unwrap();
    runtime().block_on(store.verify()).unwrap();
    let whole = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Overwrites all values wherever they lie, because free pages are not verified.
    for (start, _) in whole.windows(100).enumerate().filter(|(_, bytes)| *bytes == [b'v'; 100]).step_by(50) {
        file.write_at(b"w", start as u64).unwrap();
    }
    assert!(matches!(runtime().block_on(store.verify()), Err(StoreError::Corrupt { .. })));
    assert_eq!(
        runtime().block_on(store.load()).unwrap().1.len(),
        ROWS + 1,
        "it is read on, from what it has"
    );
}
