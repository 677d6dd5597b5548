//! The processes of `shards`: the source of the map, the agent, and programs.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_agent::AgentConfig;
use fairmesh_calls::discovery::{EndpointTransport, Resolver, ResolverConfig, ServiceState, Subscription};
use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, Identity, InstanceId, KeyRange, Location, Policy, Prefix, Protocol,
    Record, RecordKey, Region, Regions, Replica, ReplicaState, Revision, Role, Service, ServiceKind,
    ServiceName, Shard, ShardId, ShardKey, ShardMap, StoreId,
    arith::{Generator, mix64},
};
use fairmesh_rib::{
    Batch, Commit, Node,
    follower::{Backoff, FollowerConfig},
    server::{RibServer, ServedRib, WriteError},
};
use fairmesh_router::ShardTable;
use fairmesh_wire::{
    record_encoding, shard_encoding,
    transport::{Address, Transport, serve},
};
use tokio_util::sync::CancellationToken;

use super::{BoxError, orders};
use crate::process_usage;

/// The sharded service of the benchmark.
fn service() -> Result<ServiceName, BoxError> {
    Ok(ServiceName::new("bench/shards")?)
}

/// Holds a RIB in memory, and changes its map on command: `move N` and `split` respond with the map's version, `behind`
/// with the number of watchers that have not acknowledged yet.
#[derive(Clone)]
struct Source {
    node: Node,
}

impl ServedRib for Source {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        "bench".into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::NotWritable("nowhere".into()))
    }
}

impl Source {
    fn commit(&self, changes: Changes) {
        self.node.apply(Commit { revision: self.node.revision().number + 1, changes });
    }

    /// Writes the differences.
    fn put_map(&self, before: &BTreeMap<RecordKey, Bytes>, after: &BTreeMap<RecordKey, Bytes>) {
        let gone = before.keys().filter(|key| !after.contains_key(key));
        let gone = gone.map(|key| (key.to_string().into(), None));
        let new = after.iter().filter(|(key, value)| before.get(key) != Some(value));
        let new = new.map(|(key, value)| (key.to_string().into(), Some(value.clone())));
        self.commit(gone.chain(new).collect());
    }
}

pub(super) async fn source(shard_count: usize, servers: usize) -> Result<(), BoxError> {
    let name = service()?;
    let source = Source { node: Node::new(StoreId(7)) };
    source.commit(declare(&name, servers)?);
    let mut map = shard_map(shard_count, servers)?;
    let mut entries = BTreeMap::new();
    if shard_count > 0 {
        let after = shard_encoding::encode_map(&name, &map);
        source.put_map(&entries, &after);
        entries = after;
    }
    let listener = Transport::default().bind(&Address::Tcp(format!("{}:0", Ipv4Addr::LOCALHOST))).await?;
    println!("{}", listener.address()?);
    let closing = CancellationToken::new();
    let services =
        RibServer::new(source.clone(), closing.clone()).with_services(tonic::service::Routes::default());
    tokio::spawn(serve(services, listener, closing.cancelled_owned(), Duration::ZERO));
    let mut lines = orders();
    while let Some(order) = lines.next_line().await? {
        if order == "behind" {
            let at = source.node.revision().number;
            let watchers = source.node.watchers(&Prefix::shards(&name, None));
            println!("{}", watchers.iter().filter(|watcher| watcher.applied < at).count());
            continue;
        }
        match order.strip_prefix("move ").map(str::parse::<u64>) {
            Some(number) => move_one(&mut map, number?, servers)?,
            None => split_one(&mut map),
        }
        map.version += 1;
        let after = shard_encoding::encode_map(&name, &map);
        source.put_map(&entries, &after);
        entries = after;
        println!("{}", map.version);
    }
    Ok(())
}

/// New values by key; `None` deletes the key.
type Changes = Vec<(Arc<str>, Option<Bytes>)>;

fn declare(name: &ServiceName, servers: usize) -> Result<Changes, BoxError> {
    let declared = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Http1,
        virtual_address: None,
        identity: None,
    };
    let mut changes = vec![
        (RecordKey::Regions, Record::Regions(Regions::default())),
        (RecordKey::Service(name.clone()), declared.into()),
        (RecordKey::Policy(name.clone()), Policy::default().into()),
    ];
    for i in 0..servers {
        let endpoint = Endpoint {
            mtls: false,
            instance: instance(i)?,
            address: (Ipv4Addr::from(0x0a00_0000 + i as u32), 80).into(),
            location: Location::in_region(region()?),
            state: EndpointState::Serving,
            weight: FULL_WEIGHT,
            lease: None,
            labels: BTreeMap::default(),
        };
        let key = RecordKey::Endpoint(name.clone(), region()?, endpoint.instance.clone());
        changes.push((key, endpoint.into()));
    }
    Ok(changes
        .into_iter()
        .map(|(key, record)| (key.to_string().into(), Some(record_encoding::encode(&record))))
        .collect())
}

fn region() -> Result<Region, BoxError> {
    Ok(Region::new("bench")?)
}

fn instance(i: usize) -> Result<InstanceId, BoxError> {
    Ok(InstanceId::new(format!("server-{i:05}:8080"))?)
}

