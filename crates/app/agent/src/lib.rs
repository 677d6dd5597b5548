//! The agent: one process per machine with the part of the routing information base that the machine's programs use
//! (ServiceRouter §3.2).
//!
//! It follows a control plane or replica, serves its copy on a Unix socket, and forwards calls to the registry. Copies
//! on disk let it serve after a restart without a control plane.
//!
//! Large shard maps are not forwarded as records: the agent builds tables of them in shared memory (`shard_maps.rs`).
//!
//! The agent subscribes to a prefix on first use. Following the whole RIB, so that first calls never wait, was
//! rejected: a million machines would spend memory on services that they never call.

mod admin_pages;
mod authorization;
mod disk_writer;
mod error;
mod health_checker;
mod identity;
mod metrics;
mod reports;
mod served_rib;
mod shard_maps;
mod state;
mod subscriptions;
mod zone_probes;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use admin_pages::Pages;
use authorization::Gate;
use disk_writer::Disk;
pub use error::AgentError;
use fairmesh_identity::{JoinToken, Member, Workload};
use fairmesh_listen::{Acceptor, Limits, Listeners, listener_table};
use fairmesh_model::{Location, Region};
use fairmesh_pages::{AdminListener, AdminServer};
use fairmesh_rib::{
    Forwarder, Node, PeerInfo, PeerKind,
    disk_cache::SavedCopy,
    follower::{self, Backoff, Follower, FollowerConfig, FollowerHandle},
    server::RibServer,
};
use fairmesh_wire::{
    grpc_stubs,
    spiffe::spiffe_workload_api_server::SpiffeWorkloadApiServer,
    transport::{Address, BindError, Listener, Transport, serve},
};
pub use health_checker::probe_once as probe;
use identity::{AgentIdentity, SpiffeService, WorkloadService};
use reports::Reports;
use served_rib::AgentRib;
use state::{AgentState, UpstreamSink};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use zone_probes::{ZoneProbeCounts, ZoneProber};

/// Time that calls in flight get to finish after a stop request; watches end at once.
const DRAIN: Duration = Duration::from_secs(5);

/// Maximum number of connections of one user to the agent's socket: a few for each of a thousand programs, about 100
/// MB.
const MAX_CONNECTIONS_OF_USER: usize = 4096;

/// Configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Control planes or replicas, tried in this order; at least one.
    pub upstreams: Vec<Address>,
    /// How connections are opened and accepted.
    pub transport: Transport,
    /// Listening address for the machine's programs.
    pub listen: Address,
    /// Directory for copies of subscriptions, for this agent alone.
    pub state_dir: PathBuf,
    /// Location of the machine, which is sent to its programs.
    pub location: Location,
    /// Local address from which distances to other regions are measured; by default the system chooses.
    pub local_address: Option<IpAddr>,
    /// Display name of this agent, usually the machine's name.
    pub name: String,
    /// Token with which this agent joins the trust domain if it has not joined yet.
    pub join_token: Option<JoinToken>,
    /// The Unix socket of a SPIFFE Workload API that gives this agent its certificate, instead of the control plane.
    pub workload_api: Option<Address>,
    /// Listening address of `/metrics`, `/healthz` and `/readyz`, if any.
    pub metrics: Option<SocketAddr>,
    /// Address at which other agents probe this agent. Without it, the agent neither answers nor sends probes.
    pub probes: Option<SocketAddr>,
}

