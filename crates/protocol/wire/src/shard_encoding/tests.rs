use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{
    InstanceId, KeyRange, Region, Replica, ReplicaState, Role, Shard, ShardId, ShardKey, ShardMap,
};
use proptest::{collection, prelude::*, sample::select};

use super::{chunker::is_boundary, *};

type Entries = BTreeMap<RecordKey, Bytes>;

fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

fn replica(instance: u32, region: &str, state: ReplicaState) -> Replica {
    Replica {
        instance: InstanceId::new(format!("cart-{region}-{instance}")).unwrap(),
        region: Region::new(region).unwrap(),
        role: Role::new("primary").unwrap(),
        state,
    }
}

/// A map of `count` shards, each held by one of 100 instances in each of two regions.
fn large(count: u32) -> ShardMap {
    let width = u128::MAX / u128::from(count);
    let shard = |id: u32| Shard {
        id: ShardId(id),
        start: ShardKey(width * u128::from(id)),
        replicas: ["eu", "us"].map(|region| replica(id % 100, region, ReplicaState::Serving)).to_vec(),
    };
    ShardMap { version: 1, interval: KeyRange::ALL, shards: (0..count).map(shard).collect() }
}

/// The number of manifests and chunks of each part that are new in `after`.
fn changed(before: &Entries, after: &Entries) -> BTreeMap<String, (usize, usize)> {
    let mut parts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (key, _) in after.iter().filter(|(key, value)| before.get(*key) != Some(value)) {
        match key {
            RecordKey::ShardManifest(_, part) => parts.entry(part.to_string()).or_default().0 += 1,
            RecordKey::ShardChunk(_, part, _) => parts.entry(part.to_string()).or_default().1 += 1,
            other => panic!("{other} does not belong to a map"),
        }
    }
    parts
}

fn counts(parts: [(&str, (usize, usize)); 3]) -> BTreeMap<String, (usize, usize)> {
    parts.map(|(part, count)| (part.to_owned(), count)).into()
}

#[test]
fn shard_move_changes_one_map_chunk_of_its_region() {
    let mut map = large(100_000);
    let before = encode_map(&cart(), &map);
    map.version = 2;
    map.shards[54_321].replicas[0] = replica(99, "eu", ReplicaState::Starting);
    let after = encode_map(&cart(), &map);
    assert_eq!(changed(&before, &after), counts([("ranges", (1, 0)), ("eu", (1, 1)), ("us", (1, 0))]));
    assert!(decode_map(after) == Ok(Some(map)), "the map has changed");
}

#[test]
fn shard_split_changes_one_chunk_of_each_map_part() {
    let mut map = large(100_000);
    let before = encode_map(&cart(), &map);
    // A shard at a chunk boundary would rename one more chunk.
    let id = (100_000..).map(ShardId).find(|id| !is_boundary(*id)).unwrap();
    let middle = ShardKey(map.shards[31_415].start.0 + 5);
    let upper = Shard { id, start: middle, replicas: map.shards[31_415].replicas.clone() };
    map.shards.insert(31_416, upper);
    map.version = 2;
    let after = encode_map(&cart(), &map);
    assert_eq!(changed(&before, &after), counts([("ranges", (1, 1)), ("eu", (1, 1)), ("us", (1, 1))]));
    assert!(decode_map(after) == Ok(Some(map)), "the map has changed");
}

#[test]
fn shard_map_chunks_are_bounded_and_named_by_content_hash() {
    let mut map = large(100_000);
    // Long and distinct names: chunks must also be bounded in bytes.
    for shard in &mut map.shards[..20_000] {
        shard.replicas[0].instance = InstanceId::new(format!("{:0>120}", shard.id.0)).unwrap();
    }
    let entries = encode_map(&cart(), &map);
    assert!(entries.len() > 100, "{} keys", entries.len());
    for (key, value) in &entries {
        assert_eq!(record_encoding::check(&key.to_string(), value), Ok(key.clone()));
    }
    assert!(decode_map(entries) == Ok(Some(map)), "the map has changed");
}

#[test]
fn shard_map_can_be_decoded_from_keys_of_one_region_only() {
    let map = large(3000);
    let mut entries = encode_map(&cart(), &map);
    entries.retain(|key, _| {
        !matches!(key, RecordKey::ShardManifest(_, part) | RecordKey::ShardChunk(_, part, _)
        if part.to_string() == "us")
    });
    let read = decode_map(entries).unwrap().unwrap();
    assert_eq!(read.shards.len(), 3000);
    assert!(
        read.shards
            .iter()
            .all(|shard| shard.replicas == [map.shards[shard.id.0 as usize].replicas[0].clone()])
    );
    assert_eq!(decode_map([]), Ok(None));
}

