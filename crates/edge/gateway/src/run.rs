//! Runs a gateway from start to drain.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{
    Mesh,
    forwarding::{exclude_addresses, exclude_loopback},
};
use fairmesh_edge::{
    forward::forwarder::Forwarder,
    lifecycle::process_succession::{Ended, Stop, Succession, SuccessionError},
    limits::Limits,
    listen::{accept::connection_limit, event_loops::Cores, unidentified_peers::Unidentified},
    observe::observer::{ObserverConfig, RequestObserver},
    server::ConnectionServer,
    services::Services,
    shutdown::Shutdown,
    tunnel::Tunnels,
};
use fairmesh_listen::Listeners;
use fairmesh_pages::AdminServer;
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::{
    admin_pages::{self, Pages},
    config::GatewayConfig,
    entry::{EntryError, SharedAddress},
    load_reporter::LoadReporter,
    metrics::GatewayMetrics,
    node_connections::Connections,
    tenant_directory::{Directory, Quotas},
    tenants::{Shared, Tenants},
};

/// Interval at which a gateway without a certificate checks whether it has one.
const READY_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum interval between searches for idle tenants.
const MAX_FORGET_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for writing the last lines of the access log.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Why a gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// An address cannot be bound, or the running gateway cannot be replaced.
    #[error(transparent)]
    Succession(#[from] SuccessionError),
    /// Threads cannot be started.
    #[error(
        "cannot start {count} threads to serve connections: {source}; lower --cores, or raise the limits of processes"
    )]
    Cores {
        /// Number of threads that were to be started.
        count: usize,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The replicas of the backend cannot share an address.
    #[error("--entry: {0}")]
    Entry(#[from] EntryError),
}

/// Runs a gateway until `stop` completes or a successor takes over, and then drains it: it accepts no more
/// connections, responses tell clients to reconnect, and open connections have until the drain deadline.
///
/// # Errors
/// An address cannot be bound, threads cannot be started, or the running gateway cannot be replaced; the
/// running gateway then continues.
pub async fn run(
    config: GatewayConfig,
    mesh: Mesh,
    stop: impl Future<Output = ()>,
) -> Result<(), GatewayError> {
    let entry = config.entry.as_ref().map(|entry| SocketAddr::V4(entry.address));
    let addresses: Vec<SocketAddr> = [config.listen].into_iter().chain(entry).chain(config.admin).collect();
    let mut succession =
        Succession::bind(&addresses, (config.handover.as_deref(), &config.kept_options())).await?;
    let admin = config.admin.and_then(|_| succession.listeners.pop());
    exclude_addresses(&mesh, addresses);
    // A gateway on loopback belongs to a mesh on one machine, where pods use loopback addresses too.
    if !config.listen.ip().is_loopback() {
        exclude_loopback(&mesh);
    }
    let gateway = Gateway::start(&config, mesh.clone(), !succession.has_predecessor())?;
    let mut admin = admin.map(|bound| admin_pages::start(bound, gateway.pages()));
    let ended = gateway.run((succession, &mut admin), &config.limits, stop).await;
    mesh.close().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    ended
}

struct Gateway {
    /// Accepts connections. The server of their tenant forwards the requests.
    server: Arc<ConnectionServer>,
    connections: Arc<Connections>,
    observer: Arc<RequestObserver>,
    shutdown: Arc<Shutdown>,
    tasks: TaskTracker,
    is_ready: Arc<AtomicBool>,
    /// The redirector, and the task that keeps its table.
    entry: Option<(Arc<SharedAddress>, AbortOnDropHandle<()>)>,
}

impl Gateway {
    fn start(config: &GatewayConfig, mesh: Mesh, is_first: bool) -> Result<Self, GatewayError> {
        let (shutdown, tasks) = (Arc::new(Shutdown::default()), TaskTracker::new());
        let observer =
            RequestObserver::start(ObserverConfig { log: config.access_log, ..ObserverConfig::default() });
        let metrics = Arc::new(GatewayMetrics::default());
        let cores = Cores::start(config.cores);
        let cores = cores.map_err(|source| GatewayError::Cores { count: config.cores, source })?;
        let limits = Limits { connections: config.handshakes, ..config.limits };
        let tunnels = Tunnels::new(limits, Arc::clone(&metrics.edge), Arc::clone(&shutdown), tasks.clone());
        // This server only accepts: no service can be looked up before the tenant is known.
        let none = Services::start(mesh.clone(), limits);
        let forwarder = Forwarder::new(none, Arc::clone(&metrics.edge), Arc::clone(&observer), tunnels);
        let server = ConnectionServer::new(Arc::new(forwarder), Arc::clone(&shutdown), cores, limits);
        let tenants = Tenants::new(Shared {
            mesh,
            observer: Arc::clone(&observer),
            shutdown: Arc::clone(&shutdown),
            connections: tasks.clone(),
            limits: config.limits,
            requests: config.tenant_requests,
            tenants: config.tenants,
        });
        let entry =
            config.entry.as_ref().map(|entry| SharedAddress::load(entry, config.listen)).transpose()?;
        let entry = entry.map(Arc::new);
        let reporter = LoadReporter::new(config.listen, config.backend.clone(), config.cores, is_first);
        let reporter = reporter.map(|reporter| reporter.with_entry(entry.clone()));
        let connections = Connections {
            transport: config.transport.clone(),
            tenants,
            directory: Arc::new(Directory::follow(
                config.agent.clone(),
                config.transport.clone(),
                (config.backend.clone(), Arc::clone(&shutdown)),
                config.entry.is_some(),
            )),
            metrics,
            unidentified: Unidentified::new(config.handshakes),
            permits: connection_limit(config.connections),
            idle_timeout: config.limits.idle_timeout,
            opened: reporter.is_some().then(Mutex::default),
        };
        let connections = Arc::new(connections);
        tokio::spawn(follow_quotas(Arc::downgrade(&connections), connections.directory.quotas().clone()));
        tokio::spawn(forget_tenants(Arc::downgrade(&connections), config.limits.service_idle));
        let is_ready = Arc::<AtomicBool>::default();
        if let Some(reporter) = reporter {
            let stopping = shutdown.started().clone();
            tokio::spawn(reporter.run(Arc::downgrade(&connections), Arc::clone(&is_ready), stopping));
        }
        let entry = entry.map(|entry| (Arc::clone(&entry), entry.follow(&connections.directory)));
        Ok(Self { server: Arc::new(server), connections, observer, shutdown, tasks, is_ready, entry })
    }

    fn pages(&self) -> Pages {
        Pages {
            connections: Arc::clone(&self.connections),
            listeners: Listeners::default(),
            is_ready: Arc::clone(&self.is_ready),
            entry: self.entry.as_ref().map(|(entry, _)| Arc::clone(entry)),
        }
    }

    /// Detaches the redirector, unless a successor has replaced it, or other replicas still pass packets on to this machine: its kernel would
    /// reset their connections.
    fn detach_entry(&self, ended: Ended) {
        let Some((entry, following)) = &self.entry else { return };
        following.abort();
        if ended == Ended::Stopped
            && !entry.is_listed()
            && let Err(error) = entry.detach()
        {
            tracing::error!(%error, "the redirector of --entry is still attached");
        }
    }

    async fn run(
        &self,
        (succession, admin): (Succession, &mut Option<AdminServer>),
        limits: &Limits,
        stop: impl Future<Output = ()>,
    ) -> Result<(), GatewayError> {
        let ends = Stop {
            shutdown: Arc::clone(&self.shutdown),
            drain: limits.drain,
            ready_within: limits.handover_timeout,
        };
        let accept = |listeners: Vec<TcpListener>, accepting: &TaskTracker| {
            self.entry.iter().for_each(|(entry, _)| entry.serve());
            listeners.into_iter().for_each(|listener| drop(accepting.spawn(self.accept(listener))));
            self.is_ready.store(true, Relaxed);
        };
        let stop = async {
            stop.await;
            self.is_ready.store(false, Relaxed);
        };
        let ended = succession.run(self.ready(), accept, ends, stop).await?;
        // A successor serves the admin pages from now on.
        if let Some(admin) = admin.take_if(|_| ended == Ended::Succeeded) {
            admin.stop().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
        self.detach_entry(ended);
        self.observer.stop(Instant::now() + LAST_LINES).await;
        Ok(())
    }

    /// Completes once the gateway has a certificate that nodes accept, and the authorization of services
    /// without rules is known.
    async fn ready(&self) {
        while let Some(problem) = self.connections.transport.lacks_certificate() {
            tracing::debug!(problem, "not ready");
            sleep(READY_INTERVAL).await;
        }
        self.connections.directory.ready().await;
    }

    fn accept(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + use<> {
        let (server, tasks, connections) =
            (Arc::clone(&self.server), self.tasks.clone(), Arc::clone(&self.connections));
        async move {
            let serve = move |accepted| Arc::clone(&connections).serve(accepted);
            server.accept(&listener, &tasks, serve).await;
        }
    }
}

/// Applies quotas as they change, until the gateway ends.
async fn follow_quotas(connections: Weak<Connections>, mut quotas: watch::Receiver<Quotas>) {
    while quotas.changed().await.is_ok() {
        let Some(connections) = connections.upgrade() else { return };
        // Copied, since `server_of` reads the quotas while it holds the lock of all tenants.
        let current = quotas.borrow_and_update().clone();
        connections.tenants.set_quotas(&current);
    }
}

/// Forgets idle tenants periodically, until the gateway ends.
async fn forget_tenants(connections: Weak<Connections>, idle_for: Duration) {
    let mut ticks = interval((idle_for / 4).clamp(Duration::from_millis(10), MAX_FORGET_INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = ticks.tick().await;
        let Some(connections) = connections.upgrade() else { return };
        connections.tenants.forget_idle(now, |tenant| connections.directory.forget(tenant));
    }
}
