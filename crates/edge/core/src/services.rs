//! The table of services called through the proxy.

mod eviction;
pub mod host_cache;
pub mod host_name;
pub mod target;
pub mod virtual_addresses;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use fairmesh_calls::{
    Mesh, ServiceHandle, ServiceName, discovery::ServiceState, forwarding::service_state,
    observe::ServiceStats,
};
use fairmesh_metrics::{CallRow, OTHER};
use fairmesh_model::host_name;
use tokio::time::{Instant, timeout};

use crate::{
    limits::Limits,
    observe::service_metrics::ServiceMetrics,
    services::{
        host_name::{HostError, service_name},
        target::Target,
    },
};

/// Maximum number of services that have their own metric series, in the order of their first calls. All other
/// services are counted together.
const MAX_LABELLED: usize = 4096;

/// Time limit for finding out whether a service is declared: one request to the agent, and at most one from
/// the agent to the control plane.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// The usual DNS zone of services, by default that of `fairmesh dns`.
const USUAL_ZONE: &str = "mesh";

/// Recently called services by name.
#[derive(Debug)]
pub struct Services {
    /// The mesh through which calls are made.
    pub mesh: Mesh,
    pub(crate) limits: Limits,
    pub(crate) index: RwLock<ServiceIndex>,
    /// Summed counters of evicted services.
    pub(crate) evicted: ServiceMetrics,
    /// Summed library statistics of evicted services.
    pub(crate) evicted_calls: Mutex<ServiceStats>,
    /// Maximum number of services.
    max: AtomicUsize,
    /// Services evicted because they were not called.
    pub evictions: AtomicU64,
    /// Requests refused because the table was full.
    pub refused: AtomicU64,
    /// DNS zone whose names also stand for services.
    zone: OnceLock<String>,
}

/// Summed counters of several services.
#[derive(Debug)]
pub struct SummedServices {
    /// Sum of the request counters.
    pub metrics: ServiceMetrics,
    /// Sum of the library's call statistics.
    pub calls: ServiceStats,
}

#[derive(Debug, Default)]
pub(crate) struct ServiceIndex {
    pub(crate) by_name: HashMap<ServiceName, Arc<Target>>,
    /// Number of services with metric series of their own.
    pub(crate) labelled: usize,
    /// Time at which eviction for space last ran.
    pub(crate) last_eviction: Option<Instant>,
}

impl ServiceIndex {
    pub(crate) fn remove(&mut self, name: &ServiceName) -> Option<Arc<Target>> {
        let target = self.by_name.remove(name)?;
        self.labelled -= usize::from(target.is_labelled);
        target.forgotten.store(true, Release);
        Some(target)
    }
}

impl Services {
    pub(crate) fn new(mesh: Mesh, limits: Limits) -> Self {
        Self {
            mesh,
            limits,
            index: RwLock::default(),
            evicted: ServiceMetrics::default(),
            evicted_calls: Mutex::default(),
            max: AtomicUsize::new(limits.services),
            evictions: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            zone: OnceLock::new(),
        }
    }

    /// Makes hosts in this DNS zone name services: with zone `mesh`, `cart.shop.mesh` is `shop/cart`. Has no effect
    /// if a zone was set earlier.
    pub fn set_zone(&self, zone: String) {
        let _ = self.zone.set(zone);
    }

    /// A hint for callers of a service that is not declared, if its host looks like one beneath the usual DNS zone, and
    /// this proxy has no zone.
    pub(crate) fn zone_hint(&self, name: &ServiceName) -> Option<String> {
        let looks_like_zone = self.zone.get().is_none() && name.tenant.as_str() == USUAL_ZONE;
        looks_like_zone.then(|| {
            format!(
                "if the host {}.{USUAL_ZONE} is of the zone of 'fairmesh dns', start this proxy with --dns-zone {USUAL_ZONE}; without it \
                 send service.tenant, as cart.shop for shop/cart",
                name.service
            )
        })
    }

