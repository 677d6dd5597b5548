//! The facts that planners decide from, updated by commits. Otherwise every round would read every record of
//! every planned service.
//!
//! Any number of planners use the same facts: each subscribes, and reads snapshots when its round begins.

mod lone_shards;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{
    DefaultsScope, Endpoint, Hosts, InheritedDefaults, MeasuredDistances, PolicyDefaults, Prefix, Record,
    RecordKey, ServiceKind, ServiceName,
};
use fairmesh_planner::{
    MeshFacts, PolicyFacts, ServiceFacts, StoredDrain, StoredTable, Subset, TopologyFacts,
};
use fairmesh_rib::{Commit, Entry, Node};
use fairmesh_wire::record_encoding;
use tokio::sync::Notify;

use lone_shards::LoneShardsCache;

/// The facts of all services.
#[derive(Debug, Default)]
pub(crate) struct FactsIndex {
    mesh: Mutex<MeshFacts>,
    lone_shards: Mutex<LoneShardsCache>,
    /// One notification per planner. Planners live as long as the process.
    subscribers: Mutex<Vec<Arc<Notify>>>,
}

impl FactsIndex {
    /// Builds the facts from all records. Reports follow with the next round.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        let mut facts = self.lock();
        facts.clear();
        let hosts = RecordKey::Hosts.to_string();
        let hosts = entries.iter().find(|(key, _)| **key == *hosts);
        // Hosts come before endpoints, since they determine the endpoints' power.
        facts.set_hosts(decode_hosts(hosts.map(|(_, entry)| &*entry.value)), |_| Vec::new());
        for (key, entry) in entries {
            if let Ok(key) = RecordKey::parse(key) {
                let change = Change { value: Some(&entry.value), revision: entry.revision };
                apply(&mut facts, key, change, || None);
            }
        }
    }

    /// Indexes a commit that `node` is about to apply.
    pub(crate) fn apply(&self, commit: &Commit, node: &Node) {
        let mut facts = self.lock();
        let before = facts.version();
        let hosts = RecordKey::Hosts.to_string();
        if let Some((_, value)) = commit.changes.iter().find(|(key, _)| **key == *hosts) {
            // Locks one service at a time, so that the node serves others meanwhile.
            facts.set_hosts(decode_hosts(value.as_deref()), |service| endpoints_of(node, service));
        }
        for (key, value) in &commit.changes {
            if let Ok(parsed) = RecordKey::parse(key) {
                let change = Change { value: value.as_deref(), revision: commit.revision };
                apply(&mut facts, parsed, change, || node.get(key));
            }
        }
        if facts.version() != before {
            self.notify();
        }
    }

    /// Adds a notification for one reader, triggered whenever facts have changed or reports have arrived.
    pub(crate) fn subscribe(&self) -> Arc<Notify> {
        let subscriber = Arc::<Notify>::default();
        lock(&self.subscribers).push(Arc::clone(&subscriber));
        subscriber
    }

    /// Wakes all subscribers.
    pub(crate) fn notify(&self) {
        lock(&self.subscribers).iter().for_each(|subscriber| subscriber.notify_one());
    }

    /// Updates the lone shards (shards without a copy in another region) of these services. Drains need them.
    pub(crate) fn update_lone_shards<'a>(
        &self,
        services: impl IntoIterator<Item = &'a ServiceName>,
        node: &Node,
    ) {
        for service in services {
            let lone = lock(&self.lone_shards).get(node, service);
            self.lock().set_lone_shards(service, lone);
        }
    }

    /// Frees the cache of [`Self::update_lone_shards`], once there is no drain.
    pub(crate) fn forget_lone_shards(&self) {
        lock(&self.lone_shards).clear();
    }

    /// The services whose policies request a planner.
    pub(crate) fn planned(&self) -> Arc<BTreeSet<ServiceName>> {
        self.lock().planned()
    }

    /// Facts about regions, distances and drains.
    pub(crate) fn topology(&self) -> Arc<TopologyFacts> {
        self.lock().topology()
    }

    /// Facts about a service; empty if nothing is known about it.
    pub(crate) fn service(&self, name: &ServiceName) -> Arc<ServiceFacts> {
        self.lock().service(name).unwrap_or_default()
    }

    /// Locks all facts. No commit is applied while they are locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MeshFacts> {
        lock(&self.mesh)
    }
}

/// Locks a mutex and ignores poisoning: facts that a panic left half changed are set again by the next change of
/// their record.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Change that a commit makes at a key. The value is `None` if the record is removed.
struct Change<'a> {
    value: Option<&'a [u8]>,
    revision: u64,
}

fn measured(record: Record) -> Option<MeasuredDistances> {
    match record {
        Record::MeasuredDistances(distances) => Some(distances),
        _ => None,
    }
}

