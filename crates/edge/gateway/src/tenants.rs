//! What each tenant has of its own: a table of services, counters, tunnels and limits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_calls::Mesh;
use fairmesh_edge::{
    forward::forwarder::Forwarder, limits::Limits, listen::cores::Cores, metrics::EdgeMetrics,
    observe::observer::RequestObserver, server::ConnectionServer, services::Services, shutdown::Shutdown,
    tunnel::Tunnels,
};
use fairmesh_model::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// A tenant whose pods have connected.
#[derive(Debug)]
pub(crate) struct TenantServer {
    /// Serves its connections.
    pub(crate) server: Arc<ConnectionServer>,
    permits: Arc<Semaphore>,
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
    /// Maximum number of tenants.
    pub(crate) tenants: usize,
}

/// The tenants whose pods have connected; they stay, since each has proved an identity of the mesh.
#[derive(Debug)]
pub(crate) struct Tenants {
    shared: Shared,
    by_name: Mutex<BTreeMap<Tenant, Arc<TenantServer>>>,
}

impl Tenants {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared, by_name: Mutex::default() }
    }

    /// The server of a tenant; `None` at the maximum number of tenants.
    pub(crate) fn server_of(&self, tenant: &Tenant) -> Option<Arc<TenantServer>> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = by_name.get(tenant) {
            return Some(Arc::clone(server));
        }
        if by_name.len() >= self.shared.tenants {
            return None;
        }
        let server = Arc::new(TenantServer::new(&self.shared));
        by_name.insert(tenant.clone(), Arc::clone(&server));
        Some(server)
    }

    /// All tenants, by name.
    pub(crate) fn all(&self) -> Vec<(Tenant, Arc<TenantServer>)> {
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.iter().map(|(tenant, server)| (tenant.clone(), Arc::clone(server))).collect()
    }
}

impl TenantServer {
    /// Must be called within a tokio runtime.
    fn new(shared: &Shared) -> Self {
        let Shared { mesh, observer, shutdown, connections, limits, .. } = shared;
        let metrics = Arc::<EdgeMetrics>::default();
        let tunnels = Tunnels::new(*limits, Arc::clone(&metrics), Arc::clone(shutdown), connections.clone());
        let services = Services::start(mesh.clone(), *limits);
        let forwarder = Forwarder::new(services, metrics, Arc::clone(observer), tunnels);
        let forwarder = Arc::new(forwarder.with_max_body(limits.body));
        // Its connections run where they were accepted.
        let server = ConnectionServer::new(forwarder, Arc::clone(shutdown), Cores::default(), *limits);
        let limit = limits.connections.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            server: Arc::new(server),
            permits: Arc::new(Semaphore::new(limit)),
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
