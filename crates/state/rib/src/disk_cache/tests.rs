use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::{Region, StoreId};

use super::*;

fn at(store: u128, number: u64) -> Revision {
    Revision { store: StoreId(store), partition: 0, number }
}

fn saved(prefix: &str, revision: Revision, seconds: u64) -> SavedCopy {
    let entry = Entry { value: Bytes::from_static(b"value"), revision: 3 };
    SavedCopy {
        prefix: Prefix::new(prefix).unwrap(),
        revision,
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        entries: vec![(format!("{prefix}key").into(), entry)],
    }
}

#[test]
fn disk_cache_loads_saved_copies_and_no_removed_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (saved("/a/", at(1, 5), 10), saved("/b/", at(1, 6), 11));
    {
        let cache = Cache::open(&folder).unwrap();
        cache.save(&a).unwrap();
        cache.save(&b).unwrap();
        assert!(matches!(Cache::open(&folder), Err(CacheError::InUse { .. })));
        assert_eq!(
            Cache::read_only(&folder).load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap(),
            Some(a.clone())
        );
    }
    let cache = Cache::open(&folder).unwrap();
    cache.remove(&a.prefix).unwrap();
    cache.remove(&a.prefix).unwrap();
    assert_eq!(cache.load_all().unwrap(), [b]);
}

#[test]
fn checkpoint_advances_revision_of_saved_copies_of_same_store() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    cache.save(&saved("/a/", at(1, 5), 10)).unwrap();
    cache.save(&saved("/b/", at(1, 9), 12)).unwrap();
    cache.checkpoint(at(1, 8), SystemTime::UNIX_EPOCH + Duration::from_secs(20)).unwrap();
    let mut numbers: Vec<_> = cache.load_all().unwrap().iter().map(|saved| saved.revision.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [8, 9]);
    cache.checkpoint(at(2, 8), SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(
        cache.load(&Prefix::new("/a/").unwrap(), SystemTime::UNIX_EPOCH).unwrap().unwrap().revision.number,
        5
    );
}

#[test]
fn disk_cache_loads_only_copies_of_last_saved_store() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    cache.save(&saved("/old/", at(1, 500), 10)).unwrap();
    let (old, new) = (Prefix::new("/old/").unwrap(), saved("/new/", at(2, 3), 20));
    cache.save(&new).unwrap();
    assert_eq!(Cache::read_only(&folder).load_all().unwrap().len(), 1);
    assert!(cache.load(&old, SystemTime::UNIX_EPOCH).unwrap().is_some(), "a reader removes nothing");
    assert_eq!(cache.load_all().unwrap(), [new]);
    assert_eq!(cache.load(&old, SystemTime::UNIX_EPOCH).unwrap(), None, "the writing process removes it");
}

#[test]
fn copy_file_with_any_damaged_byte_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    let a = saved("/a/", at(1, 5), 10);
    let whole = file_format::encode(&a);
    let path = cache.path(&a.prefix);
    for i in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[i] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap(), None, "byte {i}");
        assert!(!path.exists() && path.with_extension("unreadable").exists());
    }
    for length in 0..whole.len() {
        assert!(file_format::decode(Bytes::copy_from_slice(&whole[..length])).is_err(), "cut to {length}");
    }
    cache.save(&a).unwrap();
    assert_eq!(cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap(), Some(a));
}

#[test]
fn saved_agent_location_is_read_back_and_damage_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    assert_eq!(cache.location().unwrap(), None, "not saved yet");
    let eu =
        Location { zone: Some("eu-1".parse().unwrap()), ..Location::in_region(Region::new("eu").unwrap()) };
    cache.save_location(&eu).unwrap();
    assert_eq!(Cache::read_only(&folder).location().unwrap(), Some(eu.clone()));
    assert!(cache.load_all().unwrap().is_empty(), "it is no copy");
    let path = folder.path().join(LOCATION);
    let whole = fs::read(&path).unwrap();
    for i in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[i] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(cache.location().unwrap(), None, "byte {i}");
    }
    for length in 0..whole.len() {
        assert!(
            file_format::decode_location(Bytes::copy_from_slice(&whole[..length])).is_err(),
            "cut to {length}"
        );
    }
    assert!(file_format::decode(whole.into()).is_err(), "nor is it taken for one");
}

#[test]
fn retired_prefix_copy_keeps_its_age_and_is_loaded_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    let (a, b) = (saved("/a/", at(1, 5), 10), saved("/b/", at(1, 5), 10));
    cache.save_all(&[a.clone(), b]).unwrap();
    cache.checkpoint(at(1, 7), SystemTime::UNIX_EPOCH + Duration::from_secs(20)).unwrap();
    cache.retire(&a.prefix).unwrap();
    cache.retire(&Prefix::new("/absent/").unwrap()).unwrap();
    cache.checkpoint(at(1, 9), SystemTime::UNIX_EPOCH + Duration::from_secs(30)).unwrap();
    let numbers: Vec<_> = cache.load_all().unwrap().iter().map(|one| one.revision.number).collect();
    assert_eq!(numbers, [9], "only the followed copy");
    let retired = cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap().unwrap();
    let seconds = retired.at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!((retired.revision, seconds), (at(1, 7), 20), "later checkpoints are not about it");
    cache.save(&a).unwrap();
    assert_eq!(
        cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap().unwrap().revision,
        at(1, 9),
        "followed again"
    );
    cache.remove(&a.prefix).unwrap();
    assert_eq!(cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap(), None);
}

#[test]
fn retired_prefix_copy_is_not_loaded_after_one_day() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    let a = saved("/a/", at(1, 5), 10);
    cache.save(&a).unwrap();
    let day = a.at + retired_copies::RETENTION;
    assert!(cache.load(&a.prefix, a.at + 2 * retired_copies::RETENTION).unwrap().is_some(), "it is followed");
    cache.retire(&a.prefix).unwrap();
    assert!(cache.load(&a.prefix, day).unwrap().is_some());
    assert_eq!(cache.load(&a.prefix, day + Duration::from_secs(1)).unwrap(), None);
}

#[test]
fn oldest_retired_prefix_copies_are_removed_first() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    let (a, b) = (saved("/a/", at(1, 5), 10), saved("/b/", at(1, 5), 10));
    cache.save_all(&[a.clone(), b.clone()]).unwrap();
    for one in [&a, &b] {
        cache.retire(&one.prefix).unwrap();
    }
    let path = cache.retired_path(&a.prefix);
    let bytes = fs::metadata(&path).unwrap().len();
    fs::File::options().append(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    cache.remove_retired_beyond(2 * bytes, SystemTime::UNIX_EPOCH).unwrap();
    assert!(path.exists(), "both fit");
    cache.remove_retired_beyond(2 * bytes - 1, SystemTime::UNIX_EPOCH).unwrap();
    assert!(!path.exists() && cache.retired_path(&b.prefix).exists());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "files have times of the wall clock")]
fn retired_prefix_copy_is_removed_after_its_retention() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder).unwrap();
    let a = saved("/a/", at(1, 5), 10);
    cache.save(&a).unwrap();
    cache.retire(&a.prefix).unwrap();
    let now = SystemTime::now();
    cache.remove_old_retired(now + retired_copies::RETENTION / 2).unwrap();
    assert!(cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap().is_some());
    cache.remove_old_retired(now + 2 * retired_copies::RETENTION).unwrap();
    assert_eq!(cache.load(&a.prefix, SystemTime::UNIX_EPOCH).unwrap(), None);
}