#[test]
fn missing_shard_map_keys_are_detected_unless_whole_region_is_missing() {
    let entries = encode_map(&cart(), &large(5000));
    for missing in entries.keys() {
        let rest = entries.iter().filter(|(key, _)| *key != missing);
        let read = decode_map(rest.map(|(key, value)| (key.clone(), value.clone())));
        match missing {
            RecordKey::ShardManifest(_, ShardPart::Region(_)) => assert!(read.is_ok()),
            RecordKey::ShardManifest(..) => assert!(read.unwrap_err().hint.contains("ranges")),
            _ => assert!(read.unwrap_err().problem.contains("missing"), "{missing}"),
        }
    }
}

#[test]
fn shard_map_parts_of_different_versions_are_refused() {
    let mut map = large(10);
    let mut entries = encode_map(&cart(), &map);
    map.version = 2;
    let us = RecordKey::ShardManifest(cart(), ShardPart::Region(Region::new("us").unwrap()));
    entries.insert(us.clone(), encode_map(&cart(), &map)[&us].clone());
    let error = decode_map(entries).unwrap_err();
    assert_eq!(error.field, "us.version");
}

#[test]
fn damaged_or_repeated_shard_map_chunk_is_refused() {
    let entries = encode_map(&cart(), &large(10));
    for key in entries.keys().filter(|key| matches!(key, RecordKey::ShardChunk(..))) {
        let mut damaged = entries.clone();
        let mut value = damaged[key].to_vec();
        value[0] ^= 1;
        damaged.insert(key.clone(), value.into());
        assert!(decode_map(damaged).unwrap_err().problem.contains("hashes to"));
    }
    let key = RecordKey::ShardManifest(cart(), ShardPart::Ranges);
    let mut manifest: v1::ShardManifest = record_encoding::message(&entries[&key]).unwrap();
    manifest.chunks.push(manifest.chunks[0].clone());
    assert!(record_encoding::check(&key.to_string(), &record_encoding::bytes(&manifest)).is_err());
}

/// A small map with ids in any order, as splits and merges leave it. Copies are grouped by region.
fn small() -> impl Strategy<Value = ShardMap> {
    let states = vec![ReplicaState::Starting, ReplicaState::Serving, ReplicaState::Stopping];
    let copy = (0..4_u32, select(vec!["ap", "eu", "us"]), select(states));
    let copies = collection::vec(copy, 0..5);
    let shards = collection::btree_map(1..u128::MAX, (any::<u32>(), copies), 0..20);
    (shards, 0..=1_u128, any::<u64>()).prop_map(|(drawn, first, version)| {
        let mut ids = BTreeSet::new();
        let mut shards = vec![Shard { id: ShardId(7), start: ShardKey(first), replicas: vec![] }];
        ids.insert(7);
        for (start, (id, copies)) in drawn.into_iter().filter(|(start, _)| *start > first) {
            if !ids.insert(id) {
                continue;
            }
            let mut replicas: Vec<Replica> = Vec::new();
            for (instance, region, state) in copies {
                let copy = replica(instance, region, state);
                if replicas.iter().all(|other| other.instance != copy.instance) {
                    replicas.push(copy);
                }
            }
            replicas.sort_by(|a, b| a.region.cmp(&b.region));
            shards.push(Shard { id: ShardId(id), start: ShardKey(start), replicas });
        }
        ShardMap { version, interval: KeyRange { first: ShardKey(first), last: ShardKey::MAX }, shards }
    })
}

proptest! {
    #[test]
    fn every_shard_map_round_trips_through_its_parts(map in small()) {
        prop_assert_eq!(map.validate(), Ok(()));
        prop_assert_eq!(ShardMap::try_from(v1::ShardMap::from(map.clone())), Ok(map.clone()));
        let entries = encode_map(&cart(), &map);
        for (key, value) in &entries {
            prop_assert_eq!(record_encoding::check(&key.to_string(), value), Ok(key.clone()));
        }
        prop_assert_eq!(decode_map(entries), Ok(Some(map)));
    }

    /// Chunks have arbitrary content and correct names, and a manifest lists them.
    #[test]
    fn arbitrary_shard_map_chunks_are_decoded_or_rejected(
        ids in collection::vec(0..20_u32, 0..6),
        starts in collection::vec(any::<u8>(), 0..100),
        lists in proptest::array::uniform3(collection::vec(0..3_u32, 0..6)),
        state in collection::vec(-1..4_i32, 0..6),
        counts in (0..6_u32, 0..6_u32),
    ) {
        let mut entries = Entries::new();
        let mut add = |part: ShardPart, chunk: Bytes, shards| {
            let hash = part::hash(&chunk);
            let _ = check_chunk(&part, hash, &chunk);
            let chunks = vec![Bytes::copy_from_slice(&hash.0.to_be_bytes())];
            let key = vec![0; 16].into();
            let last_key = vec![255; 16].into();
            let manifest = v1::ShardManifest { version: 1, first_key: key, last_key, chunks, shards };
            entries.insert(RecordKey::ShardChunk(cart(), part.clone(), hash), chunk);
            entries.insert(RecordKey::ShardManifest(cart(), part), record_encoding::bytes(&manifest));
        };
        let ranges = v1::RangeChunk { ids, starts: starts.into() };
        add(ShardPart::Ranges, record_encoding::bytes(&ranges), counts.0);
        let [shards, instance, role] = lists;
        let names = vec!["a".to_owned(), "b".to_owned()];
        let rows = v1::ReplicaChunk { instances: names.clone(), roles: names, shards, instance, role, state };
        add(ShardPart::Region(Region::new("eu").unwrap()), record_encoding::bytes(&rows), counts.1);
        if let Ok(map) = decode_map(entries) {
            prop_assert_eq!(map.unwrap().validate(), Ok(()));
        }
    }
}

