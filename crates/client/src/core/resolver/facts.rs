//! The records of one service as they arrive, and what they amount to.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{
    Endpoint, Invalid, Location, Policy, Prefix, Record, RecordKey, Region, Revision, Service, ServiceKind,
    ServiceName, ShardPart, Verdicts,
};
use fairmesh_router::ShardTable;
use fairmesh_wire::{records, shards};

use super::maps::{LARGE, MapName};

/// Up to so many endpoints there is no room for more than came: many services have one.
const FEW: usize = 4;

/// So many versions of a large map that are not in use yet are told apart.
const COMING: usize = 64;

/// What has arrived of one service.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) name: ServiceName,
    pub(super) service: Option<Service>,
    policy: PolicyRecord,
    pub(super) endpoints: Endpoints,
    pub(super) health: Verdicts,
    pub(super) shards: ShardParts,
    /// What was asked for, and whether it has arrived at least once.
    asked: BTreeMap<Prefix, bool>,
}

/// A policy as it arrived, and what of it says what else is needed. It is read when it is compiled, and kept compiled: read, it
/// takes many times as much memory.
#[derive(Debug, Default)]
struct PolicyRecord {
    value: Option<Bytes>,
    local_only: bool,
    has_checks: bool,
}

/// Endpoints by key, in one slice as the router wants them.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    keys: Vec<Arc<str>>,
    list: Vec<Endpoint>,
}

/// A shard map: its parts, and the map that they last made; or of a large one the part that tells its version, and the map
/// that the agent handed over.
#[derive(Debug, Default)]
pub(super) struct ShardParts {
    parts: BTreeMap<RecordKey, Bytes>,
    compiled: Option<Arc<ShardTable>>,
    changed: bool,
    /// Whether an agent may hand maps over.
    offered: bool,
    /// Whether it cannot now, so that the parts are read here until it does.
    here: bool,
    /// Whether it is worth the while, once that is known.
    large: Option<bool>,
    /// The version that the parts speak of.
    told: u64,
    /// Versions that were told and are not in use yet, ascending, each with the last revision before it.
    coming: VecDeque<(u64, Option<Revision>)>,
    shared: Option<Arc<ShardTable>>,
    /// The last version that cannot be used.
    failed: u64,
}

impl Facts {
    /// `offered`: an agent may hand large shard maps over.
    pub(super) fn new(name: ServiceName, offered: bool) -> Self {
        Self {
            name,
            service: None,
            policy: PolicyRecord::default(),
            endpoints: Endpoints::default(),
            health: Verdicts::default(),
            shards: ShardParts { offered, ..ShardParts::default() },
            asked: BTreeMap::new(),
        }
    }

    /// The policy; the default where there is none.
    pub(super) fn policy(&self) -> Policy {
        let key = RecordKey::Policy(self.name.clone());
        // It was read when it came.
        let read = self.policy.value.as_ref().and_then(|value| records::decode(&key, value).ok());
        match read {
            Some(Record::Policy(policy)) => policy,
            _ => Policy::default(),
        }
    }

