//! Large shard maps in memory that the programs of a machine share.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod fixture;

use fairmesh_model::{Prefix, RecordKey, Shard, ShardId, ShardKey, ShardMap};
use fairmesh_rib::server::ServedRib;
use fairmesh_router::SEGMENT_SHARDS;
use fairmesh_shared_memory::{DescriptorChannel, SealedMemory};
use fairmesh_wire::{
    handshake,
    shard_encoding::decode_map,
    transport::Transport,
    v1::{self, map_response::Kind},
};
use fixture::{BOUND, Fixture, cart, mapped_segments, replica, wait_for_mapped_segments};
use prost::Message;
use tokio::sync::Mutex;

/// Runs tests one at a time, because they count the memory mappings of this process.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// Number of shards for two segments; the table of holders is a third mapping.
const TWO_SEGMENTS: u32 = 90_000;
/// Splits a shard in two.
fn split(map: &mut ShardMap, place: usize) {
    let id = ShardId(map.shards.iter().map(|shard| shard.id.0).max().unwrap() + 1);
    let range = map.range(place);
    let start = ShardKey(range.first.0 + (range.last.0 - range.first.0) / 2 + 1);
    let replicas = map.shards[place].replicas.clone();
    map.shards.insert(place + 1, Shard { id, start, replicas });
}

async fn assert_maps(programs: &[fixture::Program], fixture: &Fixture) {
    fixture.acknowledged().await;
    for program in programs {
        program.assert_map(&fixture.map);
    }
}

