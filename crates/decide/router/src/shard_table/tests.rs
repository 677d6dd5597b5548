use fairmesh_model::{InstanceId, Region, Replica, ReplicaState, Role, Shard, StoreId, arith::Generator};
use proptest::prelude::*;

use super::*;

fn map(interval: KeyRange, starts: impl IntoIterator<Item = u128>) -> ShardMap {
    map_of(interval, starts, |i| i % 5, 50)
}

/// Returns a map whose shard `i` has `copies(i)` copies, spread over `servers` servers.
fn map_of(
    interval: KeyRange,
    starts: impl IntoIterator<Item = u128>,
    copies: fn(usize) -> usize,
    servers: usize,
) -> ShardMap {
    let region = Region::new("eu").unwrap();
    let shards = starts.into_iter().enumerate().map(|(i, start)| {
        let replica = |n: usize| Replica {
            instance: InstanceId::new(format!("i{}", (i * 7 + n) % servers)).unwrap(),
            region: region.clone(),
            role: Role::new(if n == 0 { "primary" } else { "secondary" }).unwrap(),
            state: if (i + n).is_multiple_of(11) { ReplicaState::Stopping } else { ReplicaState::Serving },
        };
        let id = ShardId((i as u32).wrapping_mul(2_654_435_761));
        Shard { id, start: ShardKey(start), replicas: (0..copies(i)).map(replica).collect() }
    });
    ShardMap { version: 3, interval, shards: shards.collect() }
}

fn agrees(map: &ShardMap, shards: &ShardTable, key: u128) {
    let key = ShardKey(key);
    let expected = map.position(key);
    let located = shards.locate(key);
    assert_eq!(located.map(|l| l.position as usize), expected, "key {key}");
    let (Some(position), Some(located)) = (expected, located) else { return };
    let shard = &map.shards[position];
    assert_eq!(located.shard, shard.id);
    let last = map.shards.get(position + 1).map_or(map.interval.last, |next| ShardKey(next.start.0 - 1));
    assert_eq!(shards.range(&located), KeyRange { first: shard.start, last });
    let copies: Vec<_> =
        (0..located.copies()).map(|i| shards.holdings().get(shards.copy(&located, i)).unwrap()).collect();
    assert_eq!(copies.len(), shard.replicas.len());
    for (copy, replica) in copies.into_iter().zip(&shard.replicas) {
        let same = (copy.instance, copy.role, copy.state)
            == (replica.instance.as_str(), replica.role.as_str(), replica.state);
        assert!(same, "{copy:?} is not {replica:?}");
    }
}

fn agrees_around(map: &ShardMap) {
    map.validate().unwrap();
    let shards = ShardTable::compile(map);
    for shard in &map.shards {
        for key in [shard.start.0.wrapping_sub(1), shard.start.0, shard.start.0.wrapping_add(1)] {
            agrees(map, &shards, key);
        }
    }
    let edges =
        [0, map.interval.first.0.wrapping_sub(1), map.interval.last.0, map.interval.last.0.wrapping_add(1)];
    edges.into_iter().chain([u128::MAX, u64::MAX.into()]).for_each(|key| agrees(map, &shards, key));
}

#[test]
fn example_of_paper_finds_key_618_in_shard_5() {
    let map = map(KeyRange::ALL, [0, 100, 200, 300, 400, 500, 900]);
    assert_eq!(ShardTable::compile(&map).locate(ShardKey(618)).unwrap().position, 5);
    agrees_around(&map);
}

#[test]
fn shard_table_works_with_sizes_around_full_tree_node() {
    for n in [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 4096, 4097, 5000] {
        agrees_around(&map(KeyRange::ALL, (0..n).map(|i| i * 1000)));
        agrees_around(&map(KeyRange::ALL, (0..n).map(|i| i << 100)));
    }
}

#[test]
fn shard_table_accepts_any_copy_count() {
    for n in [1, 16, 17, 300] {
        for copies in [|_| 0, |_| 1, |_| 2, |_| 33] {
            agrees_around(&map_of(KeyRange::ALL, (0..n).map(|i| i << 90), copies, 50));
        }
    }
    agrees_around(&map_of(KeyRange::ALL, (0..17_000).map(|i| i * 3), |_| 5, 70_000));
    agrees_around(&map_of(KeyRange::ALL, (0..17_000).map(|i| i * 3), |i| 2 + i % 7, 70_000));
}

#[test]
fn shard_starts_differing_only_in_last_bits_are_distinguished() {
    let clusters = (0..40_u128).flat_map(|high| (0..50).map(move |low| (high << 121) + low));
    agrees_around(&map(KeyRange::ALL, clusters));
    let top = (0..2000).map(|i| u128::MAX - 2000 + i);
    agrees_around(&map(KeyRange::ALL, std::iter::once(0).chain(top)));
}

#[test]
fn lookup_tables_take_at_most_25_bytes_per_shard_with_two_copies() {
    let mut random = Generator::new(5);
    let mut starts: Vec<u128> =
        (0..50_000).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let map = map_of(KeyRange::ALL, starts, |_| 2, 3000);
    let bytes = ShardTable::compile(&map).bytes();
    assert!(bytes < map.shards.len() * 25, "{} bytes", bytes);
}