    /// The prefixes that a decision about this service needs, as far as is known now.
    ///
    /// Until the policy tells whether the endpoints of one region are enough (ServiceRouter §3.2), all are asked for, so that a first call waits
    /// for one answer and not for two: most services have endpoints in one region, or are called in several. Where those of one
    /// region are enough, the others come once and are given up.
    pub(super) fn needed(&self, location: Option<&Location>) -> BTreeSet<Prefix> {
        let declared = Prefix::from(&RecordKey::Service(self.name.clone()));
        let policy = Prefix::from(&RecordKey::Policy(self.name.clone()));
        let arrived = |prefix: &Prefix| self.asked.get(prefix).copied().unwrap_or(false);
        let (is_asked, is_ruled) = (arrived(&declared), arrived(&policy));
        let mut needed = BTreeSet::from([declared, policy]);
        let service = match &self.service {
            Some(service) if is_asked && is_ruled => service,
            // It is no service.
            None if is_asked => return needed,
            _ => {
                needed.insert(Prefix::endpoints(&self.name, None));
                return needed;
            }
        };
        let only = location.map(|l| &l.region).filter(|_| self.policy.local_only);
        needed.insert(Prefix::endpoints(&self.name, only));
        if self.policy.has_checks {
            needed.insert(Prefix::health(&self.name, only));
        }
        match (service.kind, only) {
            (ServiceKind::Sharded, _) if self.is_version_enough() => {
                needed.insert(self.version_key());
            }
            (ServiceKind::Sharded, None) => needed.extend([Prefix::shards(&self.name, None)]),
            (ServiceKind::Sharded, Some(region)) => needed.extend([
                Prefix::shards(&self.name, Some(&ShardPart::Ranges)),
                Prefix::shards(&self.name, Some(&ShardPart::Region(region.clone()))),
            ]),
            _ => {}
        }
        needed
    }

    /// What tells the version of the shard map, which every change of it writes.
    fn version_key(&self) -> Prefix {
        Prefix::from(&RecordKey::ShardManifest(self.name.clone(), ShardPart::Ranges))
    }

    /// Whether the map itself comes from the agent, or how large it is has yet to be found out.
    fn is_version_enough(&self) -> bool {
        self.shards.offered && !self.shards.here && self.shards.large != Some(false)
    }

    /// The map that the agent is to hand over, also while its parts are read here because it does not.
    pub(super) fn shared_map(&self, location: Option<&Location>) -> Option<MapName> {
        let sharded = self.service.as_ref().is_some_and(|service| service.kind == ServiceKind::Sharded);
        let only = location.map(|l| &l.region).filter(|_| self.policy.local_only);
        let wanted = sharded && self.shards.offered && self.shards.large == Some(true);
        wanted.then(|| MapName { service: self.name.clone(), region: only.cloned() })
    }

    /// Changes what is asked for to `needed`; returns what to subscribe to and what to give up.
    pub(super) fn ask(&mut self, needed: BTreeSet<Prefix>) -> (Vec<Prefix>, Vec<Prefix>) {
        let new: Vec<_> = needed.iter().filter(|prefix| !self.asked.contains_key(*prefix)).cloned().collect();
        let old: Vec<_> = self.asked.keys().filter(|prefix| !needed.contains(*prefix)).cloned().collect();
        for prefix in &old {
            self.asked.remove(prefix);
            // What another prefix still covers arrives with the next snapshot of that one.
            self.retain(prefix, |_| false);
        }
        self.asked.extend(new.iter().map(|prefix| (prefix.clone(), false)));
        (new, old)
    }

    /// What was asked for and has not arrived.
    pub(super) fn missing(&self) -> Vec<Prefix> {
        self.asked.iter().filter(|(_, arrived)| !**arrived).map(|(prefix, _)| prefix.clone()).collect()
    }

    /// Whether everything that was asked for is there. Verdicts may come later: calls go on without them.
    pub(super) fn complete(&self) -> bool {
        let handed_over = self.shards.last().is_some();
        if self.asked.contains_key(&self.version_key()) && !handed_over {
            return false;
        }
        let health = Prefix::health(&self.name, None);
        let spared = |prefix: &Prefix| health.covers(prefix.as_str());
        self.asked.iter().all(|(prefix, arrived)| *arrived || spared(prefix))
    }

    /// Whether the records that say what the service is are there.
    pub(super) fn declared(&self) -> Option<bool> {
        let arrived = self.asked.get(&Prefix::from(&RecordKey::Service(self.name.clone())))?;
        arrived.then_some(self.service.is_some())
    }

    pub(super) fn arrived(&mut self, prefix: &Prefix) {
        if let Some(arrived) = self.asked.get_mut(prefix) {
            *arrived = true;
            if *prefix == self.version_key() {
                // There is no map, or its size would be known.
                self.shards.large.get_or_insert(false);
            }
        }
    }

