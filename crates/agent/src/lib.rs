//! The agent: one process a machine that holds the part of the routing information base that the machine's programs use
//! (ServiceRouter §3.2).
//!
//! It follows a control plane with `rib`'s reader and serves what it holds with `rib`'s server on one Unix socket, where
//! it also passes on calls to the registry. Copies on disk let it serve after a restart though no control plane answers.
//!
//! Large shard maps are not passed on: they are made into tables that programs read where they lie (`maps.rs`).
//!
//! Everything is subscribed to on first use. Holding all of it, so that first calls never wait, was rejected: the memory of
//! a million machines would be spent on services that they never call.

mod backend;
mod checker;
mod disk;
mod error;
mod feed;
mod http;
mod maps;
mod metrics;
mod subscriptions;
mod usage;

use std::{future::Future, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use backend::AgentBackend;
pub use checker::probe_once as probe;
use disk::Disk;
pub use error::AgentError;
use fairmesh_listen::{Limits, Listeners};
use fairmesh_model::Location;
use fairmesh_rib::{
    Forwarder, Node, PeerInfo, PeerKind,
    cache::SavedCopy,
    follower::{self, Backoff, Follower, FollowerConfig, FollowerHandle},
    server::RibServer,
};
use fairmesh_wire::{
    rpc,
    transport::{Address, BindError, Listener, Plaintext, Transport, serve},
};
use feed::{Feed, Shared};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use usage::Usages;

/// How long calls under way may take after the agent was asked to stop; watches are ended at once.
const DRAIN: Duration = Duration::from_secs(5);

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Control planes or replicas, tried in turn; at least one.
    pub upstreams: Vec<Address>,
    /// Where the machine's programs connect.
    pub listen: Address,
    /// Where copies of subscriptions are kept; one agent each.
    pub state_dir: PathBuf,
    /// Where the machine is; told to the programs.
    pub location: Location,
    /// What people call this agent, usually the machine's name.
    pub name: String,
    /// Where `/metrics`, `/healthz` and `/readyz` are served, if anywhere.
    pub metrics: Option<SocketAddr>,
}

/// Runs an agent until `shutdown` completes; what it holds is on disk then.
///
/// # Errors
/// When it cannot start: the folder, the socket or the port is taken or not accessible. A control plane that does not
/// answer is no error.
pub async fn run(config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    if config.upstreams.is_empty() {
        return Err(AgentError::NoUpstream);
    }
    let (disk, saved) = Disk::open(config.state_dir.clone(), config.location.clone()).await?;
    let listeners = Listeners::default();
    let calls = listeners.acceptor("grpc", Limits::calls());
    let listener = Plaintext.bind(&config.listen).await?.within(calls);
    let maps = bind_maps(&config.listen, &listeners).await?;
    let http = http::bind(config.metrics, &listeners).await?;
    let node = Node::replica();
    let shared = Arc::new(Shared::new(node.clone(), disk));
    let upstream = follow(&config, &shared, saved);
    let checks = Arc::<checker::Counts>::default();
    let backend = AgentBackend::new(shared.clone(), upstream.clone(), checks.clone(), &config);
    let usages = Usages::new(upstream.clone(), backend.upstreams().into());

    let stopping = CancellationToken::new();
    let _stop_with_me = stopping.clone().drop_guard();
    tokio::spawn(backend.clone().sweep(stopping.clone()));
    tokio::spawn(follower::relay_acks(node, upstream.clone(), stopping.clone()));
    tokio::spawn(checker::campaign(candidate(&config, checks), upstream.clone(), stopping.clone()));
    tokio::spawn(usages.clone().run(stopping.clone()));
    let maps = maps.map(|listener| tokio::spawn(maps::serve(listener, backend.clone(), stopping.clone())));
    let pages = http::Pages { backend: backend.clone(), usages: usages.clone(), listeners };
    let http = http.map(|listener| tokio::spawn(http::serve(listener, pages, stopping.clone())));
    let saving = tokio::spawn(shared.clone().save_all(upstream.state(), stopping.clone()));

    let mut routes = Routes::builder();
    let forward = Forwarder::new(upstream, "agent", stopping.clone());
    routes.add_service(rpc::quota_server(forward.clone()));
    routes.add_service(rpc::registry_server(forward));
    routes.add_service(rpc::imbalance_server(usages));
    tracing::info!(listen = %config.listen, region = %config.location.region, "the agent serves");
    let stopped = async {
        shutdown.await;
        stopping.cancel();
    };
    let services = RibServer::new(backend, stopping.clone()).with_services(routes.routes());
    let served = serve(services, listener, stopped, DRAIN).await;
    stopping.cancel();
    // A panic in one of these has been reported by the runtime; stopping goes on.
    let _ = saving.await;
    for task in [http, maps].into_iter().flatten() {
        let _ = task.await;
    }
    shared.maps.ended().await;
    served.map_err(AgentError::Serve)
}

/// This agent as a candidate for the region's checker.
fn candidate(config: &AgentConfig, counts: Arc<checker::Counts>) -> checker::Candidate {
    checker::Candidate {
        region: config.location.region.clone(),
        name: config.name.clone(),
        upstreams: config.upstreams.clone(),
        counts,
    }
}

/// The socket beside the agent's own; none beside a port.
async fn bind_maps(listen: &Address, listeners: &Listeners) -> Result<Option<Listener>, BindError> {
    let Some(address) = listen.maps() else { return Ok(None) };
    let maps = listeners.acceptor("maps", maps::limits());
    Ok(Some(Plaintext.bind(&address).await?.within(maps)))
}

/// Starts from the saved copies and follows the upstream.
fn follow(config: &AgentConfig, shared: &Arc<Shared>, saved: Vec<SavedCopy>) -> FollowerHandle {
    let held: Vec<_> = saved.iter().map(|saved| (saved.prefix.clone(), saved.revision)).collect();
    shared.restore(saved);
    let upstream = FollowerConfig {
        addresses: config.upstreams.clone(),
        software: format!("agent {}", config.name),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    let upstream = Follower::spawn(upstream, Feed::new(shared.clone()));
    let region = Some(config.location.region.clone());
    upstream.set_peer_info(PeerInfo { kind: PeerKind::Agent, region, addresses: Vec::new() });
    upstream.subscribe_from(held);
    upstream
}
