//! What each tenant has of its own: a table of services, counters, tunnels and limits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::Mesh;
use fairmesh_edge::{
    forward::{forwarder::Forwarder, request_limit::RequestLimit},
    limits::Limits,
    listen::{accept::connection_limit, cores::Cores},
    metrics::EdgeMetrics,
    observe::observer::RequestObserver,
    server::ConnectionServer,
    services::Services,
    shutdown::Shutdown,
    tunnel::Tunnels,
};
use fairmesh_model::Tenant;
use fairmesh_wire::LogLimiter;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::task::TaskTracker;

/// A tenant whose pods have connected.
#[derive(Debug)]
pub(crate) struct TenantServer {
    /// Serves its connections.
    pub(crate) server: Arc<ConnectionServer>,
    /// Lines that its connections cause.
    pub(crate) log: Arc<LogLimiter>,
    permits: Arc<Semaphore>,
    /// Limits its requests in flight.
    pub(crate) requests: Arc<RequestLimit>,
    /// Connections accepted, and those refused at the tenant's limit.
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    limit: usize,
}

/// What the servers of all tenants share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mesh: Mesh,
    pub(crate) observer: Arc<RequestObserver>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) connections: TaskTracker,
    /// Limits of one tenant.
    pub(crate) limits: Limits,
    /// Maximum number of requests of one tenant in flight.
    pub(crate) requests: usize,
    /// Maximum number of tenants.
    pub(crate) tenants: usize,
}

/// The tenants whose pods have connected, until they have not for a while.
#[derive(Debug)]
pub(crate) struct Tenants {
    shared: Shared,
    by_name: Mutex<BTreeMap<Tenant, KnownTenant>>,
}

#[derive(Debug)]
struct KnownTenant {
    server: Arc<TenantServer>,
    /// The number of its connections when none was found open, and since when.
    quiet: Option<(u64, Instant)>,
}

impl Tenants {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared, by_name: Mutex::default() }
    }

    /// The server of a tenant; `None` at the maximum number of tenants.
    pub(crate) fn server_of(&self, tenant: &Tenant) -> Option<Arc<TenantServer>> {
        let mut by_name = self.lock();
        if let Some(known) = by_name.get(tenant) {
            return Some(Arc::clone(&known.server));
        }
        if by_name.len() >= self.shared.tenants {
            return None;
        }
        let server = Arc::new(TenantServer::new(&self.shared));
        by_name.insert(tenant.clone(), KnownTenant { server: Arc::clone(&server), quiet: None });
        Some(server)
    }

    /// All tenants, by name.
    pub(crate) fn all(&self) -> Vec<(Tenant, Arc<TenantServer>)> {
        self.lock().iter().map(|(tenant, known)| (tenant.clone(), Arc::clone(&known.server))).collect()
    }

    /// Forgets the tenants without connections for the time after which services are evicted, with their counters. `forgotten` is told of
    /// each before it can connect again.
    pub(crate) fn forget_idle(&self, now: Instant, forgotten: impl Fn(&Tenant)) {
        let idle_for = self.shared.limits.service_idle;
        self.lock().retain(|tenant, known| {
            let is_kept = !known.is_idle(now, idle_for);
            if !is_kept {
                forgotten(tenant);
            }
            is_kept
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, KnownTenant>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownTenant {
    /// Whether it had no connection for `idle_for`. One that is being admitted holds the server.
    fn is_idle(&mut self, now: Instant, idle_for: Duration) -> bool {
        if Arc::strong_count(&self.server) > 1 {
            return false;
        }
        if self.server.open() > 0 {
            self.quiet = None;
            return false;
        }
        let accepted = self.server.accepted.load(Relaxed);
        match self.quiet {
            Some((before, since)) if before == accepted => now.duration_since(since) >= idle_for,
            _ => {
                self.quiet = Some((accepted, now));
                false
            }
        }
    }
}

impl TenantServer {
    /// Must be called within a tokio runtime.
    fn new(shared: &Shared) -> Self {
        let Shared { mesh, observer, shutdown, connections, limits, requests, .. } = shared;
        let metrics = Arc::<EdgeMetrics>::default();
        let tunnels = Tunnels::new(*limits, Arc::clone(&metrics), Arc::clone(shutdown), connections.clone());
        let services = Services::start(mesh.clone(), *limits);
        let forwarder = Forwarder::new(services, metrics, Arc::clone(observer), tunnels);
        let forwarder = Arc::new(forwarder.with_max_body(limits.body));
        // Its connections run where they were accepted.
        let server = ConnectionServer::new(forwarder, Arc::clone(shutdown), Cores::default(), *limits);
        let permits = connection_limit(limits.connections);
        let limit = permits.available_permits();
        Self {
            server: Arc::new(server),
            log: Arc::new(LogLimiter::new()),
            permits,
            requests: RequestLimit::new(*requests, "--max-tenant-requests"),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            limit,
        }
    }

    /// A place among the tenant's connections, and counts it; `None` at the limit.
    pub(crate) fn enter(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        let counter = if permit.is_some() { &self.accepted } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        permit
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> u64 {
        (self.limit - self.permits.available_permits()) as u64
    }
}
