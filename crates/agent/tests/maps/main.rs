//! Large shard maps as memory that programs of a machine share.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod world;

use fairmesh_model::{Prefix, RecordKey, Shard, ShardId, ShardKey, ShardMap};
use fairmesh_rib::server::Backend;
use fairmesh_router::SEGMENT_SHARDS;
use fairmesh_shared_memory::{DescriptorChannel, SealedMemory};
use fairmesh_wire::{
    handshake,
    shards::decode_map,
    transport::{Listener, Plaintext, Transport},
    v1::{self, map_response::Kind},
};
use prost::Message;
use tokio::sync::Mutex;
use world::{BOUND, World, cart, comes_to, mapped, replica};

/// Tests count what this process maps.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Two tables of shards, one of holders.
const LARGE: u32 = 90_000;
/// Cuts a shard in two.
fn split(map: &mut ShardMap, place: usize) {
    let id = ShardId(map.shards.iter().map(|shard| shard.id.0).max().unwrap() + 1);
    let range = map.range(place);
    let start = ShardKey(range.first.0 + (range.last.0 - range.first.0) / 2 + 1);
    let replicas = map.shards[place].replicas.clone();
    map.shards.insert(place + 1, Shard { id, start, replicas });
}

async fn agree(programs: &[world::Program], world: &World) {
    world.acknowledged().await;
    for program in programs {
        program.agrees(&world.map);
    }
}