    /// Forgets what lies below a prefix and does not stay, before its snapshot is put: a record that the snapshot holds
    /// stays until it is replaced, and so stays in use where what replaces it cannot be read.
    pub(super) fn retain(&mut self, prefix: &Prefix, stays: impl Fn(&str) -> bool) {
        let gone = |key: &str| prefix.covers(key) && !stays(key);
        if gone(&RecordKey::Service(self.name.clone()).to_string()) {
            self.service = None;
        }
        if gone(&RecordKey::Policy(self.name.clone()).to_string()) {
            self.policy = PolicyRecord::default();
        }
        self.endpoints.forget(gone);
        // A prefix names a region or lies above all of them.
        let name = &self.name;
        let below = |region: &Region| prefix.covers(Prefix::health(name, Some(region)).as_str());
        for (region, verdicts) in self.health.by_region.iter_mut().filter(|(region, _)| below(region)) {
            verdicts.retain(|instance, _| {
                stays(&RecordKey::Health(name.clone(), region.clone(), instance.clone()).to_string())
            });
        }
        self.health.by_region.retain(|_, verdicts| !verdicts.is_empty());
        self.shards.forget(gone);
        // Given up it is not asked for any more, and says nothing about what is there.
        if self.asked.contains_key(prefix) && gone(self.version_key().as_str()) {
            self.shards.gone();
        }
    }

    /// Takes a record in. A record that is not valid leaves the one before in place.
    pub(super) fn put(&mut self, text: &Arc<str>, key: &RecordKey, value: &Bytes) -> Result<(), Invalid> {
        if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
            return self.shards.put(key, value);
        }
        match records::decode(key, value)? {
            Record::Service(service) => self.service = Some(service),
            Record::Policy(policy) => self.policy = PolicyRecord::new(&policy, value.clone()),
            Record::Endpoint(endpoint) => self.endpoints.put(text, endpoint),
            Record::Verdict(verdict) => {
                if let RecordKey::Health(_, region, instance) = key {
                    self.health.put(region.clone(), instance.clone(), verdict);
                }
            }
            Record::Move(_) | Record::Regions(_) | Record::RoundTrips(_) | Record::Hosts(_) => {}
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
            _ => {}
        }
    }
}

impl PolicyRecord {
    fn new(policy: &Policy, value: Bytes) -> Self {
        let (local_only, has_checks) = (policy.locality.local_only, policy.health_check.is_some());
        Self { value: Some(value), local_only, has_checks }
    }
}

impl Endpoints {
    pub(super) fn list(&self) -> &[Endpoint] {
        &self.list
    }

    fn put(&mut self, key: &Arc<str>, endpoint: Endpoint) {
        match self.keys.binary_search(key) {
            Ok(at) => self.list[at] = endpoint,
            Err(at) => {
                if self.list.len() < FEW {
                    self.keys.reserve_exact(1);
                    self.list.reserve_exact(1);
                }
                self.keys.insert(at, Arc::clone(key));
                self.list.insert(at, endpoint);
            }
        }
    }

    fn delete(&mut self, key: &str) {
        if let Ok(at) = self.keys.binary_search_by(|k| (**k).cmp(key)) {
            self.keys.remove(at);
            self.list.remove(at);
        }
    }

    fn forget(&mut self, gone: impl Fn(&str) -> bool) {
        if !self.keys.iter().any(|key| gone(key)) {
            return;
        }
        let keys = std::mem::take(&mut self.keys);
        let list = std::mem::take(&mut self.list);
        let kept = keys.into_iter().zip(list).filter(|(key, _)| !gone(key));
        (self.keys, self.list) = kept.unzip();
    }
}