/// Shards with pseudorandom starts in the 128-bit key space, each with a primary and a secondary.
fn shard_map(count: usize, servers: usize) -> Result<ShardMap, BoxError> {
    let mut random = Generator::new(1);
    let mut starts: Vec<u128> =
        (0..count).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
    if let Some(first) = starts.first_mut() {
        *first = 0;
    }
    starts.sort_unstable();
    starts.dedup();
    let names: Vec<InstanceId> = (0..servers).map(instance).collect::<Result<_, _>>()?;
    let (region, roles) = (region()?, [Role::new("primary")?, Role::new("secondary")?]);
    let shard = |(start, id): (u128, u32)| {
        let first = random.below(servers as u64) as usize;
        let second = (first + 1 + random.below(servers as u64 - 1) as usize) % servers;
        let replicas = [first, second].into_iter().zip(&roles).map(|(server, role)| Replica {
            instance: names[server].clone(),
            region: region.clone(),
            role: role.clone(),
            state: ReplicaState::Serving,
        });
        Shard { id: ShardId(id), start: ShardKey(start), replicas: replicas.collect() }
    };
    let shards = starts.into_iter().zip(0..).map(shard).collect();
    Ok(ShardMap { version: 1, interval: KeyRange::ALL, shards })
}

/// Moves the primary of a shard to another server.
fn move_one(map: &mut ShardMap, number: u64, servers: usize) -> Result<(), BoxError> {
    let shards = map.shards.len() as u64;
    let shard = &mut map.shards[(mix64(number) % shards) as usize];
    let taken = [shard.replicas[0].instance.clone(), shard.replicas[1].instance.clone()];
    let others = (0..).map(|i| instance((mix64(number + i) % servers as u64) as usize));
    for other in others {
        let other = other?;
        if !taken.contains(&other) {
            shard.replicas[0].instance = other;
            return Ok(());
        }
    }
    Ok(())
}

/// Splits the first shard in two.
fn split_one(map: &mut ShardMap) {
    let upper = Shard {
        id: ShardId(map.shards.len() as u32),
        start: ShardKey(map.shards[1].start.0 / 2),
        replicas: map.shards[0].replicas.clone(),
    };
    map.shards.insert(1, upper);
}

pub(super) async fn agent(dir: &Path, upstream: Address) -> Result<(), BoxError> {
    let config = AgentConfig {
        transport: Default::default(),
        upstreams: vec![upstream],
        listen: Address::Unix(dir.join("agent.sock")),
        state_dir: dir.join("agent"),
        location: Location::in_region(region()?),
        join_token: None,
        workload_api: None,
        local_address: None,
        name: "bench".into(),
        metrics: None,
        probes: None,
    };
    println!("ready");
    let ended = async {
        let mut lines = orders();
        while let Ok(Some(_)) = lines.next_line().await {}
    };
    Ok(fairmesh_agent::run(config, ended).await?)
}

/// A program that uses the map. Responds to `version` with the map's version (0 without a map), and to `look N` with
/// the nanoseconds of a look-up.
pub(super) async fn caller(dir: &Path, name: &str) -> Result<(), BoxError> {
    let resolver = Resolver::<()>::start(ResolverConfig {
        upstream: FollowerConfig {
            transport: Default::default(),
            addresses: vec![Address::Unix(dir.join("agent.sock"))],
            software: format!("client {name}"),
            backoff: Backoff::default(),
            refuse_lagging: false,
        },
        client_id: name.to_owned(),
        caller: None,
        location: None,
        fallback_location: None,
        cache_dir: None,
        idle_timeout: fairmesh_calls::discovery::DEFAULT_IDLE_TIMEOUT,
        authorizes_callers: false,
    });
    let subscription = resolver.subscription(&service()?);
    loop {
        let view = subscription.state();
        if matches!(&*view, ServiceState::Ready(_)) {
            break;
        }
        subscription.changed(&view).await;
    }
    println!("ready");
    let mut lines = orders();
    while let Some(order) = lines.next_line().await? {
        let map = map_of(&subscription);
        match (order.strip_prefix("look "), map) {
            (Some(count), Some(map)) => println!("{}", look_up(&map, count.parse()?)),
            _ => println!("{}", map_of(&subscription).map_or(0, |map| map.version())),
        }
    }
    Ok(())
}

fn map_of<L: EndpointTransport>(subscription: &Subscription<L>) -> Option<Arc<ShardTable>> {
    match &*subscription.state() {
        ServiceState::Ready(ready) => ready.upstream.shards().cloned(),
        _ => None,
    }
}

/// CPU time of a look-up in nanoseconds, as the median of five rounds. Each key depends on the previous look-up, so
/// that look-ups cannot overlap.
fn look_up(map: &ShardTable, count: u64) -> f64 {
    let mut random = Generator::new(u64::from(std::process::id()));
    let mut found = 0;
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let began = process_usage::own_cpu();
        for _ in 0..count / 5 {
            let key = ShardKey(u128::from(random.next() ^ mix64(found)) << 64 | u128::from(random.next()));
            if let Some(located) = map.locate(key) {
                found = u64::from(located.shard.0) ^ u64::from(map.copy(&located, 0));
            }
        }
        rounds.push((process_usage::own_cpu() - began).as_nanos() as f64 / (count / 5) as f64);
    }
    rounds.sort_by(f64::total_cmp);
    rounds[2]
}