/// Runs an agent until `shutdown` completes. On return its copy is on disk.
///
/// # Errors
/// When it cannot start: the directory, the socket or the port is in use or not accessible. An unreachable control
/// plane is not an error.
pub async fn run(config: AgentConfig, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    check(&config)?;
    let (disk, saved) = Disk::open(config.state_dir.clone(), config.location.clone()).await?;
    let listeners = Listeners::default();
    let calls = listeners.acceptor(&listener_table::AGENT_GRPC, Limits::calls());
    let workload = Arc::<Workload>::default();
    let kept = identity::load(&config, &workload)?;
    let transport = mesh_transport(&config, &workload, kept.as_ref());
    let listener = listen(&config, &transport, calls).await?;
    let maps = bind_maps(&config, &listeners).await?;
    let prober = ZoneProber::bind(&config).await?;
    let admin = AdminListener::bind_optional(config.metrics, &listeners, &listener_table::AGENT_HTTP).await?;
    let (node, checks) = (Node::replica(), Arc::<health_checker::Counts>::default());
    let shared = Arc::new(AgentState::new(node.clone(), disk));
    let upstream = follow(&config, transport.clone(), &shared, saved);
    let identity =
        kept.map(|kept| AgentIdentity::new(&config, kept, workload, (upstream.clone(), transport)));
    let backend = AgentRib::new(shared.clone(), upstream.clone(), checks.clone(), &config);
    let region = config.location.region.clone();
    let stopping = CancellationToken::new();
    let forward = Forwarder::new(upstream.clone(), "agent", stopping.clone());
    let reports = Reports::new(forward.clone(), backend.upstreams().into(), region.clone());
    let _stop_with_me = stopping.clone().drop_guard();
    start_following(&backend, node, candidate(&config, checks), &upstream, &stopping);
    let (probing, prober) = start_prober(prober, &upstream, &stopping);
    let all_served = CancellationToken::new();
    let _report_with_me = all_served.clone().drop_guard();
    let reporting = tokio::spawn(reports.clone().run(stopping.clone(), all_served.clone()));
    tokio::spawn(identity::keep_fresh(identity.clone(), stopping.clone()));
    let maps = maps.map(|maps| tokio::spawn(shard_maps::serve(maps, backend.clone(), stopping.clone())));
    let (shown, reported) = (backend.clone(), reports.clone());
    let pages = Pages { backend: shown, reports: reported, listeners, identity: identity.clone(), probing };
    let admin = admin.map(|listener| listener.start(fairmesh_pages::router(Arc::new(pages))));
    let saving = tokio::spawn(shared.clone().save_all(upstream.state(), stopping.clone()));

    let gate = Gate::new(identity.clone(), upstream, region);
    let routes = routes(forward, reports, identity, &stopping);
    tracing::info!(listen = %config.listen, region = %config.location.region, "agent is serving");
    let stopped = async {
        shutdown.await;
        stopping.cancel();
    };
    let server = RibServer::new(backend, stopping.clone()).with_services(routes);
    let served = serve(gate.guard(server), listener, stopped, DRAIN).await;
    stopping.cancel();
    all_served.cancel();
    report_last(saving, reporting, prober).await;
    stop_listeners(admin, maps).await;
    shared.maps.wait_stopped().await;
    served.map_err(AgentError::Serve)
}

/// Starts the tasks that maintain the copy: expiry of unused prefixes, acknowledgement, and election of the checker.
fn start_following(
    backend: &AgentRib,
    node: Node,
    candidate: health_checker::Candidate,
    upstream: &FollowerHandle,
    stopping: &CancellationToken,
) {
    tokio::spawn(backend.clone().sweep(stopping.clone()));
    tokio::spawn(follower::relay_acks(node, upstream.clone(), stopping.clone()));
    tokio::spawn(health_checker::campaign(candidate, upstream.clone(), stopping.clone()));
}

/// Starts the prober if this agent takes part in probes. Returns the prober's counters as well.
fn start_prober(
    prober: Option<ZoneProber>,
    upstream: &FollowerHandle,
    stopping: &CancellationToken,
) -> (Option<Arc<ZoneProbeCounts>>, Option<JoinHandle<()>>) {
    let counts = prober.as_ref().map(ZoneProber::counts);
    (counts, prober.map(|prober| tokio::spawn(prober.run(upstream.clone(), stopping.clone()))))
}

/// Waits until the copy is on disk and the last reports are sent. Reports only matter for seconds.
async fn report_last(saving: JoinHandle<()>, reporting: JoinHandle<()>, prober: Option<JoinHandle<()>>) {
    // The runtime has already reported a panic of one of these tasks.
    let _ = saving.await;
    let _ = timeout(DRAIN, reporting).await;
    if let Some(prober) = prober {
        let _ = timeout(DRAIN, prober).await;
    }
}