impl ShardParts {
    /// The map, put together anew only when a part of it changed; parts that do not fit leave the map before in place.
    pub(super) fn compile(&mut self) -> Result<(), Invalid> {
        let elsewhere = self.offered && !self.here && self.large != Some(false);
        if std::mem::take(&mut self.changed) && !elsewhere {
            let map = shards::decode_map(self.parts.iter().map(|(key, part)| (key.clone(), part.clone())))?;
            // Read here after all, where the agent hands over no newer one.
            (self.compiled, self.shared) = (map.map(|map| Arc::new(ShardTable::compile(&map))), None);
        }
        Ok(())
    }

    /// The map as it was last handed over or put together.
    pub(super) fn last(&self) -> Option<&Arc<ShardTable>> {
        self.shared.as_ref().or(self.compiled.as_ref())
    }

    /// Takes the map that the agent handed over.
    pub(super) fn share(&mut self, shards: Arc<ShardTable>) {
        (self.shared, self.compiled, self.here) = (Some(shards), None, false);
        self.settled();
    }

    /// This version cannot be used, and the one before stays; where there is none, the parts are read here.
    pub(super) fn failed(&mut self, version: u64) {
        self.failed = self.failed.max(version);
        self.settled();
        self.read_here();
    }

    /// Reads the parts here unless a map was handed over that is good enough. Returns whether that is new.
    pub(super) fn read_here(&mut self) -> bool {
        (self.shared.is_none() || self.lags()) && !std::mem::replace(&mut self.here, true)
    }

    /// Whether decisions rest on a map that is older than what is known of it, and the newer one is under way.
    pub(super) fn lags(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.version() < self.told && self.failed < self.told)
    }

    /// Notes that all up to `before` was known when the version came that is told now.
    pub(super) fn came_after(&mut self, before: Option<Revision>) {
        if self.large != Some(true) || self.told <= self.reached() {
            return;
        }
        // Versions count anew where the control plane has another store.
        if self.coming.back().is_some_and(|(version, _)| *version > self.told) {
            self.coming.clear();
        }
        let full = self.coming.len() == COMING;
        match self.coming.back_mut() {
            Some((version, _)) if *version == self.told => {}
            // They come into use together as far as acknowledgements go: later than they might, and never too early.
            Some((version, _)) if full => *version = self.told,
            _ => self.coming.push_back((self.told, before)),
        }
    }

    /// Up to where decisions rest on what arrived, while the map lags; `None` where that is not known. Where versions come
    /// faster than tables are made the map always lags, and what has nothing to do with it must not wait for a pause.
    pub(super) fn known_before(&self) -> Option<Revision> {
        self.coming.front().and_then(|(_, before)| *before)
    }

    /// The version that decisions rest on, or that was given up after it.
    fn reached(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.version()).max(self.failed)
    }

    fn settled(&mut self) {
        let reached = self.reached();
        self.coming.retain(|(version, _)| *version > reached);
    }

    fn put(&mut self, key: &RecordKey, value: &Bytes) -> Result<(), Invalid> {
        if let RecordKey::ShardManifest(_, ShardPart::Ranges) = key {
            let manifest = shards::read_manifest(value)?;
            self.told = manifest.version;
            self.large = Some(match self.large {
                None => manifest.rows >= LARGE,
                // One that hovers about the bound stays where it is.
                Some(was) => was || manifest.rows >= 2 * LARGE,
            });
        }
        self.parts.insert(key.clone(), value.clone());
        self.changed = true;
        Ok(())
    }

    fn delete(&mut self, key: &RecordKey) {
        self.changed |= self.parts.remove(key).is_some();
        if let RecordKey::ShardManifest(_, ShardPart::Ranges) = key {
            self.gone();
        }
    }

    /// The service has no map any more.
    fn gone(&mut self) {
        (self.shared, self.large, self.told) = (None, Some(false), 0);
        self.coming.clear();
    }

    fn forget(&mut self, gone: impl Fn(&str) -> bool) {
        let before = self.parts.len();
        self.parts.retain(|key, _| !gone(&key.to_string()));
        self.changed |= self.parts.len() != before;
    }
}
