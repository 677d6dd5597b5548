//! A replica: a process that holds the whole routing information base and serves it, so that a fleet's watchers are
//! distributed over a tree of replicas and the control plane serves only its root (ServiceRouter §3.1, §4.1).
//!
//! A replica follows one upstream, the control plane or another replica, with one subscription to everything. It
//! serves any number of watchers with `rib`'s server, which coalesces bursts by key and bounds the keys held for a
//! slow watcher. Acknowledgements of its watchers are aggregated upwards. After a restart without a reachable
//! upstream, it serves from its copy on disk, and later resumes with only the missed changes.
//!
//! Holding only the watchers' prefixes, as agents do, was rejected. A region's agents together subscribe to nearly
//! everything. A replica that holds everything also knows when a whole revision has arrived, which reads may wait for.

mod admin;
mod disk;
mod error;
mod gate;
mod metrics;
mod served_rib;
mod signals;
mod upstream_sink;

use std::{future::Future, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use disk::Disk;
pub use error::ReplicaError;
use fairmesh_listen::{Limits, Listeners, table};
use fairmesh_model::{Prefix, Region};
use fairmesh_pages::AdminListener;
use fairmesh_rib::{
    CountRelay, Forwarder, PeerInfo, PeerKind, ReportRelay,
    follower::{self, Backoff, Follower, FollowerConfig, FollowerHandle},
    server::RibServer,
};
use fairmesh_signals::SumLimits;
use fairmesh_store::ReplicaContents;
use fairmesh_wire::{
    rpc,
    transport::{Address, Listener, Services, Transport, serve},
};
use gate::{Gate, guard_calls};
use served_rib::ReplicaRib;
use signals::Reports;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use upstream_sink::{ReplicaState, UpstreamSink};

/// Time limit of calls in flight after the stop; watches end at once.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The file of the copy within the state folder.
const COPY_FILE: &str = "copy.redb";

/// The configuration of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// How connections are opened and accepted.
    pub transport: Transport,
    /// Control planes or other replicas, tried in turn; at least one.
    pub upstreams: Vec<Address>,
    /// The addresses for agents and further replicas; at least one.
    pub listen: Vec<Address>,
    /// The folder of the copy, for this replica alone.
    pub state_dir: PathBuf,
    /// Addresses at which `fairmesh rib status` reaches the replica. Empty means the addresses in `listen`.
    pub advertise: Vec<Address>,
    /// Name of this replica, for operators.
    pub name: String,
    /// Region of this replica, for operators.
    pub region: Option<Region>,
    /// The address of `/metrics`, `/healthz` and `/readyz`, if any.
    pub metrics: Option<SocketAddr>,
}

/// A replica that is ready to serve: its copy is loaded and its addresses are bound.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    shared: Arc<ReplicaState>,
    held: Option<ReplicaContents>,
    listeners: Vec<Listener>,
    admin: Option<AdminListener>,
    bounded: Listeners,
}

impl Replica {
    /// Opens the copy and binds every address. An unreachable upstream is not an error.
    ///
    /// # Errors
    /// [`ReplicaError`] naming the folder or address and the remedy.
    pub async fn start(config: ReplicaConfig) -> Result<Self, ReplicaError> {
        if config.upstreams.is_empty() {
            return Err(ReplicaError::NoUpstream);
        }
        if config.listen.is_empty() {
            return Err(ReplicaError::NoAddress);
        }
        let (disk, held) = Disk::open(config.state_dir.join(COPY_FILE)).await?;
        let bounded = Listeners::default();
        let calls = bounded.acceptor(&table::REPLICA_GRPC, Limits::calls());
        let mut listeners = Vec::new();
        for address in &config.listen {
            listeners.push(config.transport.bind(address).await?.with_joining().within(calls.clone()));
        }
        let admin = AdminListener::bind_optional(config.metrics, &bounded, &table::REPLICA_HTTP).await?;
        Ok(Self { config, shared: Arc::new(ReplicaState::new(disk)), held, listeners, admin, bounded })
    }