    /// Strips the zone from a host that lies beneath it. Other hosts are returned unchanged.
    pub(crate) fn without_zone<'a>(&self, host: &'a str) -> &'a str {
        let Some(zone) = self.zone.get() else { return host };
        let (name, length) = (host_name(host), zone.len() + 1);
        match name.len().checked_sub(length).and_then(|start| name.split_at_checked(start)) {
            Some((service, rest)) if rest.starts_with('.') && rest[1..].eq_ignore_ascii_case(zone) => service,
            _ => host,
        }
    }

    /// Changes the maximum number of services. Services in the table stay.
    pub fn set_max(&self, max: usize) {
        self.max.store(max.max(1), Relaxed);
    }

    /// The service of a host: `cart.shop` for `shop/cart`, with or without a port.
    pub fn by_host(&self, host: &str) -> Result<Arc<Target>, HostError> {
        self.by_name(&service_name(self.without_zone(host))?)
    }

    /// The service of this name. It is added to the table with its first call.
    pub fn by_name(&self, name: &ServiceName) -> Result<Arc<Target>, HostError> {
        if let Some(target) = self.index.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name) {
            return Ok(Arc::clone(target));
        }
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = index.by_name.get(name) {
            return Ok(Arc::clone(target));
        }
        let max = self.max.load(Relaxed);
        if index.by_name.len() >= max && !self.make_room(&mut index) {
            return Err(HostError::TooManyServices { max, option: self.limits.services_option });
        }
        // Cannot fail, since a parsed name is valid.
        let handle =
            self.mesh.service(name.to_string()).map_err(|_| HostError::NotAService(name.to_string()))?;
        let handle = handle.keep_fault_responses();
        let is_labelled = index.labelled < MAX_LABELLED;
        index.labelled += usize::from(is_labelled);
        let target = Arc::new(Target::new(handle, is_labelled));
        index.by_name.insert(name.clone(), Arc::clone(&target));
        Ok(target)
    }

    /// A service that was called through the proxy.
    pub fn known(&self, name: &ServiceName) -> Option<Arc<Target>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name).cloned()
    }

    /// Handle of a service that was called through the proxy, or that receives calls as a backend of one that was.
    pub fn handle_of(&self, name: &ServiceName) -> Option<ServiceHandle> {
        if let Some(target) = self.known(name) {
            return Some(target.handle.clone());
        }
        // The service whose routes name it follows it already.
        let is_backend = self.all().iter().any(|(_, target)| target.backends().contains(name));
        is_backend.then(|| self.mesh.service(name.to_string()).ok()).flatten()
    }

    /// Services that receive calls through the proxy, including backends of routes.
    pub(crate) fn called(&self) -> BTreeMap<ServiceName, ServiceHandle> {
        let all = self.all();
        let backends: BTreeSet<_> = all.iter().flat_map(|(_, target)| target.backends()).collect();
        let mut called: BTreeMap<_, _> =
            all.into_iter().map(|(name, target)| (name, target.handle.clone())).collect();
        for name in backends {
            if !called.contains_key(&name)
                && let Ok(handle) = self.mesh.service(name.to_string())
            {
                called.insert(name, handle);
            }
        }
        called
    }

    /// Whether the host names a declared service. Returns `false` if this cannot be determined in time: the caller
    /// can then pass other traffic through while no agent is reachable.
    pub async fn is_declared(&self, host: &str) -> bool {
        let Ok(target) = self.by_host(host) else { return false };
        let known = timeout(LOOKUP_TIMEOUT, target.handle.resolved()).await.is_ok();
        let declared = known && !matches!(*service_state(&target.handle), ServiceState::Unknown);
        if !declared && target.metrics.responses.classes() == [0; 5] {
            self.forget(target.handle.name());
        }
        declared
    }

    /// Removes an undeclared service, so that invented names do not fill the table.
    pub(crate) fn forget(&self, name: &ServiceName) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        // A service with its own listener stays: it may be declared later.
        if index.by_name.get(name).is_none_or(|target| !target.is_pinned.load(Acquire)) {
            index.remove(name);
        }
    }

    /// All services, sorted by name.
    pub fn all(&self) -> Vec<(ServiceName, Arc<Target>)> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let targets = index.by_name.iter();
        let mut all: Vec<_> = targets.map(|(name, target)| (name.clone(), Arc::clone(target))).collect();
        drop(index);
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// Number of services.
    pub fn count(&self) -> usize {
        self.index.read().unwrap_or_else(PoisonError::into_inner).by_name.len()
    }

    /// Number of services whose records cannot be obtained or read, so that all their calls fail.
    pub fn unavailable(&self) -> usize {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let targets = index.by_name.values();
        targets.filter(|one| matches!(*service_state(&one.handle), ServiceState::Unavailable(_))).count()
    }

    /// Services with their own series, sorted by name, and the sum over all other services if any of those was
    /// called.
    pub fn labelled(&self) -> (Vec<(ServiceName, Arc<Target>)>, Option<SummedServices>) {
        let (labelled, others): (Vec<_>, Vec<_>) =
            self.all().into_iter().partition(|(_, target)| target.is_labelled);
        let metrics = ServiceMetrics::default();
        metrics.add(&self.evicted);
        let mut calls = *self.evicted_calls.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, target) in &others {
            metrics.add(&target.metrics);
            calls += target.handle.stats();
        }
        let any = metrics.responses.classes() != [0; 5];
        (labelled, any.then_some(SummedServices { metrics, calls }))
    }

    /// Durations of calls to all services. Calls without their own caller are attributed to `caller`.
    pub fn call_rows(&self, caller: &str) -> Vec<CallRow> {
        let (labelled, others) = self.labelled();
        let mut rows = Vec::new();
        for (name, target) in labelled {
            rows.extend(target.metrics.calls.rows(caller, &name.to_string()));
        }
        if let Some(others) = others {
            rows.extend(others.metrics.calls.rows(caller, OTHER));
        }
        rows
    }

    /// Waits without a time limit until the routing information of these services is known. They are the services
    /// that have their own listeners.
    pub async fn wait_ready(&self, named: impl IntoIterator<Item = &ServiceName>) {
        self.mesh.first_snapshot().await;
        // Subscribes to all services before waiting for the first.
        let targets: Vec<_> = named.into_iter().filter_map(|name| self.by_name(name).ok()).collect();
        for target in targets {
            // A service with its own listener must stay available while the agent is down.
            target.is_pinned.store(true, Release);
            target.handle.resolved().await;
            if matches!(*service_state(&target.handle), ServiceState::Unknown) {
                let service = target.handle.name();
                tracing::warn!(%service, "service is not declared; calls to it fail until it is");
            }
        }
    }
}
