//! Tests of shard maps sent as patches.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use fairmesh_model::{
    InstanceId, KeyRange, Prefix, RecordKey, Region, Replica, ReplicaState, Role, ServiceName, Shard,
    ShardId, ShardKey, ShardMap, ShardPart, arith::mix64,
};
use fairmesh_rib::{
    Node, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::{
    shard_encoding,
    transport::Address,
    v1::{self, watch_request, watch_response::Kind},
    watch::{Watch, frame},
};
use proptest::{collection, prelude::*};
use tokio::time::timeout;

use crate::support::{BOUND, Memory, Server, prefix};

fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

fn replica(instance: u32, region: &str) -> Replica {
    Replica {
        instance: InstanceId::new(format!("cart-{instance:05}:8080")).unwrap(),
        region: Region::new(region).unwrap(),
        role: Role::new("primary").unwrap(),
        state: ReplicaState::Serving,
    }
}

/// A shard map in two regions.
fn map(ids: impl ExactSizeIterator<Item = u32>, servers: u32) -> ShardMap {
    let width = u128::MAX / ids.len() as u128;
    let shard = |(place, id): (u32, u32)| Shard {
        id: ShardId(id),
        start: ShardKey(width * u128::from(place)),
        replicas: ["eu", "us"].map(|region| replica(mix64(place.into()) as u32 % servers, region)).to_vec(),
    };
    ShardMap { version: 1, interval: KeyRange::ALL, shards: (0..).zip(ids).map(shard).collect() }
}

/// Shard ids. Several of them begin a chunk.
fn ids() -> std::vec::IntoIter<u32> {
    let begin = (0..).filter(|id| mix64(u64::from(*id)).is_multiple_of(2048)).take(4);
    begin.flat_map(|first| first..first + 12).collect::<Vec<_>>().into_iter()
}

/// A store with a shard map.
struct Source {
    memory: Memory,
    map: ShardMap,
    entries: BTreeMap<RecordKey, Bytes>,
}

impl Source {
    fn new(map: ShardMap) -> Self {
        let mut source = Self { memory: Memory::new(1), map, entries: BTreeMap::new() };
        source.write(false);
        source
    }

    /// Writes the differences of the map. With `ahead`, writes new chunks in a separate batch before.
    fn write(&mut self, ahead: bool) -> u64 {
        let after = shard_encoding::encode_map(&cart(), &self.map);
        let before = std::mem::replace(&mut self.entries, after);
        let gone = before.keys().filter(|key| !self.entries.contains_key(key)).map(|key| (key, None));
        let new = self.entries.iter().filter(|(key, value)| before.get(key) != Some(value));
        let changes = gone.chain(new.map(|(key, value)| (key, Some(value.clone()))));
        let is_ahead =
            |(key, value): &(String, Option<Bytes>)| ahead && value.is_some() && key.contains("/chunks/");
        let (first, rest): (Vec<_>, Vec<_>) =
            changes.map(|(key, value)| (key.to_string(), value)).partition(is_ahead);
        if !first.is_empty() {
            self.commit(first);
        }
        self.commit(rest)
    }

    fn commit(&self, changes: Vec<(String, Option<Bytes>)>) -> u64 {
        self.memory.commit(changes.iter().map(|(key, value)| (key.as_str(), value.clone())))
    }
}

#[derive(Clone, Debug)]
enum Change {
    Move {
        shard: usize,
        to: u32,
    },
    /// An instance gets a second copy, or loses its copy.
    Copy {
        shard: usize,
        on: u32,
    },
    Split {
        shard: usize,
    },
    Merge {
        shard: usize,
    },
    /// Every shard moves.
    All {
        to: u32,
    },
}

fn change() -> impl Strategy<Value = Change> {
    let shard = any::<usize>();
    prop_oneof![
        6 => (shard, 0..9_u32).prop_map(|(shard, to)| Change::Move { shard, to }),
        2 => (shard, 0..9_u32).prop_map(|(shard, on)| Change::Copy { shard, on }),
        2 => shard.prop_map(|shard| Change::Split { shard }),
        1 => shard.prop_map(|shard| Change::Merge { shard }),
        1 => (0..9_u32).prop_map(|to| Change::All { to }),
    ]
}

fn apply_change(change: &Change, map: &mut ShardMap) {
    map.version += 1;
    let count = map.shards.len();
    match *change {
        Change::Move { shard, to } => {
            map.shards[shard % count].replicas[0].instance = replica(to, "eu").instance
        }
        Change::Copy { shard, on } => {
            let copies = &mut map.shards[shard % count].replicas;
            let (more, found) = (replica(100 + on, "eu"), copies.len() > 2);
            if found { drop(copies.pop()) } else { copies.push(more) }
        }
        Change::Split { shard } => {
            let (place, id) = (shard % count, map.shards.iter().map(|shard| shard.id.0).max().unwrap() + 1);
            let range = map.range(place);
            let start = ShardKey(range.first.0 + (range.last.0 - range.first.0) / 2 + 1);
            let replicas = map.shards[place].replicas.clone();
            map.shards.insert(place + 1, Shard { id: ShardId(id), start, replicas });
        }
        Change::Merge { shard } if count > 2 => drop(map.shards.remove(1 + shard % (count - 1))),
        Change::Merge { .. } => {}
        Change::All { to } => {
            let copies = map.shards.iter_mut().map(|shard| &mut shard.replicas[0]);
            copies.zip(0..).for_each(|(copy, i)| copy.instance = replica(to + i % 7, "eu").instance);
        }
    }
}

/// Applies the upstream's updates to a node that has the bases of patches.
struct ApplyToNode {
    node: Node,
    /// Number of lookups of a base.
    lookups: Arc<AtomicUsize>,
    /// Number of lookups, from the first on, that return a wrong base.
    wrong_bases: usize,
    snapshots: Arc<AtomicUsize>,
}

impl Sink for ApplyToNode {
    const TAKES_PATCHES: bool = true;

    fn patch_base(&self, key: &str) -> Option<Bytes> {
        let held = self.node.get(key)?.value;
        if self.lookups.fetch_add(1, Ordering::Relaxed) < self.wrong_bases && key.ends_with("/manifest") {
            return Some(self.node.get(&key.replace("/eu/", "/ranges/"))?.value);
        }
        Some(held)
    }

    fn update(&mut self, update: Update) {
        self.snapshots.fetch_add(update.snapshots.len(), Ordering::Relaxed);
        self.node.apply_update(update).unwrap();
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}

/// A node that follows another node.
struct FollowingNode {
    node: Node,
    lookups: Arc<AtomicUsize>,
    snapshots: Arc<AtomicUsize>,
    _upstream: FollowerHandle,
}

impl FollowingNode {
    async fn start(address: &Address, prefixes: &[Prefix], wrong_bases: usize) -> Self {
        let config = FollowerConfig {
            transport: Default::default(),
            addresses: vec![address.clone()],
            software: "follower".into(),
            backoff: Backoff::default(),
            refuse_lagging: true,
        };
        let (node, lookups, snapshots) = (Node::replica(), Arc::default(), Arc::default());
        let sink = ApplyToNode {
            node: node.clone(),
            lookups: Arc::clone(&lookups),
            wrong_bases,
            snapshots: Arc::clone(&snapshots),
        };
        let upstream = Follower::spawn(config, sink);
        prefixes.iter().for_each(|prefix| upstream.subscribe(prefix.clone()));
        let follower = Self { node, lookups, snapshots, _upstream: upstream };
        while follower.snapshots.load(Ordering::Relaxed) < prefixes.len() {
            let next = follower.node.revision().number + 1;
            let _ = timeout(BOUND / 200, follower.node.wait_applied(next)).await;
        }
        follower
    }

    async fn is_at(&self, number: u64) {
        timeout(BOUND, self.node.wait_applied(number)).await.expect("the revision arrives");
    }
}

fn part(part: ShardPart) -> Prefix {
    Prefix::shards(&cart(), Some(&part))
}

/// Applies groups of changes, where each group may arrive as one update. Compares the results behind one node and
/// behind two.
async fn run(groups: Vec<Vec<(Change, bool)>>) {
    let mut source = Source::new(map(ids(), 9));
    let server = Server::start(source.memory.clone(), "127.0.0.1:0").await;
    let between = FollowingNode::start(&server.address, &[prefix("/")], 0).await;
    let second = Server::start(Memory { node: between.node.clone() }, "127.0.0.1:0").await;
    let followed = [part(ShardPart::Ranges), part(ShardPart::Region(Region::new("eu").unwrap()))];
    let last = FollowingNode::start(&second.address, &followed, 0).await;
    for group in groups {
        let mut number = 0;
        for (change, ahead) in group {
            apply_change(&change, &mut source.map);
            number = source.write(ahead);
        }
        between.is_at(number).await;
        last.is_at(number).await;
        assert_eq!(between.node.read(&[prefix("/")]), source.memory.node.read(&[prefix("/")]));
        assert_eq!(last.node.read(&followed).1, source.memory.node.read(&followed).1);
    }
    assert_eq!(between.snapshots.load(Ordering::Relaxed), 1, "no prefix was fetched again");
    assert_eq!(last.snapshots.load(Ordering::Relaxed), 2, "no prefix was fetched again");
    server.stop().await;
    second.stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nodes_updated_by_value_patches_equal_store(
        groups in collection::vec(collection::vec((change(), proptest::bool::weighted(0.1)), 1..4), 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(groups));
    }
}

/// Opens a watch of all prefixes, and reads its snapshot.
async fn watch(server: &Server, patches: bool) -> Watch {
    let mut watch = Watch::open(&Default::default(), &server.address, "raw").await.unwrap();
    let subscribe = v1::Subscribe { prefix: "/".into(), patches, ..Default::default() };
    watch.send(&v1::WatchRequest { kind: Some(watch_request::Kind::Subscribe(subscribe)) });
    while next(&mut watch).await.more {}
    watch
}

async fn next(watch: &mut Watch) -> v1::WatchResponse {
    timeout(BOUND, watch.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn shard_move_is_sent_as_patches_to_readers_that_support_them() {
    let mut source = Source::new(map(0..20_000, 3000));
    let server = Server::start(source.memory.clone(), "127.0.0.1:0").await;
    let between = FollowingNode::start(&server.address, &[prefix("/")], 0).await;
    let second = Server::start(Memory { node: between.node.clone() }, "127.0.0.1:0").await;
    let mut able = [watch(&server, true).await, watch(&second, true).await];
    let mut unable = watch(&second, false).await;
    for step in 0..5 {
        apply_change(&Change::Move { shard: 3000 * step, to: 2000 + step as u32 }, &mut source.map);
        source.write(false);
        for watch in &mut able {
            let message = next(watch).await;
            let Some(Kind::Delta(delta)) = &message.kind else { panic!("{message:?}") };
            assert_eq!((delta.puts.len(), delta.deletes.len(), delta.patches.len()), (0, 0, 3));
            // The third patch belongs to a region that an agent in another region does not follow.
            let bytes = frame(&message).len() - delta.patches[2].len() - 2;
            assert!(bytes <= 200, "{bytes} bytes");
        }
        let (mut puts, mut deletes, mut more) = (0, 0, true);
        while more {
            let message = next(&mut unable).await;
            let Some(Kind::Delta(delta)) = &message.kind else { panic!("{message:?}") };
            assert!(delta.patches.is_empty());
            (puts, deletes, more) = (puts + delta.puts.len(), deletes + delta.deletes.len(), message.more);
        }
        assert_eq!((puts, deletes), (4, 1));
    }
    assert!(between.lookups.load(Ordering::Relaxed) > 0);
    server.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn value_patch_with_mismatched_base_causes_snapshot() {
    let mut source = Source::new(map(ids(), 9));
    let server = Server::start(source.memory.clone(), "127.0.0.1:0").await;
    let follower = FollowingNode::start(&server.address, &[prefix("/")], 1).await;
    for to in 0..3 {
        apply_change(&Change::Move { shard: 7, to: 20 + to }, &mut source.map);
        let number = source.write(false);
        follower.is_at(number).await;
        assert_eq!(follower.node.read(&[prefix("/")]), source.memory.node.read(&[prefix("/")]));
    }
    assert_eq!(follower.snapshots.load(Ordering::Relaxed), 2);
    server.stop().await;
}