/// Waits until the listeners other than gRPC have stopped.
async fn stop_listeners(admin: Option<AdminServer>, maps: Option<JoinHandle<()>>) {
    if let Some(admin) = admin {
        admin.stop().await;
    }
    if let Some(maps) = maps {
        // The runtime has already reported a panic of this task.
        let _ = maps.await;
    }
}

/// Opens the listeners for local programs.
async fn listen(config: &AgentConfig, transport: &Transport, calls: Acceptor) -> Result<Listener, BindError> {
    let listener = transport.bind(&config.listen).await?.within(calls).attesting();
    Ok(listener.with_connections_of_user(MAX_CONNECTIONS_OF_USER))
}

fn check(config: &AgentConfig) -> Result<(), AgentError> {
    if config.upstreams.is_empty() { Err(AgentError::NoUpstream) } else { Ok(()) }
}

/// The gRPC services other than the RIB.
fn routes(
    forward: Forwarder,
    reports: Reports,
    identity: Option<AgentIdentity>,
    stopping: &CancellationToken,
) -> Routes {
    let spiffe = SpiffeService::new(identity.clone(), stopping.clone());
    Routes::new(grpc_stubs::quota_server(forward.clone()))
        .add_service(grpc_stubs::registry_server(forward))
        .add_service(grpc_stubs::signals_server(reports.clone()))
        .add_service(grpc_stubs::imbalance_server(reports))
        .add_service(grpc_stubs::workload_server(WorkloadService { identity }))
        .add_service(SpiffeWorkloadApiServer::new(spiffe))
}

/// Returns this agent as a candidate for its region's checker.
fn candidate(config: &AgentConfig, counts: Arc<health_checker::Counts>) -> health_checker::Candidate {
    health_checker::Candidate {
        region: config.location.region.clone(),
        name: config.name.clone(),
        upstreams: config.upstreams.clone(),
        local_address: config.local_address,
        counts,
    }
}

/// Opens the listener for shard map sessions if the agent listens at a Unix socket; a TCP listener has none.
async fn bind_maps(config: &AgentConfig, listeners: &Listeners) -> Result<Option<Listener>, BindError> {
    let Some(address) = config.listen.maps() else { return Ok(None) };
    let maps = listeners.acceptor(&listener_table::AGENT_MAPS, shard_maps::limits());
    Ok(Some(config.transport.bind(&address).await?.within(maps)))
}

/// Returns how this agent opens and accepts connections: with its own identity, also for probes of endpoints.
fn mesh_transport(
    config: &AgentConfig,
    workload: &Arc<Workload>,
    kept: Option<&identity::Kept>,
) -> Transport {
    let was_member = kept.is_some_and(identity::Kept::is_unusable) || config.workload_api.is_some();
    let transport = match config.transport.is_tls() {
        true => config.transport.clone(),
        false => {
            let member = Member::new(Arc::clone(workload), config.join_token.clone());
            Transport::tls(Arc::new(if was_member { member.secured() } else { member }))
        }
    };
    transport.to_upstreams()
}

/// Restores the saved copies and follows the upstream.
fn follow(
    config: &AgentConfig,
    transport: Transport,
    shared: &Arc<AgentState>,
    saved: Vec<SavedCopy>,
) -> FollowerHandle {
    let held: Vec<_> = saved.iter().map(|saved| (saved.prefix.clone(), saved.revision)).collect();
    shared.restore(saved);
    let upstream = FollowerConfig {
        transport,
        addresses: config.upstreams.clone(),
        software: format!("agent {}", config.name),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    let upstream = Follower::spawn(upstream, UpstreamSink::new(shared.clone()));
    upstream.set_peer_info(description(&config.location.region, Vec::new()));
    upstream.subscribe_from(held);
    upstream
}

/// Describes this agent to its upstream.
fn description(region: &Region, roots: Vec<[u8; 32]>) -> PeerInfo {
    PeerInfo {
        kind: PeerKind::Agent,
        region: Some(region.clone()),
        addresses: Vec::new(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        roots,
    }
}