/// Applies the change at a key to the facts. `before` returns the entry that the change replaces.
fn apply(facts: &mut MeshFacts, key: RecordKey, change: Change<'_>, before: impl FnOnce() -> Option<Entry>) {
    let Change { value, revision } = change;
    let record = || record_encoding::decode(&key, value?).ok();
    match &key {
        RecordKey::Policy(service) => facts.set_policy(service, value.map(policy)),
        RecordKey::Service(service) => {
            let kind = match record() {
                Some(Record::Service(service)) => service.kind,
                _ => ServiceKind::default(),
            };
            facts.set_kind(service, kind);
            facts.set_declared(service, value.is_some());
        }
        RecordKey::Endpoint(service, ..) => {
            let before = before().and_then(|entry| endpoint(&key, &entry.value));
            let after = value.and_then(|value| endpoint(&key, value));
            facts.set_endpoint(service, before.as_ref(), after.as_ref());
        }
        RecordKey::RegionTable(service, from) => {
            let table = match record() {
                Some(Record::RegionTable(table)) => Some(StoredTable { table, revision }),
                _ => None,
            };
            facts.set_table(service, from.clone(), table);
        }
        RecordKey::RegionDrain(region) => {
            let drain = match record() {
                Some(Record::RegionDrain(drain)) => Some(StoredDrain { drain, revision }),
                _ => None,
            };
            facts.set_drain(region.clone(), drain);
        }
        RecordKey::PolicyDefaults(scope) => {
            facts.set_policy_defaults(scope, record().and_then(policy_defaults));
        }
        RecordKey::Regions => match record() {
            Some(Record::Regions(regions)) => facts.set_regions(regions),
            _ => facts.set_regions(Default::default()),
        },
        RecordKey::RoundTrips => match record() {
            Some(Record::RoundTrips(trips)) => facts.set_round_trips(trips),
            _ => facts.set_round_trips(Default::default()),
        },
        RecordKey::MeasuredDistances(from) => {
            facts.set_measured(from.clone(), record().and_then(measured));
        }
        _ => {}
    }
}

/// Returns the part of a policy that planners need, completed by the defaults in force, for a policy that is about to
/// be written or removed.
pub(crate) fn policy_in_force(node: &Node, service: &ServiceName, value: Option<&[u8]>) -> PolicyFacts {
    let defaults = |scope: DefaultsScope| {
        let key = RecordKey::PolicyDefaults(scope);
        let record = record_encoding::decode(&key, &node.get(&key.to_string())?.value).ok()?;
        policy_defaults(record).map(Arc::new)
    };
    let inherited = InheritedDefaults {
        tenant: defaults(DefaultsScope::Tenant(service.tenant.clone())),
        mesh: defaults(DefaultsScope::Mesh),
    };
    value.map(policy).unwrap_or_default().with_defaults(&inherited)
}

fn policy_defaults(record: Record) -> Option<PolicyDefaults> {
    match record {
        Record::PolicyDefaults(defaults) => Some(defaults),
        _ => None,
    }
}

/// Returns the part of a policy that planners need, without compiling its expressions.
fn policy(value: &[u8]) -> PolicyFacts {
    let traffic = record_encoding::traffic(value);
    PolicyFacts {
        not_understood: traffic.is_err(),
        traffic: traffic.ok().flatten().unwrap_or_default(),
        refuses_planner: record_encoding::refuses_planner(value),
        local_only: record_encoding::is_local_only(value),
        zone_first: record_encoding::is_zone_first(value),
        subset: Subset(record_encoding::subset(value)),
    }
}

fn endpoint(key: &RecordKey, value: &[u8]) -> Option<Endpoint> {
    match record_encoding::decode(key, value) {
        Ok(Record::Endpoint(endpoint)) => Some(endpoint),
        _ => None,
    }
}

fn endpoints_of(node: &Node, service: &ServiceName) -> Vec<Endpoint> {
    let entries = node.read(&[Prefix::endpoints(service, None)]).1.into_iter();
    entries.filter_map(|(key, entry)| endpoint(&RecordKey::parse(&key).ok()?, &entry.value)).collect()
}

