//! The state of each tenant: a table of services, counters, tunnels and limits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{Mesh, forwarding::Principal};
use fairmesh_edge::{
    forward::{forwarder::Forwarder, request_limit::RequestLimit},
    limits::Limits,
    listen::{accept::connection_limit, event_loops::Cores},
    metrics::EdgeMetrics,
    observe::observer::RequestObserver,
    server::ConnectionServer,
    services::Services,
    shutdown::Shutdown,
    tunnel::Tunnels,
};
use fairmesh_model::{GatewayQuota, Tenant};
use fairmesh_wire::LogLimiter;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};
use tokio_util::task::TaskTracker;

use crate::{connection_rate::ConnectionRate, tenant_directory::Quotas};

/// A tenant whose pods have connected.
#[derive(Debug)]
pub(crate) struct TenantServer {
    /// Serves the connections of the tenant.
    pub(crate) server: Arc<ConnectionServer>,
    /// Limits the log lines that the tenant's connections cause.
    pub(crate) log: Arc<LogLimiter>,
    /// Permits of the tenant's mirrored calls.
    pub(crate) mirrors: Arc<Semaphore>,
    /// Counts the tenant's open connections.
    permits: Arc<Semaphore>,
    /// Limits the connections that begin in a second.
    handshakes: ConnectionRate,
    /// Limits its requests in flight.
    pub(crate) requests: Arc<RequestLimit>,
    /// Connections accepted, connections refused at the tenant's limit, and connections refused at its rate.
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) refused_by_rate: AtomicU64,
    /// Maximum number of connections.
    limit: AtomicUsize,
}

/// Settings and objects that the servers of all tenants share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mesh: Mesh,
    pub(crate) observer: Arc<RequestObserver>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) connections: TaskTracker,
    /// Limits of each tenant.
    pub(crate) limits: Limits,
    /// Maximum number of requests in flight per tenant.
    pub(crate) requests: usize,
    /// Maximum number of tenants.
    pub(crate) tenants: usize,
}

/// The tenants whose pods have connected. A tenant without connections is forgotten after a while.
#[derive(Debug)]
pub(crate) struct Tenants {
    shared: Shared,
    by_name: Mutex<BTreeMap<Tenant, KnownTenant>>,
}

#[derive(Debug)]
struct KnownTenant {
    server: Arc<TenantServer>,
    /// Number of accepted connections when no open connection was found first, and the time of that check.
    quiet: Option<(u64, Instant)>,
}

impl Tenants {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared, by_name: Mutex::default() }
    }

    /// The server of a tenant. `None` for a new tenant at the maximum number of tenants. A new server gets
    /// the tenant's quota from `quotas`.
    pub(crate) fn server_of(
        &self,
        tenant: &Tenant,
        quotas: &watch::Receiver<Quotas>,
    ) -> Option<Arc<TenantServer>> {
        let mut by_name = self.lock();
        if let Some(known) = by_name.get(tenant) {
            return Some(Arc::clone(&known.server));
        }
        if by_name.len() >= self.shared.tenants {
            return None;
        }
        let server = Arc::new(TenantServer::new(&self.shared));
        // Done under the lock, so that a change of quotas is applied either here or by `set_quotas`.
        server.set_quota(&self.shared, quotas.borrow().get(tenant).copied());
        by_name.insert(tenant.clone(), KnownTenant { server: Arc::clone(&server), quiet: None });
        Some(server)
    }

    /// Applies the quotas of all tenants to connections and requests that begin from now on.
    pub(crate) fn set_quotas(&self, quotas: &Quotas) {
        for (tenant, known) in &*self.lock() {
            known.server.set_quota(&self.shared, quotas.get(tenant).copied());
        }
    }

    /// All tenants with their servers, sorted by name.
    pub(crate) fn all(&self) -> Vec<(Tenant, Arc<TenantServer>)> {
        self.lock().iter().map(|(tenant, known)| (tenant.clone(), Arc::clone(&known.server))).collect()
    }

    /// Forgets tenants, with their counters, that had no connection for the time after which services are
    /// evicted. Calls `forgotten` for each tenant before the tenant can connect again.
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
    /// Whether the tenant had no connection for `idle_for`. A connection that is being admitted holds a
    /// reference to the server.
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
    /// Creates the server of a tenant. Must be called within a tokio runtime.
    fn new(shared: &Shared) -> Self {
        let Shared { mesh, observer, shutdown, connections, limits, requests, .. } = shared;
        let metrics = Arc::<EdgeMetrics>::default();
        let tunnels = Tunnels::new(*limits, Arc::clone(&metrics), Arc::clone(shutdown), connections.clone());
        let services = Services::start(mesh.clone(), *limits);
        let forwarder = Forwarder::new(services, metrics, Arc::clone(observer), tunnels);
        let forwarder = Arc::new(forwarder.with_max_body(limits.body));
        // Connections are served on the core that accepted them.
        let server = ConnectionServer::new(forwarder, Arc::clone(shutdown), Cores::default(), *limits);
        Self {
            server: Arc::new(server),
            log: Arc::new(LogLimiter::new()),
            mirrors: Principal::mirror_permits(),
            // The permits only count, so that the limit may change while connections are open.
            permits: connection_limit(Semaphore::MAX_PERMITS),
            handshakes: ConnectionRate::default(),
            requests: RequestLimit::new(*requests, "--max-tenant-requests"),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refused_by_rate: AtomicU64::new(0),
            limit: AtomicUsize::new(limits.connections.max(1)),
        }
    }

    /// Sets the limits of a quota; `None` sets the limits of the options.
    fn set_quota(&self, shared: &Shared, quota: Option<GatewayQuota>) {
        let quota = quota.unwrap_or_default();
        let or = |limit: Option<u32>, option: usize| limit.map_or(option, |limit| limit as usize);
        self.limit.store(or(quota.connections, shared.limits.connections).max(1), Relaxed);
        self.handshakes.set(quota.handshakes_per_second);
        self.requests.set_max(or(quota.requests, shared.requests));
        self.server.forwarder.services.set_max(or(quota.services, shared.limits.services));
    }

    /// Takes a permit for a connection of the tenant, and counts a refused one. `None` at the limit, or if
    /// too many connections began in the last second.
    pub(crate) fn enter(&self) -> Option<OwnedSemaphorePermit> {
        if !self.handshakes.admits(Instant::now()) {
            self.refused_by_rate.fetch_add(1, Relaxed);
            return None;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        // The connection's own permit is counted too, so that concurrent connections cannot exceed the limit
        // together.
        let permit = permit.filter(|_| self.open() <= self.limit.load(Relaxed) as u64);
        if permit.is_none() {
            self.refused.fetch_add(1, Relaxed);
        }
        permit
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> u64 {
        (Semaphore::MAX_PERMITS - self.permits.available_permits()) as u64
    }
}
