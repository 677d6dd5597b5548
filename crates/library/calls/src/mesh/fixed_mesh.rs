//! A mesh for unit tests.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_connections::TransportContext;
use fairmesh_model::{
    Abort, Actions, Delay, Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Invalid, KeyRange, Label,
    Location, Policy, Prefix, Protocol, Record, RecordKey, Region, Regions, Replica, ReplicaState, Role,
    Route, Service, ServiceKind, ServiceName, Shard, ShardId, ShardKey, ShardMap, Share, StoreId,
};
use fairmesh_rib::{
    Commit, Node,
    follower::{Backoff, FollowerConfig},
};
use fairmesh_wire::{record_encoding, shard_encoding, transport::Transport};
use tokio::time::Instant;

use super::{Mesh, state::MeshState, state_source::Source};
use crate::{
    discovery::{DEFAULT_IDLE_TIMEOUT, Resolver, ResolverConfig},
    fault::{Fault, FaultKind},
};

/// Region of all endpoints and of the caller.
const REGION: &str = "test";
/// Role of the shards' replicas.
const ROLE: &str = "primary";
/// Maximum wait until calls follow a change. Changes take far less time.
const APPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A mesh without control plane and agent, whose services the test defines. Calls are routed, balanced, timed out and
/// retried as in production, and go to servers of the test.
///
/// A change is in effect when its method returns. Everything also works with tokio's paused clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use fairmesh_client::{Body, FaultKind, FixedMesh, Injection, Protocol};
///
/// let fixed = FixedMesh::new()?;
/// fixed.serve("shop/cart", Protocol::Http1, ["127.0.0.1:8080".parse()?]).await?;
/// fixed.inject("shop/cart", Injection::Fault(FaultKind::Deadline)).await?;
///
/// let cart = fixed.mesh().service("shop/cart")?;
/// let fault = cart.send(http::Request::get("/").body(Body::empty())?).await.unwrap_err();
/// assert_eq!(fault.kind(), FaultKind::Deadline);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FixedMesh {
    mesh: Mesh,
    node: Node,
    faults: Arc<InjectedFaults>,
}

/// A fault, status or delay that is injected into calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Injection {
    /// A fault, as the mesh reports it.
    Fault(FaultKind),
    /// A response with this status, from 400 to 599, as the service itself would send it. gRPC callers get the
    /// corresponding code.
    Status(u16),
    /// The normal response, after this additional delay.
    Delay(Duration),
}

/// Injected faults by service.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults(Mutex<HashMap<ServiceName, FaultKind>>);

impl Mesh {
    /// Creates a mesh for tests, with services at fixed addresses that are called over HTTP/1.1. Several addresses of
    /// one service are its endpoints. [`FixedMesh`] offers more. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A name is malformed.
    pub async fn fixed<N: AsRef<str>>(
        services: impl IntoIterator<Item = (N, SocketAddr)>,
    ) -> Result<Self, Invalid> {
        let mut addresses: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
        for (name, address) in services {
            addresses.entry(name.as_ref().to_owned()).or_default().push(address);
        }
        let fixed = FixedMesh::new()?;
        for (name, addresses) in addresses {
            fixed.serve(&name, Protocol::Http1, addresses).await?;
        }
        Ok(fixed.mesh)
    }
}

impl FixedMesh {
    /// Creates a mesh without services. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// None occur: the names that it uses itself are valid.
    pub fn new() -> Result<Self, Invalid> {
        let node = Node::new(StoreId(1));
        let regions = record_encoding::encode(&Record::Regions(Regions::default()));
        commit(&node, [(RecordKey::Regions, Some(regions))]);
        let (client_id, faults) = ("test".to_owned(), Arc::default());
        let config = resolver_config(&client_id, Location::in_region(Region::new(REGION)?));
        let resolver = Resolver::start_local(config, &node);
        let mut state =
            MeshState::new(Source::Records(resolver), client_id, TransportContext::default(), None);
        state.injected_faults = Some(Arc::clone(&faults));
        Ok(Self { mesh: Mesh { state: Arc::new(state) }, node, faults })
    }