fn decode_hosts(value: Option<&[u8]>) -> Hosts {
    match value.map(|value| record_encoding::decode(&RecordKey::Hosts, value)) {
        Some(Ok(Record::Hosts(hosts))) => hosts,
        _ => Hosts::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use fairmesh_model::{
        HostType, Hosts, Policy, Region, RegionDrain, RoundTrips, StoreId, Traffic, TrafficPlanner,
    };
    use fairmesh_test_support::endpoint;

    use super::*;

    fn name(name: &str) -> ServiceName {
        ServiceName::new(name).unwrap()
    }

    fn policy_of(planner: Option<TrafficPlanner>) -> Option<Record> {
        let traffic =
            planner.map(|planner| Box::new(Traffic { planner: Some(planner), ..Traffic::default() }));
        Some(Record::Policy(Policy { traffic, ..Policy::default() }))
    }

    /// Two indices: one updated commit by commit, one loaded from the resulting records.
    fn kept_and_loaded(commits: Vec<Vec<(RecordKey, Option<Record>)>>) -> [FactsIndex; 2] {
        let (node, kept, loaded) = (Node::new(StoreId(1)), FactsIndex::default(), FactsIndex::default());
        for (revision, changes) in (1..).zip(commits) {
            let change = |(key, record): (RecordKey, Option<Record>)| {
                (key.to_string().into(), record.map(|record| record_encoding::encode(&record)))
            };
            let commit = Commit { revision, changes: changes.into_iter().map(change).collect() };
            kept.apply(&commit, &node);
            node.apply(commit);
        }
        loaded.load(&node.read(&[Prefix::everything()]).1);
        [kept, loaded]
    }

    #[test]
    fn planner_facts_updated_by_commits_equal_freshly_loaded_ones() {
        let (cart, gone, eu) = (name("shop/cart"), name("shop/gone"), Region::new("eu").unwrap());
        let at = |service: &ServiceName, instance: &str| {
            let endpoint = endpoint(instance, "eu");
            (RecordKey::Endpoint(service.clone(), eu.clone(), endpoint.instance.clone()), endpoint)
        };
        let ((a, first), (b, second), (c, third)) = (at(&cart, "a"), at(&cart, "b"), at(&gone, "c"));
        let fast = HostType::new("fast").unwrap();
        let mut on_fast = first.clone();
        on_fast.location.host_type = Some(fast.clone());
        let hosts = |speed| Record::Hosts(Hosts::new([(fast.clone(), speed)].into(), Vec::new()).unwrap());
        let drain = RegionDrain::begin(None, false, std::time::Duration::ZERO, 1);
        let mut trips = RoundTrips::default();
        trips.set(eu.clone(), Region::new("us").unwrap(), std::time::Duration::from_millis(9));
        let rings = policy_of(Some(TrafficPlanner::Rings));
        let [kept, loaded] = kept_and_loaded(vec![
            vec![(a.clone(), Some(Record::Endpoint(first))), (b.clone(), Some(Record::Endpoint(second)))],
            vec![(RecordKey::Policy(cart.clone()), rings.clone()), (RecordKey::Policy(gone.clone()), rings)],
            vec![(RecordKey::Hosts, Some(hosts(2_000))), (a.clone(), Some(Record::Endpoint(on_fast)))],
            vec![
                (c.clone(), Some(Record::Endpoint(third))),
                (RecordKey::RoundTrips, Some(Record::RoundTrips(trips))),
            ],
            vec![(RecordKey::Hosts, Some(hosts(3_000))), (b, None)],
            vec![(RecordKey::RegionDrain(eu.clone()), Some(Record::RegionDrain(drain)))],
            vec![(c, None), (RecordKey::Policy(gone.clone()), policy_of(None))],
        ]);
        for index in [&kept, &loaded] {
            let facts = index.service(&cart);
            assert_eq!((facts.serving_in(&eu), facts.power_in(&eu)), (1, 3.0));
            assert!(facts.traffic.is_planned());
            assert_eq!(*index.planned(), [cart.clone()].into());
            assert_eq!(*index.service(&gone), ServiceFacts::default());
            assert_eq!(index.topology().drains[&eu].revision, 6);
            assert_eq!(index.lock().regions(), [eu.clone()].into());
        }
        assert_eq!(kept.topology().round_trips, loaded.topology().round_trips);
        assert_eq!(kept.topology().hosts, loaded.topology().hosts);
    }

    #[test]
    fn changed_planner_fact_notifies_subscribers_and_other_records_do_not() {
        let (index, node) = (FactsIndex::default(), Node::new(StoreId(1)));
        let subscribers = [index.subscribe(), index.subscribe()];
        let notified_by = |revision, key: RecordKey, record: Option<Record>| {
            let changes =
                vec![(key.to_string().into(), record.map(|record| record_encoding::encode(&record)))];
            index.apply(&Commit { revision, changes }, &node);
            subscribers.each_ref().map(|subscriber| pin!(subscriber.notified()).enable())
        };
        let rings = policy_of(Some(TrafficPlanner::Rings));
        assert_eq!(notified_by(1, RecordKey::Policy(name("shop/cart")), rings), [true, true]);
        assert_eq!(notified_by(2, RecordKey::Service(name("shop/cart")), None), [false, false]);
    }
}
