//! What a gateway has to know of tenants besides their routes: virtual addresses of services, and what applies without rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use fairmesh_model::{
    DefaultAuthorization, Prefix, Record, RecordKey, RecordKind, Revision, ServiceName, Tenant,
};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::{
    records,
    transport::{Address, Transport},
};
use tokio::{
    sync::watch,
    time::{error::Elapsed, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// How long the first connection of a tenant waits for its virtual addresses.
const FIRST_RECORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Virtual addresses of a tenant's services. Two services with one address: the first by name has it.
type VirtualAddresses = BTreeMap<SocketAddr, BTreeSet<ServiceName>>;

/// The copy of the records.
#[derive(Debug, Default)]
struct TenantRecords {
    addresses: BTreeMap<Tenant, VirtualAddresses>,
    of_services: BTreeMap<ServiceName, SocketAddr>,
    /// The prefixes of the tenants that call.
    followed: BTreeSet<Prefix>,
}

/// Follows the services of the tenants that call.
#[derive(Debug)]
pub(crate) struct Directory {
    records: Arc<RwLock<TenantRecords>>,
    default: watch::Receiver<DefaultAuthorization>,
    /// The prefixes that have arrived, or are refused.
    known: Arc<watch::Sender<BTreeSet<Prefix>>>,
    upstream: FollowerHandle,
    _acks: AbortOnDropHandle<()>,
}

struct DirectorySink {
    records: Arc<RwLock<TenantRecords>>,
    default: watch::Sender<DefaultAuthorization>,
    known: Arc<watch::Sender<BTreeSet<Prefix>>>,
    applied: watch::Sender<Option<Revision>>,
}

impl Directory {
    /// Follows the records of an agent.
    pub(crate) fn follow(agent: Address, transport: Transport) -> Self {
        let records = Arc::<RwLock<TenantRecords>>::default();
        let (default, told) = watch::channel(DefaultAuthorization::default());
        let known = Arc::new(watch::Sender::default());
        let (applied, mut revisions) = watch::channel(None);
        let sink =
            DirectorySink { records: Arc::clone(&records), default, known: Arc::clone(&known), applied };
        let config = FollowerConfig {
            addresses: vec![agent],
            transport,
            software: "gateway, virtual addresses".into(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let upstream = Follower::spawn(config, sink);
        upstream.subscribe(default_prefix());
        let acknowledged = upstream.clone();
        let acks = tokio::spawn(async move {
            while revisions.changed().await.is_ok() {
                let revision: Option<Revision> = *revisions.borrow_and_update();
                revision.into_iter().for_each(|revision| acknowledged.ack(revision));
            }
        });
        let acks = AbortOnDropHandle::new(acks);
        Self { records, default: told, known, upstream, _acks: acks }
    }

    /// What applies to services without rules, and its changes.
    pub(crate) fn default_authorization(&self) -> watch::Receiver<DefaultAuthorization> {
        self.default.clone()
    }

    /// Waits for the rule of services without rules. Before, no caller is let in.
    pub(crate) async fn ready(&self) {
        self.wait_known(default_prefix()).await;
    }

    /// The service of a tenant at a virtual address, if one has it. The first call for a tenant waits for its records, two seconds at most.
    ///
    /// # Errors
    /// The records have not arrived. The address may then be a service's, so that no host may decide in its place.
    pub(crate) async fn service_at(
        &self,
        tenant: &Tenant,
        address: SocketAddr,
    ) -> Result<Option<ServiceName>, Elapsed> {
        let prefix = Prefix::tenant(tenant, RecordKind::Service);
        let is_followed = read(&self.records).followed.contains(&prefix);
        if !is_followed {
            // Under the lock, so that a tenant that is forgotten meanwhile is followed anew.
            let mut records = write(&self.records);
            if records.followed.insert(prefix.clone()) {
                self.upstream.subscribe(prefix.clone());
            }
        }
        timeout(FIRST_RECORDS_TIMEOUT, self.wait_known(prefix)).await?;
        let records = read(&self.records);
        Ok(records.addresses.get(tenant).and_then(|addresses| addresses.get(&address)?.first().cloned()))
    }

    /// Follows a tenant no more.
    pub(crate) fn forget(&self, tenant: &Tenant) {
        let prefix = Prefix::tenant(tenant, RecordKind::Service);
        let mut records = write(&self.records);
        self.upstream.unsubscribe(&prefix);
        self.known.send_if_modified(|known| known.remove(&prefix));
        records.forget(tenant, &prefix);
    }

    async fn wait_known(&self, prefix: Prefix) {
        // The sender lives in `self`.
        let _ = self.known.subscribe().wait_for(|known| known.contains(&prefix)).await;
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

impl TenantRecords {
    /// Removes all of a tenant.
    fn forget(&mut self, tenant: &Tenant, prefix: &Prefix) {
        self.followed.remove(prefix);
        self.addresses.remove(tenant);
        self.of_services.retain(|service, _| service.tenant != *tenant);
    }

    /// Sets the virtual address of a service, or removes it.
    fn set(&mut self, service: &ServiceName, address: Option<SocketAddr>) {
        if let Some(before) = self.of_services.remove(service)
            && let Some(addresses) = self.addresses.get_mut(&service.tenant)
            && let Some(services) = addresses.get_mut(&before)
        {
            services.remove(service);
            if services.is_empty() {
                addresses.remove(&before);
            }
        }
        if let Some(address) = address {
            self.of_services.insert(service.clone(), address);
            let addresses = self.addresses.entry(service.tenant.clone()).or_default();
            addresses.entry(address).or_default().insert(service.clone());
        }
    }
}

impl DirectorySink {
    /// A change may arrive after its tenant was forgotten.
    fn set(&self, service: &ServiceName, address: Option<SocketAddr>) {
        let mut records = write(&self.records);
        if records.followed.contains(&Prefix::tenant(&service.tenant, RecordKind::Service)) {
            records.set(service, address);
        }
    }
}

impl Sink for DirectorySink {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        tracing::warn!(%prefix, reason, "this gateway may not read the services of a tenant: hosts name them all the same");
        // Not that of the default: until it is known, no caller is let in.
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
        let gone: Vec<ServiceName> = {
            let records = read(&self.records);
            let is_gone = |service: &&ServiceName| {
                let key = RecordKey::Service((*service).clone()).to_string();
                snapshot.prefix.covers(&key) && !snapshot.holds(&key)
            };
            records.of_services.keys().filter(is_gone).cloned().collect()
        };
        gone.iter().for_each(|service| self.set(service, None));
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        match (records::decode(&key, record.value), &key) {
            (Ok(Record::Service(declared)), RecordKey::Service(service)) => {
                self.set(service, declared.virtual_address);
            }
            (Ok(Record::DefaultAuthorization(default)), _) => {
                self.default.send_replace(default);
            }
            (Ok(_), _) => {}
            // The last one stays in force.
            (Err(error), _) => {
                tracing::error!(%error, %key, "a record is not understood; keeping the last one")
            }
        }
    }

    fn delete(&mut self, _: &str, key: &RecordKey) {
        match key {
            RecordKey::Service(service) => self.set(service, None),
            RecordKey::DefaultAuthorization => {
                self.default.send_replace(DefaultAuthorization::default());
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
    fn virtual_address_belongs_to_first_service_of_its_tenant() {
        let mut records = TenantRecords::default();
        let name = |text: &str| ServiceName::new(text).unwrap();
        let at: SocketAddr = ([10, 96, 0, 1], 80).into();
        let found = |records: &TenantRecords, tenant: &str| {
            records.addresses.get(&Tenant::new(tenant).unwrap())?.get(&at)?.first().map(ToString::to_string)
        };
        for service in ["red/web", "red/api", "blue/web"] {
            records.set(&name(service), Some(at));
        }
        assert_eq!(
            (found(&records, "red"), found(&records, "blue")),
            (Some("red/api".into()), Some("blue/web".into()))
        );
        records.set(&name("red/api"), Some(([10, 96, 0, 2], 80).into()));
        assert_eq!(found(&records, "red"), Some("red/web".into()), "it moved");
        records.set(&name("red/web"), None);
        assert_eq!((found(&records, "red"), found(&records, "blue")), (None, Some("blue/web".into())));
    }

    #[test]
    fn forgotten_tenant_leaves_nothing_and_takes_nothing_from_others() {
        let mut records = TenantRecords::default();
        let (red, blue) = (Tenant::new("red").unwrap(), Tenant::new("blue").unwrap());
        let prefix = |tenant| Prefix::tenant(tenant, RecordKind::Service);
        for (tenant, service) in [(&red, "red/web"), (&blue, "blue/web")] {
            records.followed.insert(prefix(tenant));
            records.set(&ServiceName::new(service).unwrap(), Some(([10, 96, 0, 1], 80).into()));
        }
        records.forget(&red, &prefix(&red));
        assert_eq!(records.addresses.keys().collect::<Vec<_>>(), [&blue]);
        assert_eq!((records.of_services.len(), records.followed), (1, BTreeSet::from([prefix(&blue)])));
    }
}
