//! What a gateway needs to know of tenants besides their routes: virtual addresses and placements of
//! services, quotas, and the default authorization.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicU64},
    time::Duration,
};

use fairmesh_calls::forwarding::TokenVerifier;
use fairmesh_edge::{
    counter::increment, forward::misdirected_request::ServedServices,
    services::virtual_addresses::VirtualAddresses,
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
    time::{error::Elapsed, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// How long the first connection of a tenant waits for its virtual addresses.
const FIRST_RECORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// The quotas of tenants that have one.
pub(crate) type Quotas = BTreeMap<Tenant, GatewayQuota>;

/// Local copy of the records.
#[derive(Debug, Default)]
struct TenantRecords {
    addresses: VirtualAddresses,
    placements: BTreeMap<ServiceName, Placement>,
    /// The followed prefixes: those of tenants whose pods have connected.
    followed: BTreeSet<Prefix>,
}

/// Follows the services of the tenants whose pods have connected.
#[derive(Debug)]
pub(crate) struct Directory {
    records: Arc<RwLock<TenantRecords>>,
    default: watch::Receiver<DefaultAuthorization>,
    tokens: watch::Receiver<Arc<dyn TokenVerifier>>,
    quotas: watch::Receiver<Quotas>,
    /// The prefixes whose records have arrived, or whose access is refused.
    known: Arc<watch::Sender<BTreeSet<Prefix>>>,
    /// The backend of this replica, if it has one.
    backend: Option<Label>,
    /// Number of connections and requests for services of other backends.
    pub(crate) misdirected: AtomicU64,
    upstream: FollowerHandle,
    _acks: AbortOnDropHandle<()>,
}

struct DirectorySink {
    records: Arc<RwLock<TenantRecords>>,
    default: watch::Sender<DefaultAuthorization>,
    tokens: watch::Sender<Arc<dyn TokenVerifier>>,
    quotas: watch::Sender<Quotas>,
    known: Arc<watch::Sender<BTreeSet<Prefix>>>,
    applied: watch::Sender<Option<Revision>>,
}

impl Directory {
    /// Creates a directory that follows the records of an agent. `backend` is the backend of this replica.
    pub(crate) fn follow(agent: Address, transport: Transport, backend: Option<Label>) -> Self {
        let records = Arc::<RwLock<TenantRecords>>::default();
        let (default, told) = watch::channel(DefaultAuthorization::default());
        let (tokens, verifiers) =
            watch::channel(Arc::new(Issuers::unknown(system_time)) as Arc<dyn TokenVerifier>);
        let (quotas, of_tenants) = watch::channel(Quotas::default());
        let known = Arc::new(watch::Sender::default());
        let (applied, mut revisions) = watch::channel(None);
        let sink = DirectorySink {
            records: Arc::clone(&records),
            default,
            tokens,
            quotas,
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
        let acknowledged = upstream.clone();
        let acks = tokio::spawn(async move {
            while revisions.changed().await.is_ok() {
                let revision: Option<Revision> = *revisions.borrow_and_update();
                revision.into_iter().for_each(|revision| acknowledged.ack(revision));
            }
        });
        let acks = AbortOnDropHandle::new(acks);
        let misdirected = AtomicU64::new(0);
        Self {
            records,
            default: told,
            tokens: verifiers,
            quotas: of_tenants,
            known,
            backend,
            misdirected,
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
        let prefixes = self.prefixes(tenant);
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
        let prefixes = self.prefixes(tenant);
        let mut records = write(&self.records);
        for prefix in &prefixes {
            self.upstream.unsubscribe(prefix);
            self.known.send_if_modified(|known| known.remove(prefix));
        }
        records.forget(tenant, &prefixes);
    }

    /// The prefixes that a tenant's calls need. Placements are needed only by a replica that has a backend.
    fn prefixes(&self, tenant: &Tenant) -> BTreeSet<Prefix> {
        let placements = self.backend.iter().map(|_| RecordKind::Placement);
        [RecordKind::Service].into_iter().chain(placements).map(|kind| Prefix::tenant(tenant, kind)).collect()
    }

    async fn wait_known(&self, prefixes: &BTreeSet<Prefix>) {
        // The sender lives in `self`.
        let _ = self.known.subscribe().wait_for(|known| known.is_superset(prefixes)).await;
    }
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
        let Some(backend) = &self.backend else { return true };
        let is_served =
            read(&self.records).placements.get(service).is_none_or(|placement| placement.has(backend));
        if !is_served {
            increment(&self.misdirected);
        }
        is_served
    }
}

impl TenantRecords {
    /// Removes all records of a tenant.
    fn forget(&mut self, tenant: &Tenant, prefixes: &BTreeSet<Prefix>) {
        self.followed.retain(|prefix| !prefixes.contains(prefix));
        self.addresses.forget(tenant);
        self.placements.retain(|service, _| service.tenant != *tenant);
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

    fn set_address(&self, service: &ServiceName, address: Option<SocketAddr>) {
        self.change((service, RecordKind::Service), |records| records.addresses.set(service, address));
    }
}

impl Sink for DirectorySink {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        if *prefix == Prefix::gateway_quotas() {
            return tracing::warn!(%prefix, reason, "this gateway may not read the quotas of tenants: its options apply to all");
        }
        if *prefix == issuers_prefix() {
            tracing::warn!(%prefix, reason, "the issuers of tokens are not known: requests with a token of an end user are refused");
            return self.set_issuers(&TokenIssuers::default());
        }
        tracing::warn!(%prefix, reason, "this gateway may not read the services of a tenant: hosts name them all the same");
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
            self.default.send_replace(DefaultAuthorization::default());
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
        let TenantRecords { addresses, placements, .. } = &mut *write(&self.records);
        placements.retain(|service, _| is_kept(RecordKey::Placement(service.clone())));
        let named: Vec<ServiceName> = addresses.services().cloned().collect();
        for service in named.into_iter().filter(|service| !is_kept(RecordKey::Service(service.clone()))) {
            addresses.set(&service, None);
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        match (record_encoding::decode(&key, record.value), &key) {
            (Ok(Record::Service(declared)), RecordKey::Service(service)) => {
                self.set_address(service, declared.virtual_address);
            }
            (Ok(Record::Placement(placement)), RecordKey::Placement(service)) => {
                self.change((service, RecordKind::Placement), |records| {
                    records.placements.insert(service.clone(), placement);
                });
            }
            (Ok(Record::DefaultAuthorization(default)), _) => {
                self.default.send_replace(default);
            }
            (Ok(Record::TokenIssuers(record)), _) => self.set_issuers(&record),
            (Ok(Record::GatewayQuota(quota)), RecordKey::GatewayQuota(tenant)) => {
                self.quotas.send_modify(|quotas| {
                    quotas.insert(tenant.clone(), quota);
                });
            }
            (Ok(_), _) => {}
            // The last valid record stays in force.
            (Err(error), _) => {
                tracing::error!(%error, %key, "a record is not understood; keeping the last one")
            }
        }
    }

    fn delete(&mut self, _: &str, key: &RecordKey) {
        match key {
            RecordKey::Service(service) => self.set_address(service, None),
            RecordKey::Placement(service) => self.change((service, RecordKind::Placement), |records| {
                records.placements.remove(service);
            }),
            RecordKey::DefaultAuthorization => {
                self.default.send_replace(DefaultAuthorization::default());
            }
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
        let is_followed = *prefix == default_prefix() || read(&self.records).followed.contains(prefix);
        self.known.send_if_modified(|known| is_followed && known.insert(prefix.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgetting_tenant_removes_only_its_own_records() {
        let mut records = TenantRecords::default();
        let (red, blue) = (Tenant::new("red").unwrap(), Tenant::new("blue").unwrap());
        let prefix = |tenant| Prefix::tenant(tenant, RecordKind::Service);
        for (tenant, service) in [(&red, "red/web"), (&blue, "blue/web")] {
            records.followed.insert(prefix(tenant));
            records.addresses.set(&ServiceName::new(service).unwrap(), Some(([10, 96, 0, 1], 80).into()));
        }
        records.forget(&red, &BTreeSet::from([prefix(&red)]));
        let left: Vec<_> = records.addresses.services().map(ToString::to_string).collect();
        assert_eq!((left, records.followed), (vec!["blue/web".into()], BTreeSet::from([prefix(&blue)])));
    }
}
