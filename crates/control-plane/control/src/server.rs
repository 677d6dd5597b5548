use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fairmesh_controllers::{Runtime, RuntimeConfig};
use fairmesh_gateway_control::GatewayLoads;
use fairmesh_listen::{Limits, Listeners, listener_table};
use fairmesh_model::StoreId;
use fairmesh_pages::{AdminListener, HostNames};
use fairmesh_registry::{FileSource, Registry, RegistryService};
use fairmesh_rib::{Node, access::CallerNumbers, follower::random, server::RibServer};
use fairmesh_store::{OpenStore, PartitionedStore, RedbStore, Store, StoreError, StoreLocation};
use fairmesh_web::PageConfig;
use fairmesh_wire::{
    environment::CONTROL_SOCKET,
    grpc_stubs,
    transport::{self, Address, Listener, Services, Transport},
};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    ControlConfig, ControlError,
    access::{Access, guard_calls, guard_pages},
    admin_service::AdminService,
    audit::{self, AuditLog},
    commit_indices::Indices,
    controllers::Controllers,
    health_checks::{CheckerService, Checks, Woken},
    http,
    identity::{CertificateIssuer, IdentityService, bundle_page, page_hosts, recorded_bundle},
    imbalance::{self, Imbalance, ImbalanceService},
    metrics::{MetricSources, Metrics, Observed},
    rate_limits::Quotas,
    read_lease::ReadLease,
    readiness::Readiness,
    reports::SignalsService,
    served_rib::ControlRib,
    standby,
    store_applier::{AppliedStore, apply_commits},
    tasks::{Tasks, join_next, spawn_cancellable, spawn_stoppable, task_ended},
    traces::TraceListener,
    traffic::{TrafficPlanning, TrafficService},
    user_tokens::UserTokens,
    wall_clock::now_ms,
    web_page_source::PageSource,
    zone_probes::ZoneProbes,
};

/// Name of the store's file within the data directory.
const STORE_FILE: &str = "rib.redb";
/// Name of the imbalance indicator's file within the data directory.
const IMBALANCE_FILE: &str = "imbalance.redb";
/// TTL of the writer lease: time after which another control plane can take over a store in etcd.
const LEASE_TTL: Duration = Duration::from_secs(5);
/// Time that calls in flight have to finish after a stop request.
const DRAIN: Duration = Duration::from_secs(5);

/// A control plane that is ready to serve: the store is loaded and the addresses are bound.
#[derive(Debug)]
pub struct Control {
    store: Arc<dyn Store>,
    partitions: Option<Arc<PartitionedStore>>,
    node: Node,
    indices: Indices,
    metrics: Arc<Metrics>,
    imbalance: Arc<Imbalance>,
    issuer: Option<Arc<CertificateIssuer>>,
    tokens: UserTokens,
    grpc: Vec<Listener>,
    http: Option<AdminListener>,
    traces: Option<TraceListener>,
    listeners: Listeners,
    config: ControlConfig,
}

impl Control {
    /// Opens the store and binds all addresses. A store in etcd has one control plane at a time; others wait
    /// here.
    ///
    /// # Errors
    /// [`ControlError`], which names the file or address and a remedy.
    pub async fn start(config: ControlConfig) -> Result<Self, ControlError> {
        if config.grpc.is_empty() {
            return Err(ControlError::NoAddress);
        }
        let tokens = UserTokens::new(config.oidc.as_ref()).await?;
        let OpenStore { store, partitions } = open(&config).await?;
        let (revision, entries) = store.load().await?;
        refuse_restored(&config, &*store, revision).await?;
        let node = Node::load(store.id(), revision, entries.iter().cloned());
        let indices = Indices::new(&node, AuditLog::open(&config.data_dir));
        indices.load(&entries);
        indices.checks.wake(Woken::ALL);
        let recorded = recorded_bundle(&node);
        let told = config.trust_domain.told(entries.is_empty(), recorded.as_ref().map(|own| &own.domain));
        let issuer = CertificateIssuer::open(&config, told.as_ref(), recorded.as_ref())?.map(Arc::new);
        if issuer.is_some() {
            indices.access.require(told);
        }
        let listeners = Listeners::default();
        let calls = listeners.acceptor(&listener_table::CONTROL_GRPC, Limits::calls());
        let mut grpc = Vec::new();
        let (transport, addresses) = match &issuer {
            Some(issuer) => (issuer.transport(&node)?, with_own_socket(&config)),
            None => (config.transport.clone(), config.grpc.clone()),
        };
        for address in &addresses {
            grpc.push(transport.bind(address).await?.with_users().within(calls.clone()));
        }
        let http =
            AdminListener::bind_optional(config.http, &listeners, &listener_table::CONTROL_HTTP).await?;
        let traces = TraceListener::bind(config.traces.as_ref(), &listeners).await?;
        let imbalance = Arc::new(Imbalance::start(&config.data_dir.join(IMBALANCE_FILE)).await);
        log_addresses(&grpc, http.as_ref());
        tracing::info!(store = %store.id(), revision, place = %store_location(&config), "store opened");
        Ok(Self {
            store,
            partitions,
            node,
            indices,
            metrics: Arc::default(),
            imbalance,
            issuer,
            tokens,
            grpc,
            http,
            traces,
            listeners,
            config,
        })
    }

