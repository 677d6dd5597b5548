//! A RIB server on a Unix socket, in place of an agent, and its records.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::{Body, Fault, Mesh, ServiceHandle};
use fairmesh_model::{
    Backend, DefaultsScope, Endpoint, EndpointState, Identity, InstanceId, KeyRange, Label, Location, Match,
    PathMatch, Policy, PolicyDefaults, Prefix, Protocol, Record, RecordKey, Region, Regions, Replica,
    ReplicaState, Revision, Role, Route, Service, ServiceKind, ServiceName, Shard, ShardId, ShardKey,
    ShardMap, StoreId, Verdict,
};
use fairmesh_rib::{
    Batch, Commit, Node,
    server::{RibServer, ServedRib, WriteError},
};
use fairmesh_test_support::endpoint;
pub(crate) use fairmesh_test_support::{PATIENCE, eventually as until};
use fairmesh_wire::{
    record_encoding, shard_encoding,
    transport::{Address, Transport},
};
use http_body_util::BodyExt as _;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) struct Rig {
    pub(crate) node: Node,
    folder: TempDir,
    refusal: Refusal,
    agent: Option<(CancellationToken, JoinHandle<()>)>,
}

#[derive(Clone)]
struct Agent {
    node: Node,
    refusal: Refusal,
}

/// Why the agent refuses to serve; `None` while it serves.
type Refusal = Arc<Mutex<Option<String>>>;

impl ServedRib for Agent {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        "test agent".into()
    }

    fn location(&self) -> Option<Location> {
        Some(Location::in_region(region("eu")))
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::NotWritable("nowhere".into()))
    }

    async fn ready(&self, _: &Prefix) -> Result<(), String> {
        self.refusal.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

impl Rig {
    pub(crate) async fn start() -> Self {
        let node = Node::new(StoreId(7));
        let mut rig =
            Self { node, folder: TempDir::new().unwrap(), refusal: Refusal::default(), agent: None };
        rig.write([(
            RecordKey::Regions,
            Some(record_encoding::encode(&Record::Regions(Regions::default()))),
        )]);
        rig.start_agent().await;
        rig
    }

    pub(crate) async fn start_agent(&mut self) {
        let stop = CancellationToken::new();
        let agent = Agent { node: self.node.clone(), refusal: self.refusal.clone() };
        let services = RibServer::new(agent, stop.clone()).with_services(tonic::service::Routes::default());
        let listener = Transport::default().bind(&self.address()).await.unwrap();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            fairmesh_wire::transport::serve(services, listener, stopped, Duration::ZERO).await.unwrap();
        });
        self.agent = Some((stop, task));
    }

    pub(crate) async fn stop_agent(&mut self) {
        let (stop, task) = self.agent.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    /// Makes the agent refuse subscriptions for this reason, or serve them again.
    pub(crate) fn refuse(&self, why: Option<&str>) {
        *self.refusal.lock().unwrap() = why.map(str::to_owned);
    }

    pub(crate) fn address(&self) -> Address {
        Address::Unix(self.folder.path().join("agent.sock"))
    }

    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub(crate) async fn mesh(&self) -> Mesh {
        let mesh = Mesh::builder().agent(self.address()).client_id("test").cache_dir(self.cache_dir());
        mesh.connect().await.unwrap()
    }

    pub(crate) fn write(&self, changes: impl IntoIterator<Item = (RecordKey, Option<Bytes>)>) {
        let changes = changes.into_iter().map(|(key, value)| (Arc::from(key.to_string()), value)).collect();
        self.node.apply(Commit { revision: self.node.revision().number + 1, changes });
    }

    pub(crate) fn service(&self, name: &str, kind: ServiceKind, protocol: Protocol) {
        let service = Service { kind, protocol, virtual_address: None, identity: None };
        self.write([(RecordKey::Service(named(name)), Some(record_encoding::encode(&service.into())))]);
    }

    pub(crate) fn replicated(&self, name: &str, protocol: Protocol, servers: &[SocketAddr]) {
        self.service(name, ServiceKind::Replicated, protocol);
        for (i, address) in servers.iter().enumerate() {
            self.endpoint(name, &format!("i{i}"), *address, EndpointState::Serving);
        }
    }

    pub(crate) fn endpoint(&self, name: &str, instance: &str, address: SocketAddr, state: EndpointState) {
        self.write_endpoint(name, Endpoint { address, state, ..endpoint(instance, "eu") });
    }

    pub(crate) fn write_endpoint(&self, name: &str, endpoint: Endpoint) {
        let key = endpoint_key(name, endpoint.instance.as_str());
        self.write([(key, Some(record_encoding::encode(&endpoint.into())))]);
    }

    /// Records a verdict of the region's checker that an endpoint is unhealthy.
    pub(crate) fn unhealthy(&self, name: &str, instance: &str) {
        let key = RecordKey::Health(named(name), region("eu"), InstanceId::new(instance).unwrap());
        let verdict =
            Verdict { healthy: false, since_ms: 0, confidence: 950, cause: "test".into(), stale: false };
        self.write([(key, Some(record_encoding::encode(&Record::Verdict(verdict))))]);
    }

    pub(crate) fn remove_endpoint(&self, name: &str, instance: &str) {
        self.write([(endpoint_key(name, instance), None)]);
    }

    pub(crate) fn policy(&self, name: &str, policy: Policy) {
        self.write([(RecordKey::Policy(named(name)), Some(record_encoding::encode(&policy.into())))]);
    }

    /// Writes policy defaults of a tenant, or of the mesh if the name is empty.
    pub(crate) fn policy_defaults(&self, tenant: &str, policy: &Policy) {
        let key = RecordKey::PolicyDefaults(DefaultsScope::named(tenant).unwrap());
        let defaults = PolicyDefaults::new(policy).unwrap();
        self.write([(key, Some(record_encoding::encode(&defaults.into())))]);
    }

    pub(crate) fn shard_map(&self, name: &str, map: &ShardMap) {
        let name = named(name);
        let new = shard_encoding::encode_map(&name, map);
        let (_, old) = self.node.read(&[Prefix::shards(&name, None)]);
        let gone = old
            .into_iter()
            .map(|(key, _)| RecordKey::parse(&key).unwrap())
            .filter(|key| !new.contains_key(key));
        let changes: Vec<_> = gone.map(|key| (key, None)).collect();
        self.write(
            changes.into_iter().chain(new.iter().map(|(key, value)| (key.clone(), Some(value.clone())))),
        );
    }
}