    /// The mesh, for the code under test.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Declares or changes a replicated service with an endpoint at each address. Without addresses, calls find no
    /// endpoint.
    ///
    /// # Errors
    /// The name is malformed.
    pub async fn serve(
        &self,
        name: impl AsRef<str>,
        protocol: Protocol,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<(), Invalid> {
        let name = ServiceName::new(name)?;
        let mut changes = self.service(&name, ServiceKind::Replicated, protocol);
        for (number, address) in (0..).zip(addresses) {
            changes.push(endpoint(&name, number, address)?);
        }
        self.apply(changes).await;
        Ok(())
    }

    /// Declares or changes a sharded service. Each shard is given by its first key and its server's address, in the
    /// order of keys. A shard ends where the next begins, and the last one at the largest key. The servers have the
    /// role `primary`.
    ///
    /// # Errors
    /// The name is malformed, or the keys are not in order.
    pub async fn serve_shards(
        &self,
        name: impl AsRef<str>,
        protocol: Protocol,
        shards: impl IntoIterator<Item = (u128, SocketAddr)>,
    ) -> Result<(), Invalid> {
        let name = ServiceName::new(name)?;
        let mut changes = self.service(&name, ServiceKind::Sharded, protocol);
        let mut map = Vec::new();
        for (number, (start, address)) in (0..).zip(shards) {
            changes.push(endpoint(&name, number, address)?);
            map.push(shard(number, start)?);
        }
        let version = self.node.revision().number + 1;
        let start = map.first().map_or(ShardKey(0), |shard| shard.start);
        let map = ShardMap { version, interval: KeyRange::new(start, None)?, shards: map };
        map.validate()?;
        changes.extend(
            shard_encoding::encode_map(&name, &map).into_iter().map(|(key, value)| (key, Some(value))),
        );
        self.apply(changes).await;
        Ok(())
    }

    /// Injects into every call of a service from now on; `None` stops the injection.
    ///
    /// # Errors
    /// The name is malformed, or the status is not in 400 to 599.
    pub async fn inject(
        &self,
        name: impl AsRef<str>,
        injection: impl Into<Option<Injection>>,
    ) -> Result<(), Invalid> {
        let (name, injection) = (ServiceName::new(name)?, injection.into());
        let actions = match injection {
            Some(Injection::Status(status)) => {
                Actions { abort: Some(Abort { share: Share::ALL, status }), ..Actions::default() }
            }
            Some(Injection::Delay(time)) => {
                Actions { delay: Some(Delay { share: Share::ALL, time }), ..Actions::default() }
            }
            Some(Injection::Fault(_)) | None => Actions::default(),
        };
        let policy = match actions == Actions::default() {
            true => None,
            false => {
                let policy = Policy {
                    routes: vec![Route { actions, ..Route::new(Label::new("injected")?) }],
                    ..Policy::default()
                };
                policy.validate()?;
                Some(record_encoding::encode(&policy.into()))
            }
        };
        self.faults.set(&name, injection);
        commit(&self.node, [(RecordKey::Policy(name.clone()), policy)]);
        self.applied().await;
        Ok(())
    }

    /// Returns the record of a service, and the removal of its previous records.
    fn service(&self, name: &ServiceName, kind: ServiceKind, protocol: Protocol) -> Vec<Change> {
        let (_, old) = self.node.read(&[Prefix::endpoints(name, None), Prefix::shards(name, None)]);
        let old = old.iter().filter_map(|(key, _)| RecordKey::parse(key).ok());
        let service = Service { kind, protocol, virtual_address: None, identity: None };
        let declared = (RecordKey::Service(name.clone()), Some(record_encoding::encode(&service.into())));
        old.map(|key| (key, None)).chain([declared]).collect()
    }

    async fn apply(&self, changes: Vec<Change>) {
        // The last change of a key takes effect.
        commit(&self.node, changes.into_iter().collect::<BTreeMap<_, _>>());
        self.applied().await;
    }

    /// Waits until calls follow the written records.
    async fn applied(&self) {
        let (prefix, until) = (Prefix::everything(), Instant::now() + APPLY_TIMEOUT);
        self.node.wait_acked(&prefix, self.node.revision().number, until).await;
    }
}

type Change = (RecordKey, Option<Bytes>);

impl InjectedFaults {
    fn set(&self, name: &ServiceName, injection: Option<Injection>) {
        match injection {
            Some(Injection::Fault(kind)) => drop(self.lock().insert(name.clone(), kind)),
            _ => drop(self.lock().remove(name)),
        }
    }

    /// The fault injected into calls of a service, if any.
    pub(super) fn of(&self, name: &ServiceName) -> Option<Fault> {
        let kind = *self.lock().get(name)?;
        Some(Fault::new(kind, format!("{name}: the fault '{}' is injected by a test", kind.label())))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServiceName, FaultKind>> {
        // No code under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn commit(node: &Node, changes: impl IntoIterator<Item = Change>) {
    let changes = changes.into_iter().map(|(key, value)| (Arc::from(key.to_string()), value)).collect();
    node.apply(Commit { revision: node.revision().number + 1, changes });
}

fn resolver_config(client_id: &str, location: Location) -> ResolverConfig {
    ResolverConfig {
        upstream: FollowerConfig {
            transport: Transport::default(),
            addresses: Vec::new(),
            software: format!("client {client_id}"),
            backoff: Backoff::default(),
            refuse_lagging: false,
        },
        client_id: client_id.to_owned(),
        caller: None,
        location: Some(location),
        fallback_location: None,
        cache_dir: None,
        idle_timeout: DEFAULT_IDLE_TIMEOUT,
        authorizes_callers: false,
    }
}

fn instance(number: u32) -> Result<InstanceId, Invalid> {
    InstanceId::new(format!("test-{number}"))
}

fn endpoint(name: &ServiceName, number: u32, address: SocketAddr) -> Result<Change, Invalid> {
    let (instance, region) = (instance(number)?, Region::new(REGION)?);
    let endpoint = Endpoint {
        instance: instance.clone(),
        address,
        location: Location::in_region(region.clone()),
        state: EndpointState::Serving,
        weight: FULL_WEIGHT,
        lease: None,
        labels: BTreeMap::new(),
        mtls: false,
    };
    let key = RecordKey::Endpoint(name.clone(), region, instance);
    Ok((key, Some(record_encoding::encode(&endpoint.into()))))
}

fn shard(number: u32, start: u128) -> Result<Shard, Invalid> {
    let replica = Replica {
        instance: instance(number)?,
        region: Region::new(REGION)?,
        role: Role::new(ROLE)?,
        state: ReplicaState::Serving,
    };
    Ok(Shard { id: ShardId(number), start: ShardKey(start), replicas: vec![replica] })
}
