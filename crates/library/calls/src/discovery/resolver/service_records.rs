//! The received records of one service, and the prefixes that it must subscribe to.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{
    InheritedDefaults, Invalid, Location, Policy, Prefix, Record, RecordKey, Region, RegionTable, Service,
    ServiceKind, ServiceName, ShardPart, Verdicts,
};
use fairmesh_rib::ArrivedRecord;
use fairmesh_wire::record_encoding;

use super::{endpoint_list::EndpointList, shard_maps::MapName, shard_parts::ShardParts};
use crate::discovery::region_table_age::ReceivedTable;

/// The records of one service.
#[derive(Debug)]
pub(super) struct ServiceRecords {
    pub(super) name: ServiceName,
    pub(super) service: Option<Service>,
    policy: PolicyRecord,
    pub(super) endpoints: EndpointList,
    pub(super) health: Verdicts,
    pub(super) shards: ShardParts,
    /// The table for the caller's region.
    pub(super) table: Option<Arc<ReceivedTable>>,
    /// Subscribed prefixes. The value is whether the prefix has arrived at least once.
    subscribed: BTreeMap<Prefix, bool>,
}

/// Changes to the set of subscribed prefixes.
pub(super) struct PrefixChanges {
    pub(super) added: Vec<Prefix>,
    pub(super) removed: Vec<Prefix>,
}

/// A policy in encoded form: its record, the defaults that complete it, and the parts that determine which prefixes
/// are needed. After publication it is not kept decoded, since that takes many times as much memory.
#[derive(Debug)]
struct PolicyRecord {
    value: Option<Bytes>,
    /// Whether the record cannot be decoded and had no valid value before. Who may call is then unknown.
    is_unreadable: bool,
    defaults: InheritedDefaults,
    /// The complete policy until it is published. It keeps compiled regular expressions in use; otherwise they would
    /// be compiled again on the event loop. Boxed, since most services rarely have an unpublished policy.
    unpublished: Option<Box<Policy>>,
    local_only: bool,
    has_checks: bool,
    /// Whether the service may have region tables. Other services do not pay the cost of tables.
    has_tables: bool,
}

impl PolicyRecord {
    /// Completes the policy of a record with the defaults. Without a record, the default policy is used.
    fn new(own: Policy, value: Option<Bytes>, defaults: InheritedDefaults) -> Self {
        let policy = defaults.apply(own);
        let (local_only, has_checks) = (policy.locality.local_only, policy.health_check.is_some());
        let has_tables = policy.traffic.as_ref().is_some_and(|traffic| traffic.publishes()) && !local_only;
        let unpublished = Some(Box::new(policy));
        Self { value, is_unreadable: false, defaults, unpublished, local_only, has_checks, has_tables }
    }

    /// Returns the policy that the service itself declares. An unreadable record declares nothing.
    fn own(&self, name: &ServiceName) -> Policy {
        let key = RecordKey::Policy(name.clone());
        match self.value.as_ref().and_then(|value| record_encoding::decode(&key, value).ok()) {
            Some(Record::Policy(policy)) => policy,
            _ => Policy::default(),
        }
    }
}

impl ServiceRecords {
    /// Creates empty records. `maps_offered` means that an agent may share large shard maps.
    pub(super) fn new(name: ServiceName, maps_offered: bool) -> Self {
        Self {
            name,
            service: None,
            policy: PolicyRecord::new(Policy::default(), None, InheritedDefaults::default()),
            endpoints: EndpointList::default(),
            health: Verdicts::default(),
            shards: ShardParts::new(maps_offered),
            table: None,
            subscribed: BTreeMap::new(),
        }
    }

