//! A replica: a process that holds all of the routing information base and serves it, so that a fleet's watchers are
//! spread over a tree of replicas and the control plane sees its root only (ServiceRouter §3.1, §4.1).
//!
//! It follows one upstream, the control plane or another replica, with one subscription to everything, and serves any
//! number of watchers with `rib`'s server: bursts coalesce by key there, and a slow watcher costs a bounded set of keys.
//! Acknowledgements of all its watchers travel up as one. Its copy on disk lets it serve after a restart though no
//! upstream answers, and resume with what it missed.
//!
//! Holding only what its watchers ask for, as agents do, was rejected: a region's agents ask for nearly everything
//! together, and a replica that holds all can say when all of a revision is there, which reads may wait for.

mod backend;
mod disk;
mod error;
mod feed;
mod http;
mod metrics;

use std::{future::Future, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use backend::ReplicaBackend;
use disk::Disk;
pub use error::ReplicaError;
use fairmesh_listen::{Limits, Listeners, PageListener};
use fairmesh_model::{Prefix, Region};
use fairmesh_rib::{
    Forwarder, PeerInfo, PeerKind,
    follower::{self, Backoff, Follower, FollowerConfig, FollowerHandle},
    server::RibServer,
};
use fairmesh_store::ReplicaContents;
use fairmesh_wire::{
    rpc,
    transport::{Address, Listener, Plaintext, Services, Transport, serve},
};
use feed::{Feed, Shared};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// How long calls under way may take after the replica was asked to stop; watches are ended at once.
const DRAIN: Duration = Duration::from_secs(5);

/// The file of the copy within the state folder.
const COPY_FILE: &str = "copy.redb";

/// What a replica needs to know.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Control planes or replicas nearer to one, tried in turn; at least one.
    pub upstreams: Vec<Address>,
    /// Where agents and further replicas connect; at least one.
    pub listen: Vec<Address>,
    /// Where the copy is kept; one replica each.
    pub state_dir: PathBuf,
    /// Where others reach it, told to whoever asks for the state of the tree. Empty for where it listens.
    pub advertise: Vec<Address>,
    /// What people call this replica.
    pub name: String,
    /// The region that it is in, for people.
    pub region: Option<Region>,
    /// Where `/metrics`, `/healthz` and `/readyz` are served, if anywhere.
    pub metrics: Option<SocketAddr>,
}

/// A replica that is ready to serve: its copy is loaded and its addresses are bound.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    shared: Arc<Shared>,
    held: Option<ReplicaContents>,
    listeners: Vec<Listener>,
    http: Option<PageListener>,
    bounded: Listeners,
}

impl Replica {
    /// Opens the copy and binds every address. An upstream that does not answer is no error.
    ///
    /// # Errors
    /// [`ReplicaError`] saying which folder or address it is about and what to do.
    pub async fn start(config: ReplicaConfig) -> Result<Self, ReplicaError> {
        if config.upstreams.is_empty() {
            return Err(ReplicaError::NoUpstream);
        }
        if config.listen.is_empty() {
            return Err(ReplicaError::NoAddress);
        }
        let (disk, held) = Disk::open(config.state_dir.join(COPY_FILE)).await?;
        let bounded = Listeners::default();
        let calls = bounded.acceptor("grpc", Limits::calls());
        let mut listeners = Vec::new();
        for address in &config.listen {
            listeners.push(Plaintext.bind(address).await?.within(calls.clone()));
        }
        let http = http::bind(config.metrics, &bounded).await?;
        Ok(Self { config, shared: Arc::new(Shared::new(disk)), held, listeners, http, bounded })
    }

    /// Where it listens, in the order of the configuration, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> std::io::Result<Vec<Address>> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// Serves until `shutdown` completes; what it holds is on disk then.
    ///
    /// # Errors
    /// When serving broke off.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ReplicaError> {
        let Self { config, shared, held, listeners, http, bounded } = self;
        let upstream = follow(&config, &shared, held);
        let addresses = match config.advertise.is_empty() {
            true => listeners.iter().filter_map(|listener| listener.address().ok()).collect(),
            false => config.advertise.clone(),
        };
        upstream.set_peer_info(PeerInfo {
            kind: PeerKind::Replica,
            region: config.region.clone(),
            addresses,
        });
        let stopping = CancellationToken::new();
        let _stop_with_me = stopping.clone().drop_guard();
        let acks = follower::relay_acks(shared.node.clone(), upstream.clone(), stopping.clone());
        tokio::spawn(acks);
        let backend = ReplicaBackend::new(shared.clone(), upstream.clone(), &config);
        let pages = http::Pages { backend: backend.clone(), listeners: bounded };
        let http = http.map(|listener| tokio::spawn(http::serve(listener, pages.clone(), stopping.clone())));
        let saving = tokio::spawn(shared.save_all(stopping.clone()));
        let mut serving = JoinSet::new();
        let services = services(backend, Forwarder::new(upstream, "replica", stopping.clone()), &stopping);
        for listener in listeners {
            if let Ok(address) = listener.address() {
                tracing::info!(%address, name = config.name, "the replica serves");
            }
            let stopped = stopping.clone().cancelled_owned();
            serving.spawn(serve(services.clone(), listener, stopped, DRAIN));
        }
        let mut ended = tokio::select! {
            () = shutdown => Ok(()),
            Some(served) = serving.join_next() => served_out(served),
        };
        stopping.cancel();
        while let Some(served) = serving.join_next().await {
            ended = ended.and(served_out(served));
        }
        // A panic in one of these has been reported by the runtime; stopping goes on.
        let _ = saving.await;
        if let Some(http) = http {
            let _ = http.await;
        }
        ended
    }
}

/// Runs a replica until `shutdown` completes.
///
/// # Errors
/// As [`Replica::start`] and [`Replica::run`].
pub async fn run(config: ReplicaConfig, shutdown: impl Future<Output = ()>) -> Result<(), ReplicaError> {
    Replica::start(config).await?.run(shutdown).await
}

/// Starts from the copy on disk and follows the upstream.
fn follow(config: &ReplicaConfig, shared: &Arc<Shared>, held: Option<ReplicaContents>) -> FollowerHandle {
    let everything = Prefix::everything();
    let from = held.as_ref().map(|held| held.revision);
    if let Some(held) = held {
        shared.restore(held);
    }
    let upstream = FollowerConfig {
        addresses: config.upstreams.clone(),
        software: format!("replica {}", config.name),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    let upstream = Follower::spawn(upstream, Feed::new(shared.clone()));
    match from {
        Some(revision) => upstream.subscribe_from([(everything, revision)]),
        None => upstream.subscribe(everything),
    }
    upstream
}

fn services(backend: ReplicaBackend, forward: Forwarder, stopping: &CancellationToken) -> Services {
    let others = Routes::new(rpc::registry_server(forward.clone()))
        .add_service(rpc::imbalance_server(forward.clone()))
        .add_service(rpc::quota_server(forward.clone()))
        .add_service(rpc::checker_server(forward));
    RibServer::new(backend, stopping.clone()).with_services(others)
}

fn served_out(
    served: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> Result<(), ReplicaError> {
    match served {
        Ok(served) => served.map_err(|e| ReplicaError::Serve(e.to_string())),
        Err(panicked) => Err(ReplicaError::Serve(panicked.to_string())),
    }
}
