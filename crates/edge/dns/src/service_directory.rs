//! The services of the tenants that clients have asked for.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::{Prefix, Record, RecordKey, RecordKind, ServiceName, Tenant};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::{
    LogLimiter, record_encoding,
    transport::{Address, Transport},
};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// Time that the first query for a tenant waits for the tenant's services.
const FIRST_RECORDS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of followed tenants. Each tenant is a prefix that the agent must follow, and any program may ask
/// for invented tenants.
const MAX_TENANTS: usize = 256;
/// Time after its last query during which a tenant with services is not forgotten to make room.
const MIN_IDLE: Duration = Duration::from_secs(60);

/// Error: the services of a tenant are not known. The caller may ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable;

/// Follows the service declarations of tenants.
#[derive(Debug)]
pub(crate) struct Directory {
    tenants: Arc<Tenants>,
    upstream: Option<FollowerHandle>,
}

#[derive(Debug, Default)]
struct Tenants {
    followed: Mutex<BTreeMap<Tenant, FollowedTenant>>,
    /// Notifies waiting queries when the state of a tenant changes.
    known: watch::Sender<()>,
}

#[derive(Debug)]
struct FollowedTenant {
    state: TenantState,
    services: BTreeMap<ServiceName, Option<SocketAddr>>,
    last_query: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TenantState {
    Waiting,
    Known,
    /// This process may not read the tenant's services.
    Refused,
}

struct DirectorySink(Arc<Tenants>);

impl Directory {
    /// Creates a directory that follows the records of the first agent or control plane that responds.
    pub(crate) fn follow(upstreams: Vec<Address>, transport: Transport) -> Self {
        let tenants = Arc::<Tenants>::default();
        let config = FollowerConfig {
            addresses: upstreams,
            transport,
            software: "dns".into(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let upstream = Some(Follower::spawn(config, DirectorySink(Arc::clone(&tenants))));
        Self { tenants, upstream }
    }

    /// A fixed directory of these services, without an upstream.
    pub(crate) fn of_services(services: impl IntoIterator<Item = (ServiceName, Option<SocketAddr>)>) -> Self {
        let tenants = Arc::<Tenants>::default();
        for (service, address) in services {
            let mut followed = tenants.lock();
            let tenant = followed.entry(service.tenant.clone()).or_insert_with(FollowedTenant::new);
            tenant.services.insert(service, address);
            tenant.state = TenantState::Known;
        }
        Self { tenants, upstream: None }
    }

    /// Whether a service is declared, with its virtual address, if it has one.
    ///
    /// # Errors
    /// The services of its tenant are not known.
    pub(crate) async fn find(
        &self,
        service: &ServiceName,
    ) -> Result<Option<Option<SocketAddr>>, Unavailable> {
        self.read(&service.tenant, |services| services.get(service).copied()).await
    }

    /// Whether a tenant has services.
    ///
    /// # Errors
    /// The services of the tenant are not known.
    pub(crate) async fn has_services(&self, tenant: &Tenant) -> Result<bool, Unavailable> {
        self.read(tenant, |services| !services.is_empty()).await
    }

    /// Number of followed tenants, and whether the upstream is connected.
    pub(crate) fn status(&self) -> (usize, bool) {
        let is_connected = self.upstream.as_ref().is_some_and(|upstream| upstream.state().borrow().connected);
        (self.tenants.lock().len(), is_connected)
    }

    async fn read<T>(
        &self,
        tenant: &Tenant,
        read: impl Fn(&BTreeMap<ServiceName, Option<SocketAddr>>) -> T,
    ) -> Result<T, Unavailable> {
        let mut known = self.tenants.known.subscribe();
        if let Some(found) = self.look(tenant, &read)? {
            return Ok(found);
        }
        let waiting = async {
            loop {
                // The sender lives in `self`.
                let _ = known.changed().await;
                if let Some(found) = self.look(tenant, &read)? {
                    return Ok(found);
                }
            }
        };
        timeout(FIRST_RECORDS_TIMEOUT, waiting).await.unwrap_or(Err(Unavailable))
    }

    /// Reads the services of a tenant, which is followed from its first query on. `None` until its services
    /// have arrived.
    fn look<T>(
        &self,
        tenant: &Tenant,
        read: &impl Fn(&BTreeMap<ServiceName, Option<SocketAddr>>) -> T,
    ) -> Result<Option<T>, Unavailable> {
        let mut followed = self.tenants.lock();
        if !followed.contains_key(tenant) {
            self.make_room(&mut followed)?;
            // Without an upstream no services will arrive.
            let state = self.upstream.as_ref().map_or(TenantState::Known, |_| TenantState::Waiting);
            followed.insert(tenant.clone(), FollowedTenant { state, ..FollowedTenant::new() });
            // Done under the lock, so that a tenant that is forgotten meanwhile is followed again.
            self.upstream.iter().for_each(|upstream| upstream.subscribe(prefix(tenant)));
        }
        let Some(one) = followed.get_mut(tenant) else { return Err(Unavailable) };
        one.last_query = Instant::now();
        match one.state {
            TenantState::Known => Ok(Some(read(&one.services))),
            TenantState::Waiting => Ok(None),
            TenantState::Refused => Err(Unavailable),
        }
    }

    /// Forgets one tenant if there are too many: the least recently used without services, otherwise the
    /// least recently used.
    fn make_room(&self, followed: &mut BTreeMap<Tenant, FollowedTenant>) -> Result<(), Unavailable> {
        if followed.len() < MAX_TENANTS {
            return Ok(());
        }
        let now = Instant::now();
        // A tenant that waits for its first services keeps its place for as long as a query waits, so that
        // invented tenants cannot displace it.
        let may_go = |one: &FollowedTenant| match (one.state, one.services.is_empty()) {
            (TenantState::Waiting, true) => now - one.last_query >= FIRST_RECORDS_TIMEOUT,
            (_, true) => true,
            (_, false) => now - one.last_query >= MIN_IDLE,
        };
        let unused = followed.iter().filter(|(_, one)| may_go(one));
        let oldest = unused.min_by_key(|(_, one)| (!one.services.is_empty(), one.last_query));
        let tenant = oldest.map(|(tenant, _)| tenant.clone()).ok_or(Unavailable)?;
        followed.remove(&tenant);
        self.upstream.iter().for_each(|upstream| upstream.unsubscribe(&prefix(&tenant)));
        Ok(())
    }
}

fn prefix(tenant: &Tenant) -> Prefix {
    Prefix::tenant(tenant, RecordKind::Service)
}

impl Tenants {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, FollowedTenant>> {
        // No code that holds the lock panics.
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates or removes a service. The change may arrive after its tenant was forgotten.
    fn change(&self, service: &ServiceName, declared: Option<Option<SocketAddr>>) {
        let mut followed = self.lock();
        let Some(one) = followed.get_mut(&service.tenant) else { return };
        match declared {
            Some(address) => drop(one.services.insert(service.clone(), address)),
            None => drop(one.services.remove(service)),
        }
    }

    fn set_state(&self, changed: &Prefix, state: TenantState) {
        let mut followed = self.lock();
        let found = followed.iter_mut().find(|(tenant, _)| prefix(tenant) == *changed);
        if let Some((_, one)) = found {
            one.state = state;
        }
        drop(followed);
        self.known.send_replace(());
    }
}

impl FollowedTenant {
    fn new() -> Self {
        Self { state: TenantState::Waiting, services: BTreeMap::new(), last_query: Instant::now() }
    }
}

impl Sink for DirectorySink {
    const APPLIES_AT_ONCE: bool = true;

    fn update(&mut self, update: Update) {
        self.apply(&update);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        static REFUSED: LogLimiter = LogLimiter::new();
        if let Some(suppressed) = REFUSED.next() {
            tracing::info!(%prefix, reason, suppressed, "the services of a tenant cannot be read: queries for them fail until they can");
        }
        self.0.set_state(prefix, TenantState::Refused);
    }
}

impl Mirror for DirectorySink {
    fn retain(&mut self, snapshot: &Snapshot) {
        for (tenant, one) in self.0.lock().iter_mut() {
            if prefix(tenant) == snapshot.prefix {
                let is_kept =
                    |service: &ServiceName| snapshot.holds(&RecordKey::Service(service.clone()).to_string());
                one.services.retain(|service, _| is_kept(service));
            }
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        match (record_encoding::decode(&key, record.value), &key) {
            (Ok(Record::Service(declared)), RecordKey::Service(service)) => {
                self.0.change(service, Some(declared.virtual_address));
            }
            (Ok(_), _) => {}
            // The last valid record stays in force.
            (Err(error), _) => {
                tracing::error!(%error, %key, "a record is not understood; keeping the last one")
            }
        }
    }

    fn delete(&mut self, _: &str, key: &RecordKey) {
        if let RecordKey::Service(service) = key {
            self.0.change(service, None);
        }
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        self.0.set_state(prefix, TenantState::Known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn dns_queries_for_invented_tenants_evict_no_tenant_with_services() {
        let cart = ServiceName::new("shop/cart").unwrap();
        let directory = Directory::of_services([(cart.clone(), None)]);
        for number in 0..2 * MAX_TENANTS {
            let invented = Tenant::new(format!("t{number}")).unwrap();
            let asked = directory.look(&invented, &|services| services.len());
            assert_eq!(asked, Ok(Some(0)), "it has a place");
            assert!(directory.status().0 <= MAX_TENANTS);
        }
        tokio::time::advance(2 * MIN_IDLE).await;
        assert_eq!(directory.find(&cart).await, Ok(Some(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_waiting_for_first_records_are_not_evicted() {
        let directory = Directory::of_services([]);
        for number in 0..MAX_TENANTS {
            let waiting = Tenant::new(format!("t{number}")).unwrap();
            directory.tenants.lock().insert(waiting, FollowedTenant::new());
        }
        let invented = Tenant::new("invented").unwrap();
        let look = || directory.look(&invented, &|services| services.len());
        assert_eq!(look(), Err(Unavailable));
        tokio::time::advance(FIRST_RECORDS_TIMEOUT).await;
        assert_eq!(look(), Ok(Some(0)), "no query waits any more");
        assert_eq!(directory.status().0, MAX_TENANTS);
    }
}
