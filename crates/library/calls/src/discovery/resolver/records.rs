//! The records of one service as they arrive, and the prefixes that they call for.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{
    Invalid, Location, Policy, Prefix, Record, RecordKey, Region, Service, ServiceKind, ServiceName,
    ShardPart, Verdicts,
};
use fairmesh_rib::ArrivedRecord;
use fairmesh_wire::records;

use super::{endpoint_list::EndpointList, shard_maps::MapName, shard_parts::ShardParts};
use crate::discovery::received_table::ReceivedTable;

/// The records of one service.
#[derive(Debug)]
pub(super) struct ServiceRecords {
    pub(super) name: ServiceName,
    pub(super) service: Option<Service>,
    policy: PolicyRecord,
    pub(super) endpoints: EndpointList,
    pub(super) health: Verdicts,
    pub(super) shards: ShardParts,
    /// The region table of the caller's region.
    pub(super) table: Option<Arc<ReceivedTable>>,
    /// The subscribed prefixes, and whether each has arrived at least once.
    subscribed: BTreeMap<Prefix, bool>,
}

/// Changes of the subscribed prefixes.
pub(super) struct PrefixChanges {
    pub(super) added: Vec<Prefix>,
    pub(super) removed: Vec<Prefix>,
}

/// A policy as its record, and the parts of it that decide which prefixes are needed. It is not kept decoded once it is
/// published, which takes many times as much memory.
#[derive(Debug)]
struct PolicyRecord {
    value: Option<Bytes>,
    /// The decoded policy, the default one where there is none, until it is published: it keeps compiled regular expressions in use, which would otherwise be
    /// compiled again, on the event loop. Boxed, since most services have none most of the time.
    unpublished: Option<Box<Policy>>,
    local_only: bool,
    has_checks: bool,
    /// Whether the service may have region tables; the others pay nothing for them.
    has_tables: bool,
}

impl PolicyRecord {
    fn new(policy: Policy, value: Bytes) -> Self {
        let (local_only, has_checks) = (policy.locality.local_only, policy.health_check.is_some());
        let has_tables = policy.traffic.as_ref().is_some_and(|traffic| traffic.publishes()) && !local_only;
        Self { value: Some(value), unpublished: Some(Box::new(policy)), local_only, has_checks, has_tables }
    }
}

impl Default for PolicyRecord {
    fn default() -> Self {
        Self {
            value: None,
            unpublished: Some(Box::default()),
            local_only: false,
            has_checks: false,
            has_tables: false,
        }
    }
}

impl ServiceRecords {
    /// `maps_offered`: an agent may share large shard maps.
    pub(super) fn new(name: ServiceName, maps_offered: bool) -> Self {
        Self {
            name,
            service: None,
            policy: PolicyRecord::default(),
            endpoints: EndpointList::default(),
            health: Verdicts::default(),
            shards: ShardParts::new(maps_offered),
            table: None,
            subscribed: BTreeMap::new(),
        }
    }

