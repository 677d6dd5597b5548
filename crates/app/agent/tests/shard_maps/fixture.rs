//! An upstream with a large map, an agent over real sockets and a real directory, and programs that use the map.

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_agent::{AgentConfig, AgentError};
use fairmesh_calls::discovery::{Resolver, ResolverConfig, ServiceState, Subscription};
use fairmesh_model::{
    Identity, InstanceId, KeyRange, Location, Policy, Prefix, Protocol, Record, RecordKey, Region, Regions,
    Replica, ReplicaState, Revision, Role, Service, ServiceKind, ServiceName, Shard, ShardId, ShardKey,
    ShardMap, StoreId, arith::Generator,
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
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Maximum time of every wait. Long, because it only matters when a test fails.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct TestBackend {
    pub(crate) node: Node,
}

impl ServedRib for TestBackend {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        "test".into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::NotWritable("nowhere".into()))
    }
}

/// A running server.
pub(crate) struct RunningServer<T> {
    stop: CancellationToken,
    task: JoinHandle<T>,
}

impl<T> RunningServer<T> {
    pub(crate) async fn stop(self) -> T {
        self.stop.cancel();
        timeout(BOUND, self.task).await.expect("it ends").unwrap()
    }
}

pub(crate) struct Fixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) source: TestBackend,
    pub(crate) map: ShardMap,
    entries: BTreeMap<RecordKey, Bytes>,
}

pub(crate) fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

pub(crate) fn replica(instance: u64, region: &str) -> Replica {
    Replica {
        instance: InstanceId::new(format!("{region}-{instance}")).unwrap(),
        region: Region::new(region).unwrap(),
        role: Role::new("primary").unwrap(),
        state: ReplicaState::Serving,
    }
}

impl Fixture {
    /// A service with a map of `count` shards with random starts, each held in two regions.
    pub(crate) fn new(count: u32) -> Self {
        let mut random = Generator::new(count.into());
        let mut starts: Vec<u128> =
            (0..count).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
        starts[0] = 0;
        starts.sort_unstable();
        starts.dedup();
        let shard = |(start, id): (u128, u32)| Shard {
            // Ids are ordered differently from keys, as after years of splits and merges.
            id: ShardId(id.wrapping_mul(7919) % 1_000_003),
            start: ShardKey(start),
            replicas: ["eu", "us"].map(|region| replica(random.below(50), region)).to_vec(),
        };
        let shards = starts.into_iter().zip(0..).map(shard).collect();
        let map = ShardMap { version: 0, interval: KeyRange::ALL, shards };
        let source = TestBackend { node: Node::new(StoreId(7)) };
        let mut fixture =
            Self { folder: tempfile::tempdir().unwrap(), source, map, entries: BTreeMap::new() };
        let declared = Service {
            kind: ServiceKind::Sharded,
            protocol: Protocol::Http1,
            virtual_address: None,
            identity: None,
        };
        fixture.commit(
            [
                (RecordKey::Regions, Record::Regions(Regions::default())),
                (RecordKey::Service(cart()), declared.into()),
                (RecordKey::Policy(cart()), Policy::default().into()),
            ]
            .map(|(key, record)| (key, Some(record_encoding::encode(&record)))),
        );
        fixture.change(|_| {});
        fixture
    }

    fn commit(&self, changes: impl IntoIterator<Item = (RecordKey, Option<Bytes>)>) {
        let changes = changes.into_iter().map(|(key, value)| (Arc::from(key.to_string()), value)).collect();
        self.source.node.apply(Commit { revision: self.source.node.revision().number + 1, changes });
    }