    /// Listening addresses of gRPC in the order of the configuration, with the ports that were chosen for
    /// port 0.
    pub fn grpc_addresses(&self) -> io::Result<Vec<Address>> {
        self.grpc.iter().map(Listener::address).collect()
    }

    /// Listening address of HTTP; `None` without pages.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// Serves until `shutdown` completes. From then on no connections are accepted, calls in flight have five
    /// seconds to finish, and the store is closed.
    ///
    /// # Errors
    /// [`ControlError::Ended`] when a task ended unexpectedly.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
        let closing = CancellationToken::new();
        // Cancelled later than `closing`, because calls in flight still write.
        let writes_ended = CancellationToken::new();
        let mut store_tasks = Tasks::new();
        let mut tasks = Tasks::new();
        let stores = (self.store.clone(), self.imbalance.clone());
        self.spawn(&mut tasks, &mut store_tasks, &closing, &writes_ended);
        let mut result = tokio::select! {
            () = shutdown => Ok(()),
            result = join_next(&mut tasks) => result,
            result = join_next(&mut store_tasks) => result,
        };
        closing.cancel();
        while !tasks.is_empty() {
            result = result.and(join_next(&mut tasks).await);
        }
        writes_ended.cancel();
        while !store_tasks.is_empty() {
            result = result.and(join_next(&mut store_tasks).await);
        }
        stores.0.close().await;
        // Dropping the last handle waits for the store's writer thread, so it must not happen on this thread.
        let _ = spawn_blocking(move || drop(stores)).await;
        result
    }

    fn spawn(
        self,
        tasks: &mut Tasks,
        store_tasks: &mut Tasks,
        closing: &CancellationToken,
        writes_ended: &CancellationToken,
    ) {
        let Self { store, partitions, node, indices, metrics, imbalance, issuer, .. } = self;
        let pages = issuer.as_ref().map(|issuer| issuer.pages_transport()).unwrap_or_default();
        let Self { tokens, grpc, http, traces, listeners, config, .. } = self;
        let (permissions, audit) = (indices.access.clone(), indices.audit.clone());
        let applied = AppliedStore::new(store.clone(), node.clone(), metrics.clone(), audit.clone());
        let applied: Arc<dyn Store> = Arc::new(applied);
        let runtime = runtime(&config, &*store, (&node, &applied));
        let (registry, quotas) = (Registry::new(applied.clone(), node.clone()), Quotas::new(node.clone()));
        let checks = Checks::new(node.clone(), applied.clone(), indices.checks.clone());
        let planning = TrafficPlanning::new(node.clone(), indices.facts.clone(), &config.shadow_controllers);
        let identity = IdentityService::new(issuer, (&node, &applied), (permissions.clone(), audit.clone()));
        let (callers, gateway) = ((node.clone(), identity.revocations()), GatewayLoads::new(node.clone()));
        let access = Access::new(permissions.clone(), callers, (tokens.clone(), audit.clone()));
        let observed = Observed {
            audit,
            controllers: runtime.statuses(),
            imbalance: imbalance.clone(),
            planning: planning.clone(),
            probes: ZoneProbes::new(random()),
            gateway: gateway.clone(),
            traces: spawn_traces((traces, pages.clone(), access.clone()), tasks, closing),
        };
        let other_services = routes(&registry, (&checks, &observed.probes), &quotas, closing);
        let other_services = operator_services(other_services, &identity, partitions, observed.clone());
        let read_lease = store.lease_expiry().map(ReadLease::new);
        let backend = ControlRib::new((&node, &applied), read_lease.clone(), (permissions, tokens.clone()));
        let services = RibServer::new(backend, closing.clone()).with_services(other_services);
        let sources = MetricSources {
            store: store.clone(),
            node: node.clone(),
            endpoint_counts: indices.endpoint_counts.clone(),
            checks: checks.clone(),
            files: watch_files(&config.sources, &registry, store_tasks, writes_ended),
            registry: registry.clone(),
            quotas: quotas.clone(),
            observed,
            listeners,
        };
        let store_readiness = Readiness::of(&config.data_dir);
        let verification = store_readiness.integrity.clone().watch(store.clone(), imbalance.clone());
        let state = http::HttpState { metrics, sources, store_readiness, closing: closing.clone() };
        store_tasks.spawn(apply_until(store, node, indices, writes_ended.clone()));
        let gateway = (gateway, config.gateway_launcher.clone());
        let controllers = Controllers { checks, quotas, identity, planning, gateway };
        controllers.spawn(&runtime, store_tasks, writes_ended);
        spawn_cancellable(store_tasks, writes_ended, verification);
        Background { read_lease, imbalance, registry, tokens }.spawn(store_tasks, writes_ended);
        // Done last, so that the first call already sees the status of every controller.
        let calls = services.calls();
        serve_grpc(tasks, grpc, &services.map_calls(|calls| guard_calls(calls, access.clone())), closing);
        serve_pages(tasks, (http, pages, access), (state, calls), &config);
    }
}