    /// The policy; the default where there is none.
    pub(super) fn policy(&self) -> Cow<'_, Policy> {
        if let Some(policy) = &self.policy.unpublished {
            return Cow::Borrowed(policy);
        }
        let key = RecordKey::Policy(self.name.clone());
        // It was decoded when it arrived.
        let read = self.policy.value.as_ref().and_then(|value| records::decode(&key, value).ok());
        match read {
            Some(Record::Policy(policy)) => Cow::Owned(policy),
            _ => Cow::Owned(Policy::default()),
        }
    }

    /// The record of the policy, if there is one.
    pub(super) fn policy_record(&self) -> Option<Bytes> {
        self.policy.value.clone()
    }

    /// Whether the last published snapshot has this policy.
    pub(super) fn is_policy_published(&self) -> bool {
        self.policy.unpublished.is_none()
    }

    /// The policy is part of the published snapshot, which keeps its expressions in use from now on.
    pub(super) fn policy_published(&mut self) {
        self.policy.unpublished = None;
    }

    /// The prefixes that a decision about this service needs, as far as is known now.
    ///
    /// Until the policy says whether the endpoints of one region suffice (ServiceRouter §3.2), all are subscribed to,
    /// so that a first call waits for one round trip and not for two: most services have endpoints in one region, or
    /// are called in several. Where one region suffices, the others arrive once and are unsubscribed from.
    pub(super) fn needed(&self, location: Option<&Location>) -> BTreeSet<Prefix> {
        let declared = Prefix::from(&RecordKey::Service(self.name.clone()));
        let policy = Prefix::from(&RecordKey::Policy(self.name.clone()));
        let arrived = |prefix: &Prefix| self.subscribed.get(prefix).copied().unwrap_or(false);
        let (has_service, has_policy) = (arrived(&declared), arrived(&policy));
        let mut needed = BTreeSet::from([declared, policy]);
        let service = match &self.service {
            Some(service) if has_service && has_policy => service,
            // It is not declared.
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

    /// The region whose endpoints suffice, where the policy restricts calls to the caller's own.
    fn only_region<'a>(&self, location: Option<&'a Location>) -> Option<&'a Region> {
        location.map(|l| &l.region).filter(|_| self.policy.local_only)
    }

    /// The record that has the version of the shard map, which every change of the map writes.
    fn version_key(&self) -> Prefix {
        Prefix::from(&RecordKey::ShardManifest(self.name.clone(), ShardPart::Ranges))
    }

    /// The map that the agent is to share, also while its parts are read here because the agent does not.
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
            // Records that another prefix still covers arrive with the next snapshot of that one.
            self.retain(prefix, |_| false);
        }
        self.subscribed.extend(added.iter().map(|prefix| (prefix.clone(), false)));
        PrefixChanges { added, removed }
    }

    /// Subscribed prefixes that have not arrived.
    pub(super) fn missing(&self) -> Vec<Prefix> {
        self.subscribed.iter().filter(|(_, arrived)| !**arrived).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Whether all subscribed prefixes have arrived. Verdicts and tables may come later: calls do not wait for them.
    pub(super) fn complete(&self) -> bool {
        let has_map = self.shards.last().is_some();
        if self.subscribed.contains_key(&self.version_key()) && !has_map {
            return false;
        }
        let optional = [Prefix::health(&self.name, None), Prefix::tables(&self.name)];
        let is_optional = |prefix: &Prefix| optional.iter().any(|folder| folder.covers(prefix.as_str()));
        self.subscribed.iter().all(|(prefix, arrived)| *arrived || is_optional(prefix))
    }

    /// Whether the service is declared; `None` until that is known.
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

    /// Removes the records below a prefix that do not stay, before its snapshot is put: a record that the snapshot
    /// holds stays until it is replaced, and so stays in use where its replacement is invalid.
    pub(super) fn retain(&mut self, prefix: &Prefix, stays: impl Fn(&str) -> bool) {
        let gone = |key: &str| prefix.covers(key) && !stays(key);
        if gone(&RecordKey::Service(self.name.clone()).to_string()) {
            self.service = None;
        }
        if gone(&RecordKey::Policy(self.name.clone()).to_string()) {
            self.policy = PolicyRecord::default();
        }
        if self.table.as_ref().is_some_and(|table| gone(&self.table_key(&table.region).to_string())) {
            self.table = None;
        }
        self.endpoints.remove_all(gone);
        // A prefix names a region or lies above all of them.
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

    /// Takes a record in. An invalid one leaves the previous one in place.
    pub(super) fn put(&mut self, key: &RecordKey, record: ArrivedRecord<'_>) -> Result<(), Invalid> {
        let ArrivedRecord { text, value, age } = record;
        if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
            return self.shards.put(key, value);
        }
        // As in every snapshot after a reconnect.
        let is_known = match key {
            RecordKey::Policy(_) => self.policy.value.as_ref() == Some(value),
            RecordKey::RegionTable(_, region) => {
                self.table.as_ref().is_some_and(|table| table.is(region, value))
            }
            _ => false,
        };
        if is_known {
            return Ok(());
        }
        match records::decode(key, value)? {
            Record::Service(service) => self.service = Some(service),
            Record::Policy(policy) => self.policy = PolicyRecord::new(policy, value.clone()),
            Record::Endpoint(endpoint) => self.endpoints.put(text, endpoint),
            Record::Verdict(verdict) => {
                if let RecordKey::Health(_, region, instance) = key {
                    self.health.put(region.clone(), instance.clone(), verdict);
                }
            }
            Record::RegionTable(table) => {
                if let RecordKey::RegionTable(_, region) = key {
                    self.table = Some(Arc::new(ReceivedTable::new(region, table, (value, age))));
                }
            }
            // No prefix that a service needs has these: topology and identities have their own, and the rest is not for routers.
            Record::Move(_)
            | Record::GatewayService(_)
            | Record::Placement(_)
            | Record::GatewayBackend(_)
            | Record::Workload(_)
            | Record::Authorization(_)
            | Record::Regions(_)
            | Record::RoundTrips(_)
            | Record::MeasuredDistances(_)
            | Record::Hosts(_)
            | Record::RegionDrain(_)
            | Record::ElectedChecker(_)
            | Record::DefaultAuthorization(_)
            | Record::RoleBinding(_)
            | Record::TrustBundle(_)
            | Record::Revocations(_)
            | Record::FederatedDomains(_)
            | Record::JoinedAgent(_) => {
                tracing::debug!(%key, "skipped a record that decides no call");
            }
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, text: &str, key: &RecordKey) {
        match key {
            RecordKey::Service(_) => self.service = None,
            RecordKey::Policy(_) => self.policy = PolicyRecord::default(),
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
