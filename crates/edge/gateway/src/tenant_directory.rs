//! What a gateway has to know of tenants besides their routes: virtual addresses of services, where services are placed and what limits
//! their connections, and what applies without rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::forwarding::TokenVerifier;
use fairmesh_edge::{
    counter::increment, forward::misdirected_request::ServedServices,
    services::virtual_addresses::VirtualAddresses, shutdown::Shutdown,
};
use fairmesh_identity::{Clock as _, SystemClock};
use fairmesh_model::{
    DefaultAuthorization, GatewayQuota, Label, Placement, Prefix, Record, RecordKey, RecordKind, Revision,
    ServiceName, Tenant, TokenIssuers,
};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_tokens::Issuers;
use fairmesh_wire::{
    record_encoding,
    transport::{Address, Transport},
};
use tokio::{
    sync::watch,
    time::{Instant, error::Elapsed, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::service_connections::ServiceConnections;

/// How long the first connection of a tenant waits for its virtual addresses.
const FIRST_RECORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// The most services whose refused connections metrics show by name.
const MAX_LABELLED: usize = 64;

/// Services whose connections are remembered before idle ones are forgotten.
const MIN_REMEMBERED: usize = 64;

/// What tenants may have, where records say so.
pub(crate) type Quotas = BTreeMap<Tenant, GatewayQuota>;

/// Local copy of the records.
#[derive(Debug, Default)]
struct TenantRecords {
    addresses: VirtualAddresses,
    placements: BTreeMap<ServiceName, Placement>,
    /// Connections to virtual addresses by service, whether it is placed or not: a placement that comes later may end them, or come again
    /// after it was deleted.
    connections: BTreeMap<ServiceName, Arc<ServiceConnections>>,
    /// How many of them there may be before idle ones are forgotten.
    remembered: usize,
    /// The prefixes of the tenants that call.
    followed: BTreeSet<Prefix>,
    /// The backend of this replica, if it has one.
    backend: Option<Label>,
    /// The shutdown of this replica.
    shutdown: Arc<Shutdown>,
}

/// Whether a connection to the virtual address of a service may begin here.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It may, and ends by this shutdown of the service.
    Admitted(Arc<Shutdown>),
    /// The service is placed on other backends.
    Elsewhere,
    /// More connections begin than the placement allows.
    Throttled,
}

/// Follows the services of the tenants whose pods have connected.
#[derive(Debug)]
pub(crate) struct Directory {
    records: Arc<RwLock<TenantRecords>>,
    default: watch::Receiver<DefaultAuthorization>,
    tokens: watch::Receiver<Arc<dyn TokenVerifier>>,
    quotas: watch::Receiver<Quotas>,
    replicas: watch::Receiver<BTreeSet<SocketAddr>>,
    /// The prefixes whose records have arrived, or whose access is refused.
    known: Arc<watch::Sender<BTreeSet<Prefix>>>,
    /// Connections and requests for services of other backends.
    pub(crate) misdirected: AtomicU64,
    /// Connections beyond the limits of services that metrics do not show by name.
    throttled_others: AtomicU64,
    upstream: FollowerHandle,
    _acks: AbortOnDropHandle<()>,
}

struct DirectorySink {
    records: Arc<RwLock<TenantRecords>>,
    default: watch::Sender<DefaultAuthorization>,
    /// Whether the default in force is of a record that was read.
    has_default: bool,
    tokens: watch::Sender<Arc<dyn TokenVerifier>>,
    quotas: watch::Sender<Quotas>,
    /// The backend of this replica, and its replicas.
    backend: Option<Label>,
    replicas: watch::Sender<BTreeSet<SocketAddr>>,
    known: Arc<watch::Sender<BTreeSet<Prefix>>>,
    applied: watch::Sender<Option<Revision>>,
}

impl Directory {
    /// Follows the records of an agent, for a replica of this backend, whose connections end by this shutdown. With
    /// `follows_replicas`, also the record of the backend.
    pub(crate) fn follow(
        agent: Address,
        transport: Transport,
        (backend, shutdown): (Option<Label>, Arc<Shutdown>),
        follows_replicas: bool,
    ) -> Self {
        let own = backend.clone();
        let (replicas, of_backend) = watch::channel(BTreeSet::new());
        let records = TenantRecords { backend, shutdown, ..TenantRecords::default() };
        let records = Arc::new(RwLock::new(records));
        let (default, told) = watch::channel(DefaultAuthorization::default());
        let (tokens, verifiers) =
            watch::channel(Arc::new(Issuers::unknown(system_time)) as Arc<dyn TokenVerifier>);
        let (quotas, of_tenants) = watch::channel(Quotas::default());
        let known = Arc::new(watch::Sender::default());
        let (applied, revisions) = watch::channel(None);
        let sink = DirectorySink {
            records: Arc::clone(&records),
            default,
            has_default: false,
            tokens,
            quotas,
            backend: own.clone(),
            replicas,
            known: Arc::clone(&known),
            applied,
        };
        let config = FollowerConfig {
            addresses: vec![agent],
            transport,
            software: "gateway, virtual addresses".into(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let upstream = Follower::spawn(config, sink);
        upstream.subscribe(default_prefix());
        upstream.subscribe(Prefix::gateway_quotas());
        upstream.subscribe(issuers_prefix());
        if let Some(backend) = own.filter(|_| follows_replicas) {
            upstream.subscribe(Prefix::from(&RecordKey::GatewayBackend(backend)));
        }
        let acks = AbortOnDropHandle::new(tokio::spawn(acknowledge(upstream.clone(), revisions)));
        Self {
            records,
            default: told,
            tokens: verifiers,
            quotas: of_tenants,
            replicas: of_backend,
            known,
            misdirected: AtomicU64::new(0),
            throttled_others: AtomicU64::new(0),
            upstream,
            _acks: acks,
        }
    }

    /// The connection to the agent.
    pub(crate) fn upstream(&self) -> &FollowerHandle {
        &self.upstream
    }

    /// The quotas of tenants. The receiver is notified of changes.
    pub(crate) fn quotas(&self) -> &watch::Receiver<Quotas> {
        &self.quotas
    }

    /// The replicas of the backend of this replica, as its last record lists them. The receiver is notified of changes.
    pub(crate) fn replicas(&self) -> &watch::Receiver<BTreeSet<SocketAddr>> {
        &self.replicas
    }

    /// The authorization of services without rules of their own. The receiver is notified of changes.
    pub(crate) fn default_authorization(&self) -> watch::Receiver<DefaultAuthorization> {
        self.default.clone()
    }

    /// The verifier of end-user tokens. The receiver is notified of changes.
    pub(crate) fn token_verifier(&self) -> watch::Receiver<Arc<dyn TokenVerifier>> {
        self.tokens.clone()
    }

    /// Waits until the authorization of services without rules is known. Before that, no caller is let in.
    pub(crate) async fn ready(&self) {
        self.wait_known(&BTreeSet::from([default_prefix()])).await;
    }

    /// The service of a tenant at a virtual address, if there is one. The first call for a tenant waits up to
    /// two seconds for its records.
    ///
    /// # Errors
    /// The records have not arrived. The address may then belong to a service, so the host of a request must
    /// not be used instead.
    pub(crate) async fn service_at(
        &self,
        tenant: &Tenant,
        address: SocketAddr,
    ) -> Result<Option<ServiceName>, Elapsed> {
        let prefixes = prefixes(tenant);
        let is_followed = read(&self.records).followed.is_superset(&prefixes);
        if !is_followed {
            // Done under the lock, so that a tenant that is forgotten meanwhile is followed again.
            let mut records = write(&self.records);
            for prefix in &prefixes {
                if records.followed.insert(prefix.clone()) {
                    self.upstream.subscribe(prefix.clone());
                }
            }
        }
        timeout(FIRST_RECORDS_TIMEOUT, self.wait_known(&prefixes)).await?;
        Ok(read(&self.records).addresses.service_at(tenant, address).cloned())
    }

    /// Stops following a tenant.
    pub(crate) fn forget(&self, tenant: &Tenant) {
        let prefixes = prefixes(tenant);
        let mut records = write(&self.records);
        for prefix in &prefixes {
            self.upstream.unsubscribe(prefix);
            self.known.send_if_modified(|known| known.remove(prefix));
        }
        records.forget(tenant, &prefixes);
    }

    /// Lets a connection to the virtual address of a service begin.
    pub(crate) fn enter(&self, service: &ServiceName, now: Instant) -> Entry {
        // Under one lock, so that a move that ends connections finds this one, or refuses it.
        let records = read(&self.records);
        if let Some(connections) = records.connections.get(service) {
            return self.admit(&records, (service, connections), now);
        }
        drop(records);
        let mut records = write(&self.records);
        records.forget_all_idle();
        let connections = records.connections_of(service);
        self.admit(&records, (service, &connections), now)
    }

    fn admit(
        &self,
        records: &TenantRecords,
        (service, connections): (&ServiceName, &ServiceConnections),
        now: Instant,
    ) -> Entry {
        if !records.serves(service) {
            increment(&self.misdirected);
            return Entry::Elsewhere;
        }
        match connections.enter(now) {
            Some(shutdown) => Entry::Admitted(shutdown),
            None => {
                connections
                    .count_refused(|| records.labelled().count() < MAX_LABELLED, &self.throttled_others);
                Entry::Throttled
            }
        }
    }

    /// Connections that were refused at the limits of services, and the sum of the services that are not labelled.
    pub(crate) fn throttled(&self) -> (Vec<(ServiceName, u64)>, u64) {
        let labelled = read(&self.records).labelled().map(|(name, count)| (name.clone(), count)).collect();
        (labelled, self.throttled_others.load(Relaxed))
    }

    async fn wait_known(&self, prefixes: &BTreeSet<Prefix>) {
        // The sender lives in `self`.
        let _ = self.known.subscribe().wait_for(|known| known.is_superset(prefixes)).await;
    }
}

/// Acknowledges the revisions that were applied.
async fn acknowledge(upstream: FollowerHandle, mut revisions: watch::Receiver<Option<Revision>>) {
    while revisions.changed().await.is_ok() {
        let revision = *revisions.borrow_and_update();
        revision.into_iter().for_each(|revision| upstream.ack(revision));
    }
}

/// What a tenant's calls need.
fn prefixes(tenant: &Tenant) -> BTreeSet<Prefix> {
    [RecordKind::Service, RecordKind::Placement].map(|kind| Prefix::tenant(tenant, kind)).into()
}

fn read(records: &RwLock<TenantRecords>) -> RwLockReadGuard<'_, TenantRecords> {
    records.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(records: &RwLock<TenantRecords>) -> RwLockWriteGuard<'_, TenantRecords> {
    records.write().unwrap_or_else(PoisonError::into_inner)
}

fn default_prefix() -> Prefix {
    Prefix::from(&RecordKey::DefaultAuthorization)
}

fn issuers_prefix() -> Prefix {
    Prefix::from(&RecordKey::TokenIssuers)
}

fn system_time() -> Duration {
    SystemClock.now()
}

impl ServedServices for Directory {
    fn serves(&self, service: &ServiceName) -> bool {
        let is_served = read(&self.records).serves(service);
        if !is_served {
            increment(&self.misdirected);
        }
        is_served
    }
}

impl TenantRecords {
    /// Whether a service is placed on the backend of this replica, or nowhere.
    fn serves(&self, service: &ServiceName) -> bool {
        let Some(backend) = &self.backend else { return true };
        self.placements.get(service).is_none_or(|placement| placement.has(backend))
    }

    /// Places a service, and applies that to its connections.
    fn place(&mut self, service: &ServiceName, placement: Placement) {
        self.connections_of(service).apply(&placement, self.backend.as_ref(), &self.shutdown);
        self.placements.insert(service.clone(), placement);
    }

    /// Ends the placement of a service, and its limit of connections.
    fn displace(&mut self, service: &ServiceName) {
        self.placements.remove(service);
        if let Some(connections) = self.connections.get(service) {
            connections.unlimit();
        }
        self.forget_idle(service);
    }

    /// The connections to the virtual address of a service.
    fn connections_of(&mut self, service: &ServiceName) -> Arc<ServiceConnections> {
        let new = || Arc::new(ServiceConnections::new(&self.shutdown));
        Arc::clone(self.connections.entry(service.clone()).or_insert_with(new))
    }

    /// Sets the virtual address of a service, if it has one.
    fn set_address(&mut self, service: &ServiceName, address: Option<SocketAddr>) {
        self.addresses.set(service, address);
        if address.is_none() {
            self.forget_idle(service);
        }
    }

    /// Forgets the connections of a service without a placement if none is open.
    fn forget_idle(&mut self, service: &ServiceName) {
        let is_idle = self.connections.get(service).is_some_and(|connections| !connections.is_open());
        if is_idle && !self.placements.contains_key(service) {
            self.connections.remove(service);
        }
    }

    /// Forgets the connections of all services without a placement and without open ones. Their records may have been deleted while
    /// connections were open. Looks at all of them only once twice as many are remembered as the last time.
    fn forget_all_idle(&mut self) {
        if self.connections.len() < self.remembered.max(MIN_REMEMBERED) {
            return;
        }
        let Self { connections, placements, .. } = self;
        connections.retain(|service, open| open.is_open() || placements.contains_key(service));
        self.remembered = connections.len() * 2;
    }

    /// Services whose refused connections metrics show by name.
    fn labelled(&self) -> impl Iterator<Item = (&ServiceName, u64)> {
        self.connections.iter().filter_map(|(name, connections)| Some((name, connections.labelled()?)))
    }

    /// Removes all of a tenant.
    fn forget(&mut self, tenant: &Tenant, prefixes: &BTreeSet<Prefix>) {
        self.followed.retain(|prefix| !prefixes.contains(prefix));
        self.addresses.forget(tenant);
        self.placements.retain(|service, _| service.tenant != *tenant);
        self.connections.retain(|service, _| service.tenant != *tenant);
    }
}

impl DirectorySink {
    /// Applies a change to a service's records. The change may arrive after its tenant was forgotten.
    fn change(&self, (service, kind): (&ServiceName, RecordKind), change: impl FnOnce(&mut TenantRecords)) {
        let mut records = write(&self.records);
        if records.followed.contains(&Prefix::tenant(&service.tenant, kind)) {
            change(&mut records);
        }
    }

    fn set_issuers(&self, record: &TokenIssuers) {
        let (issuers, unreadable) = Issuers::of(record, system_time);
        for issuer in unreadable {
            tracing::error!(
                issuer,
                "the keys of an issuer of tokens are not understood, and its tokens are refused"
            );
        }
        self.tokens.send_replace(Arc::new(issuers));
    }

    /// Sets the default of the mesh to that of a record, or to that of a mesh without a record.
    fn set_default(&mut self, record: Option<DefaultAuthorization>) {
        self.has_default = record.is_some();
        self.default.send_replace(record.unwrap_or_default());
    }

    fn set_address(&self, service: &ServiceName, address: Option<SocketAddr>) {
        self.change((service, RecordKind::Service), |records| records.set_address(service, address));
    }
}

impl Sink for DirectorySink {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        if *prefix == Prefix::gateway_quotas() {
            return tracing::info!(%prefix, reason, "this gateway may not read the quotas of tenants: its options apply to all");
        }
        if self
            .backend
            .as_ref()
            .is_some_and(|name| *prefix == Prefix::from(&RecordKey::GatewayBackend(name.clone())))
        {
            return tracing::warn!(%prefix, reason, "this gateway may not read the record of its backend: it gets no connections to --entry");
        }
        if *prefix == issuers_prefix() {
            tracing::info!(%prefix, reason, "the issuers of tokens are not known: requests with a token of an end user are refused");
            return self.set_issuers(&TokenIssuers::default());
        }
        tracing::info!(%prefix, reason, "this gateway may not read the services of a tenant: hosts name them all the same");
        // The default prefix stays unknown: until it is known, no caller is let in.
        if *prefix != default_prefix() {
            self.mark_current(prefix);
        }
    }
}

impl Mirror for DirectorySink {
    fn retain(&mut self, snapshot: &Snapshot) {
        let default = RecordKey::DefaultAuthorization.to_string();
        if snapshot.prefix.covers(&default) && !snapshot.holds(&default) {
            self.set_default(None);
        }
        if snapshot.prefix == issuers_prefix() && !snapshot.holds(snapshot.prefix.as_str()) {
            self.set_issuers(&TokenIssuers::default());
        }
        let is_kept = |key: RecordKey| {
            let key = key.to_string();
            !snapshot.prefix.covers(&key) || snapshot.holds(&key)
        };
        self.quotas.send_if_modified(|quotas| {
            let before = quotas.len();
            quotas.retain(|tenant, _| is_kept(RecordKey::GatewayQuota(tenant.clone())));
            quotas.len() != before
        });
        let mut records = write(&self.records);
        let placed: Vec<ServiceName> = records.placements.keys().cloned().collect();
        for service in placed.into_iter().filter(|service| !is_kept(RecordKey::Placement(service.clone()))) {
            records.displace(&service);
        }
        let named: Vec<ServiceName> = records.addresses.services().cloned().collect();
        for service in named.into_iter().filter(|service| !is_kept(RecordKey::Service(service.clone()))) {
            records.set_address(&service, None);
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        match (record_encoding::decode(&key, record.value), &key) {
            (Ok(Record::Service(declared)), RecordKey::Service(service)) => {
                self.set_address(service, declared.virtual_address);
            }
            (Ok(Record::Placement(placement)), RecordKey::Placement(service)) => {
                self.change((service, RecordKind::Placement), |records| records.place(service, placement));
            }
            (Ok(Record::DefaultAuthorization(default)), _) => self.set_default(Some(default)),
            (Ok(Record::TokenIssuers(record)), _) => self.set_issuers(&record),
            (Ok(Record::GatewayBackend(backend)), RecordKey::GatewayBackend(name)) => {
                if self.backend.as_ref() == Some(name) {
                    self.replicas.send_replace(backend.replicas);
                }
            }
            (Ok(Record::GatewayQuota(quota)), RecordKey::GatewayQuota(tenant)) => {
                self.quotas.send_modify(|quotas| {
                    quotas.insert(tenant.clone(), quota);
                });
            }
            (Ok(_), _) => {}
            // The earlier absence of a default allows no call: the record may deny for the first time.
            (Err(error), RecordKey::DefaultAuthorization) if !self.has_default => {
                tracing::error!(%error, %key, "the default of the mesh cannot be read: calls that no rule of a policy allows are refused");
                self.default.send_replace(DefaultAuthorization::Deny);
            }
            // The last valid record stays in force.
            (Err(error), _) => {
                tracing::error!(%error, %key, "a record is not understood; keeping the last one")
            }
        }
    }

    fn delete(&mut self, _: &str, key: &RecordKey) {
        match key {
            RecordKey::Service(service) => self.set_address(service, None),
            RecordKey::Placement(service) => {
                self.change((service, RecordKind::Placement), |records| records.displace(service));
            }
            RecordKey::DefaultAuthorization => self.set_default(None),
            RecordKey::TokenIssuers => self.set_issuers(&TokenIssuers::default()),
            RecordKey::GatewayQuota(tenant) => {
                self.quotas.send_modify(|quotas| {
                    quotas.remove(tenant);
                });
            }
            _ => {}
        }
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        // Under the lock of `forget`, so that no prefix is known that is followed no more.
        let records = read(&self.records);
        let is_followed = *prefix == default_prefix() || records.followed.contains(prefix);
        self.known.send_if_modified(|known| is_followed && known.insert(prefix.clone()));
    }
}

#[cfg(test)]
mod tests;