    /// Returns the effective policy: the service's own, completed by the defaults.
    pub(super) fn policy(&self) -> Cow<'_, Policy> {
        match &self.policy.unpublished {
            Some(policy) => Cow::Borrowed(policy),
            None => Cow::Owned(self.policy.defaults.apply(self.policy.own(&self.name))),
        }
    }

    /// Returns the record of the policy, if there is one, and the defaults that complete it.
    pub(super) fn policy_record(&self) -> (Option<Bytes>, InheritedDefaults) {
        (self.policy.value.clone(), self.policy.defaults.clone())
    }

    /// Sets the defaults that complete the policy.
    pub(super) fn set_defaults(&mut self, defaults: InheritedDefaults) {
        if self.policy.defaults != defaults {
            let (own, is_unreadable) = (self.policy.own(&self.name), self.policy.is_unreadable);
            let policy = PolicyRecord::new(own, self.policy.value.take(), defaults);
            self.policy = PolicyRecord { is_unreadable, ..policy };
        }
    }

    /// Whether the policy exists, but cannot be decoded and has no earlier valid version.
    pub(super) fn is_policy_unreadable(&self) -> bool {
        self.policy.is_unreadable
    }

    /// Keeps the last valid policy, if there is one. Otherwise keeps the unreadable record, so that readers of the
    /// snapshot see that there is a policy. The earlier absence of a policy permits nothing: the record may restrict
    /// callers for the first time.
    fn keep_unreadable_policy(&mut self, value: &Bytes) {
        if self.policy.is_unreadable || self.policy.value.is_none() {
            self.set_policy(Policy::default(), Some(value.clone()));
            self.policy.is_unreadable = true;
        }
    }

    fn set_policy(&mut self, own: Policy, value: Option<Bytes>) {
        self.policy = PolicyRecord::new(own, value, std::mem::take(&mut self.policy.defaults));
    }

    /// Whether the last published snapshot has this policy.
    pub(super) fn is_policy_published(&self) -> bool {
        self.policy.unpublished.is_none()
    }

    /// Records that the published snapshot contains the policy. From now on the snapshot keeps its expressions in
    /// use.
    pub(super) fn policy_published(&mut self) {
        self.policy.unpublished = None;
    }

    /// Returns the prefixes that a decision about this service needs, as far as is known now.
    ///
    /// Until the policy shows whether the endpoints of one region suffice (ServiceRouter §3.2), all endpoints are
    /// subscribed to. A first call then waits for one round trip instead of two: most services have endpoints in one
    /// region, or are called in several. If one region suffices, the other regions arrive once and are then
    /// unsubscribed from.
    pub(super) fn needed(&self, location: Option<&Location>) -> BTreeSet<Prefix> {
        let declared = Prefix::from(&RecordKey::Service(self.name.clone()));
        let policy = Prefix::from(&RecordKey::Policy(self.name.clone()));
        let arrived = |prefix: &Prefix| self.subscribed.get(prefix).copied().unwrap_or(false);
        let (has_service, has_policy) = (arrived(&declared), arrived(&policy));
        let mut needed = BTreeSet::from([declared, policy]);
        let service = match &self.service {
            Some(service) if has_service && has_policy => service,
            // The service is not declared.
            None if has_service => return needed,
            _ => {
                needed.insert(Prefix::endpoints(&self.name, None));
                return needed;
            }
        };
        let only = self.only_region(location);
        needed.insert(Prefix::endpoints(&self.name, only));
        if self.policy.has_checks {
            needed.insert(Prefix::health(&self.name, only));
        }
        if let Some(location) = location.filter(|_| self.policy.has_tables) {
            needed.insert(Prefix::from(&self.table_key(&location.region)));
        }
        match (service.kind, only) {
            (ServiceKind::Sharded, _) if self.shards.is_version_enough() => {
                needed.insert(self.version_key());
            }
            (ServiceKind::Sharded, None) => needed.extend([Prefix::shards(&self.name, None)]),
            (ServiceKind::Sharded, Some(region)) => needed.extend([
                Prefix::shards(&self.name, Some(&ShardPart::Ranges)),
                Prefix::shards(&self.name, Some(&ShardPart::Region(region.clone()))),
            ]),
            (ServiceKind::Replicated | ServiceKind::ConsistentHash, _) => {}
        }
        needed
    }

    fn table_key(&self, region: &Region) -> RecordKey {
        RecordKey::RegionTable(self.name.clone(), region.clone())
    }

    /// Returns the caller's region if the policy restricts calls to it; the endpoints of that region then suffice.
    fn only_region<'a>(&self, location: Option<&'a Location>) -> Option<&'a Region> {
        location.map(|l| &l.region).filter(|_| self.policy.local_only)
    }

    /// Prefix of the record with the shard map's version. Every change of the map writes this record.
    fn version_key(&self) -> Prefix {
        Prefix::from(&RecordKey::ShardManifest(self.name.clone(), ShardPart::Ranges))
    }

    /// The map that the agent should share. Set even while this process reads the parts itself because the agent does
    /// not share them.
    pub(super) fn shared_map(&self, location: Option<&Location>) -> Option<MapName> {
        let sharded = self.service.as_ref().is_some_and(|service| service.kind == ServiceKind::Sharded);
        let wanted = sharded && self.shards.is_shareable();
        let region = self.only_region(location).cloned();
        wanted.then(|| MapName { service: self.name.clone(), region })
    }

    /// Changes the subscribed prefixes to `needed`.
    pub(super) fn subscribe(&mut self, needed: BTreeSet<Prefix>) -> PrefixChanges {
        let is_new = |prefix: &&Prefix| !self.subscribed.contains_key(*prefix);
        let added: Vec<_> = needed.iter().filter(is_new).cloned().collect();
        let removed: Vec<_> =
            self.subscribed.keys().filter(|prefix| !needed.contains(*prefix)).cloned().collect();
        for prefix in &removed {
            self.subscribed.remove(prefix);
            // Records that another prefix still covers arrive with the next snapshot of that prefix.
            self.retain(prefix, |_| false);
        }
        self.subscribed.extend(added.iter().map(|prefix| (prefix.clone(), false)));
        PrefixChanges { added, removed }
    }

    /// Subscribed prefixes that have not yet arrived.
    pub(super) fn missing(&self) -> Vec<Prefix> {
        self.subscribed.iter().filter(|(_, arrived)| !**arrived).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Whether all subscribed prefixes have arrived. Verdicts and region tables may arrive later: calls do not wait for
    /// them.
    pub(super) fn complete(&self) -> bool {
        let has_map = self.shards.last().is_some();
        if self.subscribed.contains_key(&self.version_key()) && !has_map {
            return false;
        }
        let optional = [Prefix::health(&self.name, None), Prefix::tables(&self.name)];
        let is_optional = |prefix: &Prefix| optional.iter().any(|folder| folder.covers(prefix.as_str()));
        self.subscribed.iter().all(|(prefix, arrived)| *arrived || is_optional(prefix))
    }

    /// Whether the service is declared; `None` if that is not known yet.
    pub(super) fn declared(&self) -> Option<bool> {
        let arrived = self.subscribed.get(&Prefix::from(&RecordKey::Service(self.name.clone())))?;
        arrived.then_some(self.service.is_some())
    }

    pub(super) fn arrived(&mut self, prefix: &Prefix) {
        if let Some(arrived) = self.subscribed.get_mut(prefix) {
            *arrived = true;
            if *prefix == self.version_key() {
                self.shards.version_arrived();
            }
        }
    }

    /// Removes stored records below a prefix unless `stays` returns true for their keys. Called before the prefix's
    /// snapshot is stored: a record that the snapshot contains stays until it is replaced, so it remains in use if
    /// its replacement is invalid.
    pub(super) fn retain(&mut self, prefix: &Prefix, stays: impl Fn(&str) -> bool) {
        let gone = |key: &str| prefix.covers(key) && !stays(key);
        if gone(&RecordKey::Service(self.name.clone()).to_string()) {
            self.service = None;
        }
        if gone(&RecordKey::Policy(self.name.clone()).to_string()) {
            self.set_policy(Policy::default(), None);
        }
        if self.table.as_ref().is_some_and(|table| gone(&self.table_key(&table.region).to_string())) {
            self.table = None;
        }
        self.endpoints.remove_all(gone);
        // A prefix names a region, or is above all regions.
        let name = &self.name;
        let below = |region: &Region| prefix.covers(Prefix::health(name, Some(region)).as_str());
        for (region, verdicts) in self.health.by_region.iter_mut().filter(|(region, _)| below(region)) {
            verdicts.retain(|instance, _| {
                stays(&RecordKey::Health(name.clone(), region.clone(), instance.clone()).to_string())
            });
        }
        self.health.by_region.retain(|_, verdicts| !verdicts.is_empty());
        self.shards.remove_all(gone);
        // A prefix that was unsubscribed from says nothing about whether the map exists.
        if self.subscribed.contains_key(prefix) && gone(self.version_key().as_str()) {
            self.shards.clear();
        }
    }

    /// Whether a record that is costly to decode equals the stored record. After a reconnect, this holds for every
    /// unchanged record of a snapshot.
    fn is_known(&self, key: &RecordKey, value: &Bytes) -> bool {
        match key {
            RecordKey::Policy(_) => self.policy.value.as_ref() == Some(value),
            RecordKey::RegionTable(_, region) => {
                self.table.as_ref().is_some_and(|table| table.is(region, value))
            }
            _ => false,
        }
    }

    /// Stores a record. An invalid record leaves the previous one in place; see
    /// [`is_policy_unreadable`](Self::is_policy_unreadable) for a policy without a previous record.
    pub(super) fn put(&mut self, key: &RecordKey, record: ArrivedRecord<'_>) -> Result<(), Invalid> {
        let ArrivedRecord { text, value, age } = record;
        if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
            return self.shards.put(key, value);
        }
        if self.is_known(key, value) {
            return Ok(());
        }
        let decoded = record_encoding::decode(key, value);
        if decoded.is_err() && matches!(key, RecordKey::Policy(_)) {
            self.keep_unreadable_policy(value);
        }
        match decoded? {
            Record::Service(service) => self.service = Some(service),
            Record::Policy(policy) => self.set_policy(policy, Some(value.clone())),
            Record::Endpoint(endpoint) => self.endpoints.put(text, endpoint),
            Record::Verdict(verdict) => {
                if let RecordKey::Health(_, region, instance) = key {
                    self.health.put(region.clone(), instance.clone(), verdict);
                }
            }
            Record::RegionTable(table) => self.put_table(key, table, (value, age)),
            // No prefix of a service contains these records: topology, defaults and identities have their own prefixes,
            // and the others are not meant for routers.
            Record::Move(_)
            | Record::GatewayService(_)
            | Record::Placement(_)
            | Record::GatewayBackend(_)
            | Record::GatewayQuota(_)
            | Record::Workload(_)
            | Record::Authorization(_)
            | Record::Regions(_)
            | Record::RoundTrips(_)
            | Record::MeasuredDistances(_)
            | Record::Hosts(_)
            | Record::RegionDrain(_)
            | Record::ElectedChecker(_)
            | Record::DefaultAuthorization(_)
            | Record::PolicyDefaults(_)
            | Record::RoleBinding(_)
            | Record::TrustBundle(_)
            | Record::Revocations(_)
            | Record::FederatedDomains(_)
            | Record::TokenIssuers(_)
            | Record::JoinedAgent(_) => {
                tracing::debug!(%key, "skipped a record that decides no call");
            }
        }
        Ok(())
    }

    fn put_table(&mut self, key: &RecordKey, table: RegionTable, record: (&Bytes, Duration)) {
        if let RecordKey::RegionTable(_, region) = key {
            self.table = Some(Arc::new(ReceivedTable::new(region, table, record)));
        }
    }

    pub(super) fn delete(&mut self, text: &str, key: &RecordKey) {
        match key {
            RecordKey::Service(_) => self.service = None,
            RecordKey::Policy(_) => self.set_policy(Policy::default(), None),
            RecordKey::Endpoint(..) => self.endpoints.delete(text),
            RecordKey::Health(_, region, instance) => self.health.remove(region, instance),
            RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..) => {
                self.shards.delete(key);
            }
            RecordKey::RegionTable(_, region) => {
                self.table = self.table.take().filter(|table| table.region != *region);
            }
            _ => {}
        }
    }
}
