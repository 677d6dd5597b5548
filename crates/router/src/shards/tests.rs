use fairmesh_model::{Region, Replica, Shard, arith::Generator};
use proptest::prelude::*;

use super::*;

fn map(interval: KeyRange, starts: impl IntoIterator<Item = u128>) -> ShardMap {
    let region = Region::new("eu").unwrap();
    let shards = starts.into_iter().enumerate().map(|(i, start)| {
        let replica = |n: usize| Replica {
            instance: InstanceId::new(format!("i{}", (i * 7 + n) % 50)).unwrap(),
            region: region.clone(),
            role: Role::new(if n == 0 { "primary" } else { "secondary" }).unwrap(),
            state: if (i + n).is_multiple_of(11) { ReplicaState::Stopping } else { ReplicaState::Serving },
        };
        let id = ShardId((i as u32).wrapping_mul(2_654_435_761));
        Shard { id, start: ShardKey(start), replicas: (0..i % 5).map(replica).collect() }
    });
    ShardMap { version: 3, interval, shards: shards.collect() }
}

fn agrees(map: &ShardMap, shards: &Shards, key: u128) {
    let key = ShardKey(key);
    let expected = map.position(key);
    let located = shards.locate(key);
    assert_eq!(located.map(|l| l.position as usize), expected, "key {key}");
    let (Some(position), Some(located)) = (expected, located) else { return };
    let shard = &map.shards[position];
    assert_eq!(located.shard, shard.id);
    let copies: Vec<_> =
        (0..located.copies()).map(|i| &shards.holdings()[shards.copy(&located, i) as usize]).collect();
    assert_eq!(copies.len(), shard.replicas.len());
    for (copy, replica) in copies.into_iter().zip(&shard.replicas) {
        let same =
            (&copy.instance, &copy.role, copy.state) == (&replica.instance, &replica.role, replica.state);
        assert!(same, "{copy:?} is not {replica:?}");
    }
}

fn agrees_around(map: &ShardMap) {
    map.validate().unwrap();
    let shards = Shards::compile(map);
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
fn the_papers_example_finds_key_618_in_shard_5() {
    let map = map(KeyRange::ALL, [0, 100, 200, 300, 400, 500, 900]);
    assert_eq!(Shards::compile(&map).locate(ShardKey(618)).unwrap().position, 5);
    agrees_around(&map);
}

#[test]
fn every_size_around_a_full_node_works() {
    for n in [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 4096, 4097, 5000] {
        agrees_around(&map(KeyRange::ALL, (0..n).map(|i| i * 1000)));
        agrees_around(&map(KeyRange::ALL, (0..n).map(|i| i << 100)));
    }
}

#[test]
fn starts_that_differ_only_in_their_last_bits_are_told_apart() {
    let clusters = (0..40_u128).flat_map(|high| (0..50).map(move |low| (high << 121) + low));
    agrees_around(&map(KeyRange::ALL, clusters));
    let top = (0..2000).map(|i| u128::MAX - 2000 + i);
    agrees_around(&map(KeyRange::ALL, std::iter::once(0).chain(top)));
}

#[test]
fn look_ups_take_at_most_40_bytes_a_shard_and_4_a_copy() {
    let mut random = Generator::new(5);
    let mut starts: Vec<u128> =
        (0..50_000).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let map = map(KeyRange::ALL, starts);
    let copies: usize = map.shards.iter().map(|shard| shard.replicas.len()).sum();
    let bytes = Shards::compile(&map).bytes();
    assert!(bytes < map.shards.len() * 30 + copies * 4, "{} bytes a shard", bytes / map.shards.len());
}

proptest! {
    #[test]
    fn any_map_is_read_as_it_was_written(
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
        let shards = Shards::compile(&map);
        let mut random = Generator::new(seed);
        for _ in 0..100 {
            let key = u128::from(random.next()) << 64 | u128::from(random.next());
            agrees(&map, &shards, key);
            agrees(&map, &shards, first + (key & span));
        }
    }
}