/// Spawns the receiver of spans until `closing`, if this control plane receives spans.
fn spawn_traces(
    (listener, transport, access): (Option<TraceListener>, Transport, Access),
    tasks: &mut Tasks,
    closing: &CancellationToken,
) -> Option<fairmesh_traces::Traces> {
    let listener = listener?;
    let traces = listener.traces();
    spawn_stoppable(tasks, listener.serve(transport, access, closing.clone()));
    Some(traces)
}

/// Creates the runtime of the controllers. `applied` writes to `store`, and returns once the node has applied
/// the write.
fn runtime(config: &ControlConfig, store: &dyn Store, (node, applied): (&Node, &Arc<dyn Store>)) -> Runtime {
    Runtime::new(RuntimeConfig {
        node: node.clone(),
        store: Arc::clone(applied),
        lease_expiry: store.lease_expiry(),
        wall_clock: now_ms,
        seed: random(),
        shadow: config.shadow_controllers.iter().map(|controller| controller.name()).collect(),
    })
}

/// Tasks of the control plane that are not controllers: they maintain leases, files and clocks, or have their own
/// schedule.
struct Background {
    read_lease: Option<ReadLease>,
    imbalance: Arc<Imbalance>,
    registry: Registry,
    tokens: UserTokens,
}

impl Background {
    fn spawn(self, store_tasks: &mut Tasks, writes_ended: &CancellationToken) {
        let Self { read_lease, imbalance, registry, tokens } = self;
        spawn_cancellable(store_tasks, writes_ended, tokens.follow_keys());
        if let Some(read_lease) = read_lease {
            spawn_cancellable(store_tasks, writes_ended, read_lease.watch_expiry());
        }
        let stop = writes_ended.clone();
        spawn_stoppable(store_tasks, async move { imbalance.run(stop).await });
        let stop = writes_ended.clone();
        spawn_stoppable(store_tasks, async move { registry.run(stop.cancelled_owned()).await });
    }
}

/// Refuses a store that lacks earlier writes by this control plane, such as a restored backup, because readers would
/// mix two histories.
async fn refuse_restored(
    config: &ControlConfig,
    store: &dyn Store,
    revision: u64,
) -> Result<(), ControlError> {
    match audit::last_revision(&config.data_dir, store.id()).await {
        Some(logged) if logged > revision => {
            store.close().await;
            Err(ControlError::Restored { place: store_location(config), revision, logged })
        }
        _ => Ok(()),
    }
}