/// Number of shards for one segment.
const ONE_SEGMENT: u32 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shard_map_changes_reach_all_programs_and_free_old_tables() {
    let _alone = EXCLUSIVE.lock().await;
    let mut fixture = Fixture::new(TWO_SEGMENTS);
    let source = fixture.serve(&fixture.upstream()).await;
    let agent = fixture.agent();
    let programs = [fixture.program("a"), fixture.program("b")];
    for program in &programs {
        program.wait_for_map(&fixture.map).await;
    }
    wait_for_mapped_segments(6).await;
    fixture.acknowledged().await;
    // A replica on a server without copies, a removed replica and an added replica.
    fixture.change(|map| map.shards[TWO_SEGMENTS as usize / 2].replicas[0] = replica(99, "eu"));
    fixture.change(|map| drop(map.shards[5].replicas.remove(1)));
    fixture.change(|map| map.shards[TWO_SEGMENTS as usize - 1].replicas.push(replica(3, "ap")));
    // Copies are grouped by region.
    fixture
        .change(|map| map.shards[TWO_SEGMENTS as usize - 1].replicas.sort_by(|a, b| a.region.cmp(&b.region)));
    fixture.acknowledged().await;
    for program in &programs {
        program.assert_map(&fixture.map);
    }
    fixture.change(|map| {
        let upper = Shard {
            id: ShardId(2_000_000),
            start: ShardKey(map.shards[1].start.0 / 2),
            replicas: map.shards[0].replicas.clone(),
        };
        map.shards.insert(1, upper);
    });
    fixture.acknowledged().await;
    for program in &programs {
        program.assert_map(&fixture.map);
    }
    // Splits next to a segment boundary and in a chunk across it, and merges inside a segment and of its first shard.
    let next = SEGMENT_SHARDS;
    for place in [next - 1, next, next + 4, 40_000] {
        fixture.change(|map| split(map, place));
        assert_maps(&programs, &fixture).await;
    }
    for place in [40_001, next + 1, next, next - 1] {
        fixture.change(|map| drop(map.shards.remove(place)));
        assert_maps(&programs, &fixture).await;
    }
    wait_for_mapped_segments(6).await;
    let [first, second] = programs;
    drop(first);
    wait_for_mapped_segments(4).await;
    second.assert_map(&fixture.map);
    drop(second);
    wait_for_mapped_segments(0).await;
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_map_readers_never_see_mixed_versions() {
    let _alone = EXCLUSIVE.lock().await;
    let mut fixture = Fixture::new(ONE_SEGMENT);
    let source = fixture.serve(&fixture.upstream()).await;
    let agent = fixture.agent();
    let program = fixture.program("a");
    program.wait_for_map(&fixture.map).await;
    let (first, last) = (fixture.map.shards[0].start, fixture.map.shards[ONE_SEGMENT as usize - 1].start);
    // Both shards move together in every version.
    for round in 0..20 {
        fixture.change(|map| {
            map.shards[0].replicas[0] = replica(100 + round, "eu");
            map.shards[ONE_SEGMENT as usize - 1].replicas[0] = replica(100 + round, "eu");
        });
        let version = fixture.map.version;
        loop {
            let map = program.map().unwrap();
            let holder = |key| {
                let located = map.locate(key).unwrap();
                map.holdings().get(map.copy(&located, 0)).unwrap().instance.to_owned()
            };
            let (a, b) = (holder(first), holder(last));
            assert!(a == b || map.version() == 1, "mixed versions: {a} and {b}");
            if map.version() >= version {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    program.assert_map(&fixture.map);
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_keeps_shard_map_without_agent_and_follows_next_agent() {
    let _alone = EXCLUSIVE.lock().await;
    let mut fixture = Fixture::new(ONE_SEGMENT);
    let source = fixture.serve(&fixture.upstream()).await;
    let agent = fixture.agent();
    let program = fixture.program("a");
    program.wait_for_map(&fixture.map).await;
    agent.stop().await.unwrap();
    program.assert_map(&fixture.map);
    assert_eq!(mapped_segments(), 1, "the program's mapping");
    // The agent builds the map from the copy on disk, without a control plane.
    source.stop().await;
    let agent = fixture.agent();
    let newcomer = fixture.program("b");
    newcomer.wait_for_map(&fixture.map).await;
    wait_for_mapped_segments(3).await;
    // Then the change arrives from the control plane.
    fixture.change(|map| map.shards[77].replicas[1] = replica(99, "us"));
    let source = fixture.serve(&fixture.upstream()).await;
    newcomer.wait_for_map(&fixture.map).await;
    program.wait_for_map(&fixture.map).await;
    fixture.acknowledged().await;
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_without_agent_builds_shard_map_from_records() {
    let _alone = EXCLUSIVE.lock().await;
    let mut fixture = Fixture::new(ONE_SEGMENT);
    let source = fixture.serve(&fixture.upstream()).await;
    let program = fixture.program_at("direct", fixture.upstream());
    program.wait_for_map(&fixture.map).await;
    assert_eq!(mapped_segments(), 0);
    fixture.change(|map| map.shards[77].replicas[1] = replica(99, "us"));
    program.wait_for_map(&fixture.map).await;
    // A program started after the agent stopped uses the saved copy, and later the returned agent.
    let agent = fixture.agent();
    fixture.program("a").wait_for_map(&fixture.map).await;
    agent.stop().await.unwrap();
    let left = fixture.program("b");
    left.wait_for_map(&fixture.map).await;
    assert_eq!(mapped_segments(), 0);
    let agent = fixture.agent();
    wait_for_mapped_segments(2).await;
    left.assert_map(&fixture.map);
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shard_record_watchers_work_beside_shared_maps() {
    let _alone = EXCLUSIVE.lock().await;
    let mut fixture = Fixture::new(ONE_SEGMENT);
    let source = fixture.serve(&fixture.upstream()).await;
    let agent = fixture.agent();
    let program = fixture.program("a");
    program.wait_for_map(&fixture.map).await;
    let read = async || {
        let connection = handshake::connect(&Default::default(), &fixture.socket(), "reader").await.unwrap();
        let prefixes = vec![Prefix::shards(&cart(), None).to_string()];
        let response = connection.rib().read(v1::ReadRequest { prefixes, at_least: None }).await.unwrap();
        let entries = response.into_inner().entries.into_iter();
        decode_map(entries.map(|entry| (RecordKey::parse(&entry.key).unwrap(), entry.value))).unwrap()
    };
    assert!(read().await == Some(fixture.map.clone()), "the records decode to another map");
    assert!(read().await == Some(fixture.map.clone()), "the records decode to another map");
    fixture.change(|map| map.shards[3].replicas[0] = replica(98, "eu"));
    program.wait_for_map(&fixture.map).await;
    agent.stop().await.unwrap();
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_map_session_that_requests_no_map_is_closed() {
    let _alone = EXCLUSIVE.lock().await;
    let fixture = Fixture::new(ONE_SEGMENT);
    let source = fixture.serve(&fixture.upstream()).await;
    let agent = fixture.agent();
    let program = fixture.program("a");
    program.wait_for_map(&fixture.map).await;
    let stream =
        Transport::default().dial(&fixture.socket().maps().unwrap()).await.unwrap().into_unix().unwrap().0;
    let mut channel = DescriptorChannel::new(stream);
    let version = *handshake::PROTOCOL.end();
    let hello = v1::HelloRequest {
        oldest_version: version,
        newest_version: version,
        software: "test".into(),
        ..Default::default()
    };
    let request = v1::MapRequest { kind: Some(v1::map_request::Kind::Hello(hello)) };
    channel.send(&request.encode_to_vec(), &[]).await.unwrap();
    assert!(channel.receive().await.unwrap().is_some(), "the handshake succeeds");
    let closed = tokio::time::timeout(BOUND, channel.receive()).await.unwrap();
    assert!(matches!(closed, Ok(None)), "{closed:?}");
    program.assert_map(&fixture.map);
    agent.stop().await.unwrap();
    source.stop().await;
}

/// Tests that programs reject unsealed memory, a missing table, and mismatched tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_rejects_unsealed_or_mismatched_shared_memory() {
    let _alone = EXCLUSIVE.lock().await;
    let fixture = Fixture::new(ONE_SEGMENT);
    let served = fixture.serve(&fixture.socket()).await;
    let listener = Transport::default().bind(&fixture.socket().maps().unwrap()).await.unwrap();
    let words = SealedMemory::seal_words("fairmesh-test", &[7; 1000]).unwrap();
    let open = std::fs::File::open("/proc/self/exe").unwrap();
    let hostile = tokio::spawn(async move {
        for attempt in 0.. {
            let mut channel = DescriptorChannel::new(
                listener.accept().await.handshake().await.unwrap().into_unix().unwrap().0,
            );
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
    let program = fixture.program("a");
    program.wait_for_map(&fixture.map).await;
    assert_eq!(program.map().unwrap().version(), 1);
    assert!(fixture.source.node().watcher_count() > 0);
    tokio::time::timeout(BOUND, async { hostile.abort() }).await.unwrap();
    served.stop().await;
}