fn endpoint_key(name: &str, instance: &str) -> RecordKey {
    RecordKey::Endpoint(named(name), region("eu"), InstanceId::new(instance).unwrap())
}

pub(crate) fn named(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

pub(crate) fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

/// Returns a map with one shard for the keys below 100, held by these instances as `primary`.
pub(crate) fn map(version: u64, holders: &[&str]) -> ShardMap {
    let replica = |instance: &&str| Replica {
        instance: InstanceId::new(instance).unwrap(),
        region: region("eu"),
        role: Role::new("primary").unwrap(),
        state: ReplicaState::Serving,
    };
    let replicas = holders.iter().map(replica).collect();
    let shards = vec![Shard { id: ShardId(0), start: ShardKey(0), replicas }];
    ShardMap { version, interval: KeyRange::new(ShardKey(0), Some(ShardKey(100))).unwrap(), shards }
}

/// Returns a policy that sends all requests below a path to another service.
pub(crate) fn split(path: &str, service: &str) -> Policy {
    let route = Route {
        matches: Match { path: Some(PathMatch::Prefix(path.into())), ..Match::default() },
        split: vec![Backend { service: named(service), weight: 1 }],
        ..Route::new(Label::new("split").unwrap())
    };
    Policy { routes: vec![route], ..Policy::default() }
}

/// Sends a request and reads the whole response. Returns its status and text.
pub(crate) async fn ask(
    service: &ServiceHandle,
    request: http::Request<Body>,
) -> Result<(u16, String), Fault> {
    let response = service.send(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8(body.to_vec()).unwrap()))
}

pub(crate) fn get(path: &str) -> http::Request<Body> {
    http::Request::get(path).body(Body::empty()).unwrap()
}

pub(crate) fn post(path: &str, body: &'static str) -> http::Request<Body> {
    http::Request::post(path).body(Body::from(body)).unwrap()
}
