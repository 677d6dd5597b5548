//! A replica: a process that holds the whole routing information base and serves it. A fleet's watchers are spread
//! over a tree of replicas, so that the control plane serves only the root of the tree (ServiceRouter §3.1, §4.1).
//!
//! A replica follows one upstream, the control plane or another replica, with a single subscription to everything. It
//! serves any number of watchers with the server in `rib`, which coalesces bursts by key and bounds the keys held for
//! a slow watcher. Acknowledgements of its watchers are aggregated and passed upstream. After a restart without a
//! reachable upstream, it serves from its copy on disk, and later fetches only the changes that it missed.
//!
//! Holding only the prefixes that watchers follow, as agents do, was rejected. The agents of a region together
//! subscribe to nearly everything. A replica that holds everything also knows when a whole revision has arrived, for
//! which reads may wait.

mod admin_pages;
mod authorization;
mod disk_writer;
mod error;
mod metrics;
mod reports;
mod served_rib;
mod upstream_sink;

use std::{future::Future, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use authorization::{Gate, guard_calls};
use disk_writer::Disk;
pub use error::ReplicaError;
use fairmesh_listen::{Limits, Listeners, listener_table};
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
    grpc_stubs,
    transport::{Address, Listener, Services, Transport, serve},
};
use reports::Reports;
use served_rib::ReplicaRib;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use upstream_sink::{ReplicaState, UpstreamSink};

/// Time limit for calls in flight when the replica stops; watches end at once.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of the copy's file in the state folder.
const COPY_FILE: &str = "copy.redb";

/// Configuration of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// How connections are opened and accepted.
    pub transport: Transport,
    /// Control planes or other replicas, tried in turn; at least one.
    pub upstreams: Vec<Address>,
    /// Addresses for agents and further replicas; at least one.
    pub listen: Vec<Address>,
    /// Folder of the on-disk copy. Each replica needs a separate folder.
    pub state_dir: PathBuf,
    /// Addresses at which `fairmesh rib status` reaches the replica. If empty, the addresses in `listen`.
    pub advertise: Vec<Address>,
    /// Name of this replica, shown to operators.
    pub name: String,
    /// Region of this replica, shown to operators.
    pub region: Option<Region>,
    /// Address of `/metrics`, `/healthz` and `/readyz`, if any.
    pub metrics: Option<SocketAddr>,
}

/// A replica that is ready to serve: its copy is loaded, and it listens on its addresses.
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
    /// Opens the copy and listens on every address. An unreachable upstream is not an error.
    ///
    /// # Errors
    /// [`ReplicaError`] with the folder or address and the remedy.
    pub async fn start(config: ReplicaConfig) -> Result<Self, ReplicaError> {
        if config.upstreams.is_empty() {
            return Err(ReplicaError::NoUpstream);
        }
        if config.listen.is_empty() {
            return Err(ReplicaError::NoAddress);
        }
        let (disk, held) = Disk::open(config.state_dir.join(COPY_FILE)).await?;
        let bounded = Listeners::default();
        let calls = bounded.acceptor(&listener_table::REPLICA_GRPC, Limits::calls());
        let mut listeners = Vec::new();
        for address in &config.listen {
            listeners.push(config.transport.bind(address).await?.with_joining().within(calls.clone()));
        }
        let admin =
            AdminListener::bind_optional(config.metrics, &bounded, &listener_table::REPLICA_HTTP).await?;
        Ok(Self { config, shared: Arc::new(ReplicaState::new(disk)), held, listeners, admin, bounded })
    }

    /// Returns the listening addresses in the order of the configuration, with the actual ports instead of port 0.
    pub fn addresses(&self) -> std::io::Result<Vec<Address>> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// Serves until `shutdown` completes. When this returns, everything is on disk.
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
        let counts = CountRelay::new(upstream.clone(), SumLimits::TREE);
        // Processes that stop at the same time as this replica report their last counts while it drains.
        let all_served = CancellationToken::new();
        let _count_with_me = all_served.clone().drop_guard();
        let counting = tokio::spawn(counts.clone().run(all_served.clone()));
        let forward = Forwarder::new(upstream, "replica", stopping.clone());
        let pages = admin_pages::Pages { backend: backend.clone(), rates: rates.clone(), listeners: bounded };
        let reports = Reports { forward, rates, counts, access: shared.access.clone() };
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
        // The runtime has reported a panic in any of these tasks; the stop continues.
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

/// Returns the description of this replica for its upstream.
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

/// Restores the copy from disk and follows the upstream.
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
    let others = Routes::new(grpc_stubs::registry_server(forward.clone()))
        .add_service(grpc_stubs::signals_server(reports.clone()))
        .add_service(grpc_stubs::imbalance_server(reports))
        .add_service(grpc_stubs::quota_server(forward.clone()))
        .add_service(grpc_stubs::identity_server(forward.clone()))
        .add_service(grpc_stubs::checker_server(forward));
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