/// One table.
const SMALLER: u32 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_reaches_every_program_and_what_is_old_is_freed() {
    let _alone = ALONE.lock().await;
    let mut world = World::new(LARGE);
    let source = world.serve(&world.upstream()).await;
    let agent = world.agent();
    let programs = [world.program("a"), world.program("b")];
    for program in &programs {
        program.decides_by(&world.map).await;
    }
    comes_to(6).await;
    world.acknowledged().await;
    // A move to a server that held nothing before, one that ends a copy, one that begins one.
    world.change(|map| map.shards[LARGE as usize / 2].replicas[0] = replica(99, "eu"));
    world.change(|map| drop(map.shards[5].replicas.remove(1)));
    world.change(|map| map.shards[LARGE as usize - 1].replicas.push(replica(3, "ap")));
    // Copies are grouped by region.
    world.change(|map| map.shards[LARGE as usize - 1].replicas.sort_by(|a, b| a.region.cmp(&b.region)));
    world.acknowledged().await;
    for program in &programs {
        program.agrees(&world.map);
    }
    world.change(|map| {
        let upper = Shard {
            id: ShardId(2_000_000),
            start: ShardKey(map.shards[1].start.0 / 2),
            replicas: map.shards[0].replicas.clone(),
        };
        map.shards.insert(1, upper);
    });
    world.acknowledged().await;
    for program in &programs {
        program.agrees(&world.map);
    }
    // Splits on both sides of where one table ends and in a chunk across it, a merge inside, and one of the shard with
    // which a table begins.
    let next = SEGMENT_SHARDS;
    for place in [next - 1, next, next + 4, 40_000] {
        world.change(|map| split(map, place));
        agree(&programs, &world).await;
    }
    for place in [40_001, next + 1, next, next - 1] {
        world.change(|map| drop(map.shards.remove(place)));
        agree(&programs, &world).await;
    }
    comes_to(6).await;
    let [first, second] = programs;
    drop(first);
    comes_to(4).await;
    second.agrees(&world.map);
    drop(second);
    comes_to(0).await;
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_whole_versions_while_they_are_swapped() {
    let _alone = ALONE.lock().await;
    let mut world = World::new(SMALLER);
    let source = world.serve(&world.upstream()).await;
    let agent = world.agent();
    let program = world.program("a");
    program.decides_by(&world.map).await;
    let (first, last) = (world.map.shards[0].start, world.map.shards[SMALLER as usize - 1].start);
    // Both shards move together in every version.
    for round in 0..20 {
        world.change(|map| {
            map.shards[0].replicas[0] = replica(100 + round, "eu");
            map.shards[SMALLER as usize - 1].replicas[0] = replica(100 + round, "eu");
        });
        let version = world.map.version;
        loop {
            let map = program.map().unwrap();
            let holder = |key| {
                let located = map.locate(key).unwrap();
                map.holdings().get(map.copy(&located, 0)).unwrap().instance.to_owned()
            };
            let (a, b) = (holder(first), holder(last));
            assert!(a == b || map.version() == 1, "half of another version: {a} and {b}");
            if map.version() >= version {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    program.agrees(&world.map);
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_goes_leaves_the_map_and_one_that_comes_brings_the_next() {
    let _alone = ALONE.lock().await;
    let mut world = World::new(SMALLER);
    let source = world.serve(&world.upstream()).await;
    let agent = world.agent();
    let program = world.program("a");
    program.decides_by(&world.map).await;
    agent.stop().await.unwrap();
    program.agrees(&world.map);
    assert_eq!(mapped(), 1, "the program's own");
    // From the copy on disk, while there is no control plane.
    source.stop().await;
    let agent = world.agent();
    let newcomer = world.program("b");
    newcomer.decides_by(&world.map).await;
    comes_to(3).await;
    // And on from there.
    world.change(|map| map.shards[77].replicas[1] = replica(99, "us"));
    let source = world.serve(&world.upstream()).await;
    newcomer.decides_by(&world.map).await;
    program.decides_by(&world.map).await;
    world.acknowledged().await;
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_without_agent_reads_the_map_itself() {
    let _alone = ALONE.lock().await;
    let mut world = World::new(SMALLER);
    let source = world.serve(&world.upstream()).await;
    let program = world.program_at("direct", world.upstream());
    program.decides_by(&world.map).await;
    assert_eq!(mapped(), 0);
    world.change(|map| map.shards[77].replicas[1] = replica(99, "us"));
    program.decides_by(&world.map).await;
    // An agent leaves its copy behind; a program that starts when it is gone goes by that, and by the agent once it is back.
    let agent = world.agent();
    world.program("a").decides_by(&world.map).await;
    agent.stop().await.unwrap();
    let left = world.program("b");
    left.decides_by(&world.map).await;
    assert_eq!(mapped(), 0);
    let agent = world.agent();
    comes_to(2).await;
    left.agrees(&world.map);
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_the_parts_gets_them_beside_those_who_share_the_map() {
    let _alone = ALONE.lock().await;
    let mut world = World::new(SMALLER);
    let source = world.serve(&world.upstream()).await;
    let agent = world.agent();
    let program = world.program("a");
    program.decides_by(&world.map).await;
    let read = async || {
        let connection = handshake::connect(&world.socket(), "reader").await.unwrap();
        let prefixes = vec![Prefix::shards(&cart(), None).to_string()];
        let answer = connection.rib().read(v1::ReadRequest { prefixes, at_least: None }).await.unwrap();
        let entries = answer.into_inner().entries.into_iter();
        decode_map(entries.map(|entry| (RecordKey::parse(&entry.key).unwrap(), entry.value))).unwrap()
    };
    assert!(read().await == Some(world.map.clone()), "the parts make another map");
    assert!(read().await == Some(world.map.clone()), "the parts make another map");
    world.change(|map| map.shards[3].replicas[0] = replica(98, "eu"));
    program.decides_by(&world.map).await;
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_nothing_keeps_no_place() {
    let _alone = ALONE.lock().await;
    let world = World::new(SMALLER);
    let source = world.serve(&world.upstream()).await;
    let agent = world.agent();
    let program = world.program("a");
    program.decides_by(&world.map).await;
    let stream = Plaintext.dial(&world.socket().maps().unwrap()).await.unwrap().into_unix().unwrap().0;
    let mut channel = DescriptorChannel::new(stream);
    let version = *handshake::PROTOCOL.end();
    let hello =
        v1::HelloRequest { oldest_version: version, newest_version: version, software: "test".into() };
    let request = v1::MapRequest { kind: Some(v1::map_request::Kind::Hello(hello)) };
    channel.send(&request.encode_to_vec(), &[]).await.unwrap();
    assert!(channel.receive().await.unwrap().is_some(), "it is greeted");
    let closed = tokio::time::timeout(BOUND, channel.receive()).await.unwrap();
    assert!(matches!(closed, Ok(None)), "{closed:?}");
    program.agrees(&world.map);
    agent.stop().await.unwrap();
    source.stop().await;
}

/// Whoever hands over what is not sealed, or no table, or nothing that belongs together, is believed in nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_trusted_is_not_read() {
    let _alone = ALONE.lock().await;
    let world = World::new(SMALLER);
    let served = world.serve(&world.socket()).await;
    let listener = Listener::bind(&world.socket().maps().unwrap()).await.unwrap();
    let words = SealedMemory::seal_words("fairmesh-test", &[7; 1000]).unwrap();
    let open = std::fs::File::open("/proc/self/exe").unwrap();
    let hostile = tokio::spawn(async move {
        for attempt in 0.. {
            let mut channel = DescriptorChannel::new(listener.accept().await.into_unix().unwrap().0);
            let send = async |kind, handles: &[_]| {
                let response = v1::MapResponse { kind: Some(kind) };
                let _ = channel.send(&response.encode_to_vec(), handles).await;
            };
            let hello = v1::HelloResponse { version: *handshake::PROTOCOL.end(), ..Default::default() };
            send(Kind::Hello(hello), &[]).await;
            let handle =
                if attempt % 2 == 0 { std::os::fd::AsFd::as_fd(&open) } else { words.descriptor().unwrap() };
            send(Kind::Tables(v1::MapTables { ids: vec![1] }), &[handle]).await;
            let name = Some(v1::MapName { service: cart().to_string(), region: String::new() });
            let (first_key, last_key) = (vec![0; 16].into(), vec![255; 16].into());
            let map = v1::SharedMap { name, version: 9, first_key, last_key, segments: vec![1], holders: 1 };
            send(Kind::Map(map), &[]).await;
            while let Ok(Some(_)) = channel.receive().await {}
        }
    });
    let program = world.program("a");
    program.decides_by(&world.map).await;
    assert_eq!(program.map().unwrap().version(), 1);
    assert!(world.source.node().watcher_count() > 0);
    tokio::time::timeout(BOUND, async { hostile.abort() }).await.unwrap();
    served.stop().await;
}