    /// The listening addresses, in the order of the configuration, with the ports chosen for port 0.
    pub fn addresses(&self) -> std::io::Result<Vec<Address>> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// Serves until `shutdown` completes. On return everything is on disk.
    ///
    /// # Errors
    /// When serving failed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ReplicaError> {
        let Self { config, shared, held, listeners, admin, bounded } = self;
        let upstream = follow(&config, &shared, held);
        upstream.set_peer_info(peer_info(&config, &listeners));
        let stopping = CancellationToken::new();
        let _stop_with_me = stopping.clone().drop_guard();
        let acks = follower::relay_acks(shared.node.clone(), upstream.clone(), stopping.clone());
        tokio::spawn(acks);
        let backend = ReplicaRib::new(shared.clone(), upstream.clone(), &config);
        let rates = ReportRelay::new(upstream.clone(), None, SumLimits::TREE);
        let reporting = tokio::spawn(rates.clone().run(stopping.clone()));
        let counts = CountRelay::new(upstream.clone(), SumLimits::TREE.reporters);
        // Those that stop beside this replica report their last counts while it drains.
        let all_served = CancellationToken::new();
        let _count_with_me = all_served.clone().drop_guard();
        let counting = tokio::spawn(counts.clone().run(all_served.clone()));
        let forward = Forwarder::new(upstream, "replica", stopping.clone());
        let pages = admin::Pages { backend: backend.clone(), rates: rates.clone(), listeners: bounded };
        let reports = Reports { forward, rates, counts };
        let admin = admin.map(|listener| listener.start(fairmesh_pages::router(Arc::new(pages))));
        let saving = tokio::spawn(shared.save_all(stopping.clone()));
        let mut serving = JoinSet::new();
        let services = services(backend, reports, config.transport.clone(), &stopping);
        for listener in listeners {
            if let Ok(address) = listener.address() {
                tracing::info!(%address, name = config.name, "the replica serves");
            }
            let stopped = stopping.clone().cancelled_owned();
            serving.spawn(serve(services.clone(), listener, stopped, DRAIN_TIMEOUT));
        }
        let mut ended = tokio::select! {
            () = shutdown => Ok(()),
            Some(served) = serving.join_next() => serve_result(served),
        };
        stopping.cancel();
        while let Some(served) = serving.join_next().await {
            ended = ended.and(serve_result(served));
        }
        all_served.cancel();
        // The runtime has reported a panic in one of these; the stop continues.
        let _ = saving.await;
        let _ = reporting.await;
        let _ = counting.await;
        if let Some(admin) = admin {
            admin.stop().await;
        }
        ended
    }
}

/// Runs a replica until `shutdown` completes.
///
/// # Errors
/// As for [`Replica::start`] and [`Replica::run`].
pub async fn run(config: ReplicaConfig, shutdown: impl Future<Output = ()>) -> Result<(), ReplicaError> {
    Replica::start(config).await?.run(shutdown).await
}

/// How the replica presents itself to its upstream.
fn peer_info(config: &ReplicaConfig, listeners: &[Listener]) -> PeerInfo {
    let addresses = match config.advertise.is_empty() {
        true => listeners.iter().filter_map(|listener| listener.address().ok()).collect(),
        false => config.advertise.clone(),
    };
    PeerInfo {
        kind: PeerKind::Replica,
        region: config.region.clone(),
        addresses,
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        roots: Vec::new(),
    }
}

/// Starts from the copy on disk and follows the upstream.
fn follow(
    config: &ReplicaConfig,
    shared: &Arc<ReplicaState>,
    held: Option<ReplicaContents>,
) -> FollowerHandle {
    let everything = Prefix::everything();
    let from = held.as_ref().map(|held| held.revision);
    if let Some(held) = held {
        shared.restore(held);
    }
    let transport = config.transport.clone().to_upstreams();
    let sink = UpstreamSink::new(Arc::clone(shared), transport.clone());
    let upstream = FollowerConfig {
        transport,
        addresses: config.upstreams.clone(),
        software: format!("replica {}", config.name),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    let upstream = Follower::spawn(upstream, sink);
    match from {
        Some(revision) => upstream.subscribe_from([(everything, revision)]),
        None => upstream.subscribe(everything),
    }
    upstream
}

fn services(
    backend: ReplicaRib,
    reports: Reports,
    transport: Transport,
    stopping: &CancellationToken,
) -> Services {
    let forward = reports.forward.clone();
    let others = Routes::new(rpc::registry_server(forward.clone()))
        .add_service(rpc::signals_server(reports.clone()))
        .add_service(rpc::imbalance_server(reports))
        .add_service(rpc::quota_server(forward.clone()))
        .add_service(rpc::identity_server(forward.clone()))
        .add_service(rpc::checker_server(forward));
    let gate = Gate { shared: Arc::clone(&backend.shared), transport };
    let services = RibServer::new(backend, stopping.clone()).with_services(others);
    services.map_calls(|calls| guard_calls(calls, gate))
}

fn serve_result(
    served: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> Result<(), ReplicaError> {
    match served {
        Ok(served) => served.map_err(|e| ReplicaError::Serve(e.to_string())),
        Err(panicked) => Err(ReplicaError::Serve(panicked.to_string())),
    }
}
