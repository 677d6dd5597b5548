//! The records of one service as they arrive, and what they amount to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use fairmesh_model::{
    Endpoint, Invalid, Location, Policy, Prefix, Record, RecordKey, Region, Service, ServiceKind,
    ServiceName, ShardPart, Verdicts,
};
use fairmesh_router::Shards;
use fairmesh_wire::{records, shards};

/// What has arrived of one service.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) name: ServiceName,
    pub(super) service: Option<Service>,
    pub(super) policy: Policy,
    pub(super) endpoints: Endpoints,
    pub(super) health: Verdicts,
    pub(super) shards: ShardParts,
    /// What was asked for, and whether it has arrived at least once.
    asked: BTreeMap<Prefix, bool>,
}

/// Endpoints by key, in one slice as the router wants them.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    keys: Vec<Arc<str>>,
    list: Vec<Endpoint>,
}

/// The parts of a shard map, and the map that they last made.
#[derive(Debug, Default)]
pub(super) struct ShardParts {
    parts: BTreeMap<RecordKey, Bytes>,
    compiled: Option<Arc<Shards>>,
    changed: bool,
}

impl Facts {
    pub(super) fn new(name: ServiceName) -> Self {
        Self {
            name,
            service: None,
            policy: Policy::default(),
            endpoints: Endpoints::default(),
            health: Verdicts::default(),
            shards: ShardParts::default(),
            asked: BTreeMap::new(),
        }
    }

    /// The prefixes that a decision about this service needs, as far as is known now: endpoints only once the policy
    /// tells whether those of one region are enough (S6).
    pub(super) fn needed(&self, location: Option<&Location>) -> BTreeSet<Prefix> {
        let declared = Prefix::from(&RecordKey::Service(self.name.clone()));
        let policy = Prefix::from(&RecordKey::Policy(self.name.clone()));
        let arrived = |prefix: &Prefix| self.asked.get(prefix).copied().unwrap_or(false);
        let known = arrived(&declared) && arrived(&policy);
        let mut needed = BTreeSet::from([declared, policy]);
        let Some(service) = self.service.as_ref().filter(|_| known) else {
            return needed;
        };
        let only = location.map(|l| &l.region).filter(|_| self.policy.locality.local_only);
        needed.insert(Prefix::endpoints(&self.name, only));
        if self.policy.health_check.is_some() {
            needed.insert(Prefix::health(&self.name, only));
        }
        match (service.kind, only) {
            (ServiceKind::Sharded, None) => needed.extend([Prefix::shards(&self.name, None)]),
            (ServiceKind::Sharded, Some(region)) => needed.extend([
                Prefix::shards(&self.name, Some(&ShardPart::Ranges)),
                Prefix::shards(&self.name, Some(&ShardPart::Region(region.clone()))),
            ]),
            _ => {}
        }
        needed
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
            self.policy = Policy::default();
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
    }

    /// Takes a record in. A record that is not valid leaves the one before in place.
    pub(super) fn put(&mut self, text: &Arc<str>, key: &RecordKey, value: &Bytes) -> Result<(), Invalid> {
        if matches!(key, RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..)) {
            self.shards.parts.insert(key.clone(), value.clone());
            self.shards.changed = true;
            return Ok(());
        }
        match records::decode(key, value)? {
            Record::Service(service) => self.service = Some(service),
            Record::Policy(policy) => self.policy = policy,
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
            RecordKey::Policy(_) => self.policy = Policy::default(),
            RecordKey::Endpoint(..) => self.endpoints.delete(text),
            RecordKey::Health(_, region, instance) => self.health.remove(region, instance),
            RecordKey::ShardManifest(..) | RecordKey::ShardChunk(..) => {
                self.shards.changed |= self.shards.parts.remove(key).is_some();
            }
            _ => {}
        }
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
    pub(super) fn compiled(&mut self) -> Result<Option<&Arc<Shards>>, Invalid> {
        if std::mem::take(&mut self.changed) {
            let map = shards::decode_map(self.parts.iter().map(|(key, part)| (key.clone(), part.clone())))?;
            self.compiled = map.map(|map| Arc::new(Shards::compile(&map)));
        }
        Ok(self.compiled.as_ref())
    }

    /// The map as it was last put together.
    pub(super) fn last(&self) -> Option<&Arc<Shards>> {
        self.compiled.as_ref()
    }

    fn forget(&mut self, gone: impl Fn(&str) -> bool) {
        let before = self.parts.len();
        self.parts.retain(|key, _| !gone(&key.to_string()));
        self.changed |= self.parts.len() != before;
    }
}