    /// Writes the next version of the map.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut ShardMap)) {
        change(&mut self.map);
        self.map.version += 1;
        self.map.validate().unwrap();
        let after = shard_encoding::encode_map(&cart(), &self.map);
        let gone = self.entries.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), None));
        let new = after.iter().filter(|(key, value)| self.entries.get(*key) != Some(value));
        let changes: Vec<_> =
            gone.chain(new.map(|(key, value)| (key.clone(), Some(value.clone())))).collect();
        self.commit(changes);
        self.entries = after;
    }

    pub(crate) fn upstream(&self) -> Address {
        Address::Unix(self.folder.path().join("control.sock"))
    }

    pub(crate) fn socket(&self) -> Address {
        Address::Unix(self.folder.path().join("agent.sock"))
    }

    /// Serves the upstream at `address`.
    pub(crate) async fn serve(&self, address: &Address) -> RunningServer<()> {
        let stop = CancellationToken::new();
        let server = RibServer::new(self.source.clone(), stop.clone());
        let services = server.with_services(tonic::service::Routes::default());
        let listener = Transport::default().bind(address).await.unwrap();
        let stopped = stop.clone().cancelled_owned();
        let task =
            tokio::spawn(async move { serve(services, listener, stopped, Duration::ZERO).await.unwrap() });
        RunningServer { stop, task }
    }

    pub(crate) fn agent(&self) -> RunningServer<Result<(), AgentError>> {
        let config = AgentConfig {
            transport: Default::default(),
            upstreams: vec![self.upstream()],
            listen: self.socket(),
            state_dir: self.folder.path().join("state"),
            location: Location::in_region(Region::new("eu").unwrap()),
            join_token: None,
            workload_api: None,
            local_address: None,
            name: "test".into(),
            metrics: None,
            probes: None,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(fairmesh_agent::run(config, stop.clone().cancelled_owned()));
        RunningServer { stop, task }
    }

    /// A program that follows the server at `address`.
    pub(crate) fn program_at(&self, name: &str, address: Address) -> Program {
        let resolver = Resolver::start(ResolverConfig {
            upstream: FollowerConfig {
                transport: Default::default(),
                addresses: vec![address],
                software: name.to_owned(),
                backoff: Backoff::default(),
                refuse_lagging: false,
            },
            client_id: name.to_owned(),
            caller: None,
            location: None,
            fallback_location: None,
            cache_dir: Some(self.folder.path().join("state")),
            idle_timeout: fairmesh_calls::discovery::DEFAULT_IDLE_TIMEOUT,
            authorizes_callers: false,
        });
        let subscription = resolver.subscription(&cart());
        Program { _resolver: resolver, subscription }
    }

    pub(crate) fn program(&self, name: &str) -> Program {
        self.program_at(name, self.socket())
    }

    /// Waits until every watcher has acknowledged the current revision.
    pub(crate) async fn acknowledged(&self) {
        let (node, number) = (&self.source.node, self.source.node.revision().number);
        let acked = node.wait_acked(&Prefix::shards(&cart(), None), number, Instant::now() + BOUND).await;
        assert!(acked.all, "{:?}", acked.behind);
    }
}

pub(crate) struct Program {
    _resolver: Resolver<()>,
    subscription: Arc<Subscription<()>>,
}

impl Program {
    /// The map used for decisions.
    pub(crate) fn map(&self) -> Option<Arc<ShardTable>> {
        match &*self.subscription.state() {
            ServiceState::Ready(ready) => ready.upstream.shards().cloned(),
            _ => None,
        }
    }

    /// Waits until the program uses this or a later version of the map, and compares all of it.
    pub(crate) async fn wait_for_map(&self, map: &ShardMap) {
        let reached = self.subscription.map_reaches(map.version);
        timeout(BOUND, reached).await.unwrap_or_else(|_| panic!("it has {:?}", self.subscription.state()));
        self.assert_map(map);
    }

    pub(crate) fn assert_map(&self, map: &ShardMap) {
        let shards = self.map().expect("it has a map");
        assert_eq!((shards.version(), shards.len()), (map.version, map.shards.len()));
        for (position, shard) in map.shards.iter().enumerate() {
            let located = shards.locate(shard.start).unwrap();
            assert_eq!((located.shard, located.position as usize), (shard.id, position));
            let held =
                (0..located.copies()).map(|i| shards.holdings().get(shards.copy(&located, i)).unwrap());
            let held = held.map(|holding| (holding.instance, holding.role, holding.state));
            let expected =
                shard.replicas.iter().map(|copy| (copy.instance.as_str(), copy.role.as_str(), copy.state));
            assert!(held.eq(expected), "copies of shard {}", shard.id);
        }
    }
}

/// Number of segments mapped by this process, which contains the agent and all programs of a test.
pub(crate) fn mapped_segments() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("fairmesh-shards")).count()
}

/// Waits until this many segments are mapped.
pub(crate) async fn wait_for_mapped_segments(tables: usize) {
    let deadline = Instant::now() + BOUND;
    while mapped_segments() != tables {
        assert!(Instant::now() < deadline, "{} tables are mapped, and not {tables}", mapped_segments());
        sleep(Duration::from_millis(5)).await;
    }
}