#[test]
fn incremental_decoding_yields_same_shard_map() {
    let map = large(5000);
    let entries = encode_map(&cart(), &map);
    let part = |part: ShardPart| {
        let manifest = read_manifest(&entries[&RecordKey::ShardManifest(cart(), part.clone())]).unwrap();
        let key = move |hash: &ChunkHash| RecordKey::ShardChunk(cart(), part.clone(), *hash);
        let chunks: Vec<_> =
            manifest.chunks.iter().map(|hash| (*hash, entries[&key(hash)].clone())).collect();
        (manifest, chunks)
    };
    let (manifest, chunks) = part(ShardPart::Ranges);
    assert_eq!((manifest.version, manifest.interval, manifest.rows), (1, KeyRange::ALL, 5000));
    let mut shards = Vec::new();
    for (hash, chunk) in &chunks {
        read_ranges(*hash, chunk, |id, start| shards.push((id, start))).unwrap();
    }
    assert!(shards == map.shards.iter().map(|shard| (shard.id, shard.start)).collect::<Vec<_>>());
    let (_, chunks) = part(ShardPart::Region(Region::new("us").unwrap()));
    let mut at = 0;
    for (hash, chunk) in &chunks {
        let copies = read_copies(*hash, chunk).unwrap();
        let (first, last) = copies.span().unwrap();
        for (shard, instance, role, state) in copies.rows() {
            let copy = &map.shards[at].replicas[1];
            assert_eq!((shard, instance), (map.shards[at].id, &copy.instance));
            assert_eq!((role, state), (&copy.role, copy.state));
            assert!((first..=last).contains(&shard));
            at += 1;
        }
        assert!(read_copies(ChunkHash(1), chunk).is_err(), "its name differs");
    }
    assert_eq!(at, 5000);
}

/// The changes between two maps, as received by a watcher that holds the first map.
fn changes(before: &Entries, after: &Entries) -> BTreeMap<Arc<str>, Change> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let keys = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let change = |key: &RecordKey| {
        let after = after.get(key).map(|value| (value.clone(), 7));
        (key.to_string().into(), Change { before: before.get(key).cloned(), after })
    };
    keys.map(change).collect()
}

#[test]
fn shard_moves_and_splits_are_sent_as_patches_but_new_chunks_whole() {
    let mut map = large(20_000);
    let before = encode_map(&cart(), &map);
    map.version = 2;
    map.shards[5_432].replicas[0] = replica(200, "eu", ReplicaState::Starting);
    let after = encode_map(&cart(), &map);
    let patches = differences(&changes(&before, &after), 7);
    let bytes: Vec<_> = patches.iter().map(|(patch, keys)| (patch.encode().len(), keys.len())).collect();
    assert!(bytes.iter().all(|(bytes, _)| *bytes < 80), "{bytes:?}");
    assert_eq!(bytes.iter().map(|(_, keys)| keys).collect::<Vec<_>>(), [&3, &1, &1]);

    let highest = (20_000..).find(|id| !is_boundary(ShardId(*id))).unwrap();
    let cut =
        Shard { id: ShardId(highest), start: ShardKey(map.shards[9].start.0 + 1), ..map.shards[9].clone() };
    map.shards.insert(10, cut.clone());
    let split = encode_map(&cart(), &map);
    assert_eq!(differences(&changes(&after, &split), 7).len(), 3);

    map.shards[10].id = ShardId((20_000..).find(|id| is_boundary(ShardId(*id))).unwrap());
    let more = encode_map(&cart(), &map);
    assert!(differences(&changes(&after, &more), 7).is_empty(), "every part has one more chunk");
}

#[test]
fn damaged_shard_map_patch_never_yields_wrong_value() {
    let mut map = large(5_000);
    let before = encode_map(&cart(), &map);
    map.version = 2;
    map.shards[1_234].replicas[0] = replica(200, "eu", ReplicaState::Starting);
    let changes = changes(&before, &encode_map(&cart(), &map));
    let held = |key: &str| before.get(&RecordKey::parse(key).ok()?).cloned();
    for (patch, _) in differences(&changes, 7) {
        let encoded = patch.encode();
        for position in 0..encoded.len() {
            let mut damaged = encoded.to_vec();
            damaged[position] ^= 1 << (position % 8);
            let Ok(values) = Patch::read(&damaged).and_then(|patch| patch.apply(7, held)) else { continue };
            for (key, value) in values {
                let there = changes[key.as_str()].after.as_ref().map(|(value, _)| value);
                assert_eq!(value.as_ref().map(|(value, _)| value), there, "byte {position}");
            }
        }
    }
}