/// Applies the commits of the store until `stop`.
async fn apply_until(
    store: Arc<dyn Store>,
    node: Node,
    indices: Indices,
    stop: CancellationToken,
) -> Result<(), ControlError> {
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        // Ends only if the store was closed, for instance after damage. A new process verifies the file and
        // continues; this one could only refuse writes.
        () = apply_commits(store.clone(), node, indices) => {
            Err(task_ended("the store", store.fatal_error().unwrap_or("closed")))
        }
    }
}

/// Spawns a task for each file with endpoints.
fn watch_files(
    paths: &[PathBuf],
    registry: &Registry,
    store_tasks: &mut Tasks,
    writes_ended: &CancellationToken,
) -> Vec<Arc<FileSource>> {
    let files: Vec<_> = paths.iter().map(|path| Arc::new(FileSource::new(registry.clone(), path))).collect();
    for file in &files {
        let (file, stop) = (file.clone(), writes_ended.clone());
        store_tasks.spawn(async move {
            file.run(stop.cancelled_owned()).await;
            Ok(())
        });
    }
    files
}

async fn open(config: &ControlConfig) -> Result<OpenStore, ControlError> {
    match &config.etcd {
        Some(etcd) => {
            standby::check(config, etcd).await?;
            let holder = holder_name(config);
            tokio::select! {
                opened = OpenStore::open(etcd, &holder, LEASE_TTL) => Ok(opened?),
                never = standby::watch(config, etcd) => match never {},
            }
        }
        None => {
            let store = on_file(&config.data_dir, RedbStore::open).await?;
            Ok(OpenStore { store: Arc::new(store), partitions: None })
        }
    }
}

fn log_addresses(grpc: &[Listener], http: Option<&AdminListener>) {
    for address in grpc.iter().filter_map(|listener| listener.address().ok()) {
        tracing::info!(%address, "serving gRPC");
    }
    if let Some(Ok(address)) = http.map(AdminListener::local_addr) {
        tracing::info!(%address, "serving HTTP");
    }
}

/// The gRPC addresses, with the socket for users of this machine added.
fn with_own_socket(config: &ControlConfig) -> Vec<Address> {
    let path = config.data_dir.join(CONTROL_SOCKET);
    // If there is no current directory, the path stays as given.
    let own = Address::Unix(std::path::absolute(&path).unwrap_or(path));
    let others = config.grpc.iter().filter(|address| **address != own);
    others.cloned().chain([own.clone()]).collect()
}

/// Name under which this process holds the store, for messages.
fn holder_name(config: &ControlConfig) -> String {
    let addresses: Vec<_> = config.grpc.iter().map(ToString::to_string).collect();
    format!("control plane at {}, process {}", addresses.join(", "), std::process::id())
}

/// Location of the store, for messages.
fn store_location(config: &ControlConfig) -> StoreLocation {
    match &config.etcd {
        Some(etcd) => etcd.address.location(),
        None => config.data_dir.join(STORE_FILE).into(),
    }
}

/// Runs a blocking call on the store file of a data directory.
async fn on_file<T: Send + 'static>(
    data_dir: &Path,
    call: impl FnOnce(PathBuf) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let path = data_dir.join(STORE_FILE);
    let place = path.clone().into();
    spawn_blocking(move || call(path))
        .await
        .unwrap_or_else(|stopped| Err(StoreError::Io { location: place, source: io::Error::other(stopped) }))
}

/// Converts a control plane's etcd store to one that supports several partitions, unless it already does.
///
/// # Errors
/// etcd does not respond, or holds other data.
pub async fn partition_store(config: &ControlConfig) -> Result<(), ControlError> {
    match &config.etcd {
        Some(etcd) => Ok(PartitionedStore::convert(etcd, &holder_name(config), LEASE_TTL).await?),
        None => Ok(()),
    }
}