proptest! {
    #[test]
    fn arbitrary_shard_map_round_trips(
        first: u128, width in 1_u32..=128, mut offsets in prop::collection::vec(any::<u128>(), 0..300), seed: u64,
    ) {
        let span = if width == 128 { u128::MAX } else { (1 << width) - 1 };
        let first = first.min(u128::MAX - span);
        offsets.iter_mut().for_each(|offset| *offset &= span);
        offsets.push(0);
        offsets.sort_unstable();
        offsets.dedup();
        let interval = KeyRange { first: ShardKey(first), last: ShardKey(first + span) };
        let map = map(interval, offsets.into_iter().map(|offset| first + offset));
        agrees_around(&map);
        let shards = ShardTable::compile(&map);
        let mut random = Generator::new(seed);
        for _ in 0..100 {
            let key = u128::from(random.next()) << 64 | u128::from(random.next());
            agrees(&map, &shards, key);
            agrees(&map, &shards, first + (key & span));
        }
    }
}

const STORE: StoreId = StoreId(7);

/// Returns the words of a segment of `n` shards, with or without rests, and with equal or different numbers of copies.
fn segment(n: u128, wide: bool, even: bool) -> Vec<u64> {
    let mut rows = SegmentBuilder::default();
    for i in 0..n {
        let start = if wide { i << 100 | i } else { i * 1000 };
        let copies = if even { 3 } else { i as u32 % 40 };
        rows.push(ShardId(i as u32), ShardKey(start), (0..copies).map(|copy| (copy + i as u32) % 3));
    }
    rows.encode(STORE, KeyRange::ALL)
}

fn read(words: &[u64]) -> Result<Segment, InvalidTable> {
    Segment::read(std::sync::Arc::new(words.to_vec()))
}

fn holdings(n: usize) -> Holdings {
    let mut numbers = HoldingInterner::default();
    for i in 0..n {
        let instance = InstanceId::new(format!("i{i}")).unwrap();
        numbers.intern(&instance, &Role::new("primary").unwrap(), ReplicaState::Serving);
    }
    Holdings::read(numbers.encode(STORE).into()).unwrap()
}

#[test]
fn shard_segment_is_accepted_only_with_its_own_list_of_holders() {
    let sizes = [(1, false), (1000, false), (5000, true)];
    for words in sizes.into_iter().flat_map(|(n, wide)| [true, false].map(|even| segment(n, wide, even))) {
        let segment = read(&[&words[..], &[0; 99]].concat()).expect("memory may be larger than the segment");
        assert_eq!((segment.store(), segment.range()), (STORE, KeyRange::ALL));
        let map = |holdings| ShardTable::new(1, KeyRange::ALL, vec![segment.clone()], holdings);
        assert!(segment.holders() < 3 || map(holdings(2)).is_err(), "there are three holders");
        assert_eq!(map(holdings(3)).unwrap().len(), segment.len());
        let mut again = SegmentBuilder::default();
        segment.shards().for_each(|(id, start, copies)| again.push(id, start, copies));
        assert!(again.encode(STORE, KeyRange::ALL) == words, "the words read differ from those written");
    }
    let half = KeyRange { first: ShardKey(0), last: ShardKey(9) };
    let mut rows = SegmentBuilder::default();
    rows.push(ShardId(1), ShardKey(0), []);
    let lower = read(&rows.encode(STORE, half)).unwrap();
    for segments in [vec![], vec![lower.clone()], vec![lower.clone(), lower]] {
        assert!(ShardTable::new(1, KeyRange::ALL, segments, holdings(1)).is_err());
    }
}

#[test]
fn truncated_or_changed_shard_segment_is_rejected() {
    for words in [segment(600, true, true), segment(600, true, false)] {
        assert!(read(&words).is_ok());
        rejects_truncation_and_change(&words);
    }
    let mut numbers = HoldingInterner::default();
    numbers.intern(&InstanceId::new("a").unwrap(), &Role::new("primary").unwrap(), ReplicaState::Serving);
    let list = numbers.encode(STORE);
    for at in 0..list.len() {
        assert!(Holdings::read(list[..at].to_vec().into()).is_err(), "cut at {at}");
    }
}

fn rejects_truncation_and_change(words: &[u64]) {
    for at in 0..words.len() {
        assert!(read(&words[..at]).is_err(), "cut at {at}");
        let mut changed = words.to_vec();
        changed[at] ^= 1 << (at % 64);
        assert!(read(&changed).is_err(), "word {at}");
    }
}

proptest! {
    /// A writer can forge the checksum. Every accepted segment must be readable for every key without an access out of
    /// bounds.
    #[test]
    fn hostile_shard_segment_is_rejected_or_read_within_bounds(
        n in 1_u128..700, wide: bool, even: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..4),
        keys in prop::collection::vec(any::<u128>(), 1..20),
    ) {
        let mut words = segment(n, wide, even);
        for (at, value) in changes {
            let at = at.index(words.len());
            words[at] = value;
        }
        segment::write_checksum(&mut words);
        if let Ok(segment) = read(&words)
            && let Ok(shards) = ShardTable::new(1, segment.range(), vec![segment], holdings(3))
        {
            for key in keys {
                if let Some(located) = shards.locate(ShardKey(key)) {
                    (0..located.copies()).for_each(|i| assert!(shards.copy(&located, i) < 3));
                }
            }
        }
    }

    #[test]
    fn hostile_list_of_shard_holders_is_rejected_or_read_within_bounds(
        n in 1_usize..20, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut numbers = HoldingInterner::default();
        for i in 0..n {
            let instance = InstanceId::new(format!("i{i}")).unwrap();
            numbers.intern(&instance, &Role::new("primary").unwrap(), ReplicaState::Stopping);
        }
        let mut list = numbers.encode(STORE);
        for (at, value) in changes {
            let at = at.index(list.len());
            list[at] = value;
        }
        holdings::write_checksum(&mut list);
        if let Ok(holdings) = Holdings::read(list.into()) {
            prop_assert_eq!(holdings.iter().count(), holdings.len());
        }
    }
}