/// Gives the store of a control plane a new id. Call this once after restoring a backup. See
/// [`RedbStore::regenerate_id`] and [`fairmesh_store::EtcdStore::regenerate_id`].
///
/// # Errors
/// There is no valid store, or another process has its file open.
pub async fn renew_store_id(config: &ControlConfig) -> Result<StoreId, ControlError> {
    Ok(match &config.etcd {
        Some(etcd) => OpenStore::regenerate_id(etcd).await?,
        None => on_file(&config.data_dir, RedbStore::regenerate_id).await?,
    })
}

/// Serves gRPC on every listener.
fn serve_grpc(tasks: &mut Tasks, listeners: Vec<Listener>, services: &Services, closing: &CancellationToken) {
    for listener in listeners {
        let stop = closing.clone().cancelled_owned();
        let serving = transport::serve(services.clone(), listener, stop, DRAIN);
        tasks.spawn(async { serving.await.map_err(|e| task_ended("gRPC", e)) });
    }
}

fn serve_pages(
    tasks: &mut Tasks,
    (listener, transport, access): (Option<AdminListener>, Transport, Access),
    (state, services): (http::HttpState, Routes),
    config: &ControlConfig,
) {
    let Some(listener) = listener else { return };
    let hosts = HostNames::new(page_hosts(config));
    let (registry, closing) = (state.sources.registry.router(), state.closing.clone());
    let observed = &state.sources.observed;
    let bundle = bundle_page::router(state.sources.node.clone());
    let imbalance = imbalance::router(observed.imbalance.clone()).merge(bundle);
    let source = PageSource {
        node: state.sources.node.clone(),
        access: access.control.clone(),
        calls: Arc::clone(&observed.planning.reports().counts),
        imbalance: observed.imbalance.clone(),
        audit: observed.audit.clone(),
    };
    let page = PageConfig {
        hosts: hosts.clone(),
        version: env!("CARGO_PKG_VERSION"),
        proxies: config.proxies.clone(),
        services,
        closing: closing.clone(),
    };
    let page = fairmesh_web::router(Arc::new(source), page);
    let pages = fairmesh_pages::router(Arc::new(state)).merge(registry).merge(imbalance).merge(page);
    let pages = pages.map(|pages| guard_pages(pages, access)).at_hosts(hosts);
    spawn_stoppable(tasks, http::serve(pages, (listener, transport), closing, DRAIN));
}

/// Adds the services `Admin`, `Signals`, `Imbalance`, `TrafficPlanner`, `Identity` and `Authority`.
fn operator_services(
    routes: Routes,
    identity: &IdentityService,
    partitions: Option<Arc<PartitionedStore>>,
    Observed { audit, controllers, imbalance, planning, probes, gateway, traces }: Observed,
) -> Routes {
    let (node, store, access) = (identity.node.clone(), identity.store.clone(), identity.access.clone());
    let (traffic, reporters) = (planning.reports(), CallerNumbers::default());
    let calls = Arc::clone(&traffic.counts);
    let planner = TrafficService { planning, node: node.clone(), store: store.clone() };
    let signals = SignalsService {
        imbalance: imbalance.clone(),
        traffic,
        node: node.clone(),
        access: access.clone(),
        reporters,
        gateway: gateway.clone(),
    };
    let imbalance = ImbalanceService { imbalance, signals: signals.clone() };
    routes
        .add_service(grpc_stubs::admin_server(AdminService {
            node,
            store,
            partitions,
            audit,
            access,
            controllers,
            calls,
            probes,
            gateway,
            traces,
            workloads: Arc::default(),
        }))
        .add_service(grpc_stubs::signals_server(signals))
        .add_service(grpc_stubs::imbalance_server(imbalance))
        .add_service(grpc_stubs::traffic_planner_server(planner))
        .add_service(grpc_stubs::identity_server(identity.clone()))
        .add_service(grpc_stubs::authority_server(identity.clone()))
}

/// The services `Registry`, `Checker` and `Quota`.
fn routes(
    registry: &Registry,
    (checks, probes): (&Checks, &ZoneProbes),
    quotas: &Quotas,
    closing: &CancellationToken,
) -> Routes {
    let checker = CheckerService { checks: checks.clone(), probes: probes.clone(), closing: closing.clone() };
    Routes::new(grpc_stubs::registry_server(RegistryService::new(registry.clone())))
        .add_service(grpc_stubs::checker_server(checker))
        .add_service(grpc_stubs::quota_server(quotas.clone()))
}
