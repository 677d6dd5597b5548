use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_model::{
    Endpoint, EndpointState, HealthCheck, InstanceId, MtlsMode, Policy, Prefix, Record, RecordKey, Region,
    ServiceName,
};
use fairmesh_rib::{
    ArrivedRecord, CoalescedUpdates, Mirror, Snapshot, Update,
    follower::{FollowerHandle, Sink},
};
use fairmesh_wire::record_encoding;
use tokio::sync::Notify;

/// One endpoint, by service and instance.
pub(super) type EndpointId = (ServiceName, InstanceId);

/// The checked services and their endpoints in the region.
#[derive(Debug)]
pub(super) struct CheckedEndpoints {
    region: Region,
    handle: FollowerHandle,
    services: BTreeMap<ServiceName, Checked>,
}

#[derive(Debug, Default)]
struct Checked {
    check: Option<HealthCheck>,
    /// Whether the policy permits plaintext.
    accepts_plaintext: bool,
    /// Addresses of the endpoints, and whether they speak mutual TLS.
    endpoints: BTreeMap<InstanceId, (SocketAddr, bool)>,
}

/// How to connect to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedAddress {
    pub(super) address: SocketAddr,
    pub(super) mtls: bool,
    /// Whether the policy of the service permits plaintext.
    pub(super) accepts_plaintext: bool,
}

/// Updates from the upstream that wait for the checker's loop, merged into one. Memory grows with the number of records
/// rather than the number of changes.
#[derive(Clone, Debug, Default)]
pub(super) struct UpdateQueue(Arc<WaitingUpdates>);

#[derive(Debug, Default)]
struct WaitingUpdates {
    updates: Mutex<CoalescedUpdates>,
    arrived: Notify,
}

impl UpdateQueue {
    /// Waits for updates, and returns all of them merged into one.
    pub(super) async fn next(&self) -> Update {
        loop {
            let waiting = self.0.updates.lock().unwrap_or_else(PoisonError::into_inner).take();
            match waiting {
                Some(update) => return update,
                None => self.0.arrived.notified().await,
            }
        }
    }
}

impl Sink for UpdateQueue {
    fn update(&mut self, update: Update) {
        self.0.updates.lock().unwrap_or_else(PoisonError::into_inner).add(update);
        self.0.arrived.notify_one();
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        tracing::info!(%prefix, reason, "control plane refused a subscription of the health checker");
    }
}

impl CheckedEndpoints {
    pub(super) fn new(region: Region, handle: FollowerHandle) -> Self {
        Self { region, handle, services: BTreeMap::new() }
    }

    /// Follows exactly these services.
    pub(super) fn follow(&mut self, services: BTreeSet<ServiceName>) {
        let gone: Vec<_> = self.services.keys().filter(|name| !services.contains(*name)).cloned().collect();
        for name in gone {
            self.prefixes(&name).iter().for_each(|prefix| self.handle.unsubscribe(prefix));
            self.services.remove(&name);
        }
        for name in services {
            if !self.services.contains_key(&name) {
                self.prefixes(&name).into_iter().for_each(|prefix| self.handle.subscribe(prefix));
                self.services.insert(name, Checked::default());
            }
        }
    }

    fn prefixes(&self, name: &ServiceName) -> [Prefix; 2] {
        let policy = Prefix::from(&RecordKey::Policy(name.clone()));
        [policy, Prefix::endpoints(name, Some(&self.region))]
    }

    /// Applies an update and acknowledges it at once: a checker makes no calls that a drain would have to wait for.
    pub(super) fn update(&mut self, update: &Update) {
        self.apply(update);
        self.handle.ack(update.revision);
    }

    /// Every endpoint to probe, with its address and health check.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (EndpointId, CheckedAddress, &HealthCheck)> {
        self.services.iter().flat_map(|(name, checked)| {
            let check = checked.check.as_ref();
            let endpoints = checked.endpoints.iter();
            endpoints.filter_map(move |(instance, &(address, mtls))| {
                let address = CheckedAddress { address, mtls, accepts_plaintext: checked.accepts_plaintext };
                Some(((name.clone(), instance.clone()), address, check?))
            })
        })
    }
}

impl Checked {
    fn set_policy(&mut self, policy: Policy) {
        self.accepts_plaintext = policy.mtls == MtlsMode::Permissive;
        self.check = policy.health_check;
    }
}

impl Mirror for CheckedEndpoints {
    fn retain(&mut self, snapshot: &Snapshot) {
        for (name, checked) in &mut self.services {
            let policy = RecordKey::Policy(name.clone());
            if snapshot.prefix == Prefix::from(&policy) {
                if !snapshot.holds(&policy.to_string()) {
                    checked.set_policy(Policy::default());
                }
            } else if snapshot.prefix == Prefix::endpoints(name, Some(&self.region)) {
                checked.endpoints.retain(|instance, _| {
                    let key = RecordKey::Endpoint(name.clone(), self.region.clone(), instance.clone());
                    snapshot.holds(&key.to_string())
                });
            }
        }
    }

    fn put(&mut self, key: RecordKey, ArrivedRecord { text, value, .. }: ArrivedRecord<'_>) {
        let Some(checked) = key.service().and_then(|name| self.services.get_mut(name)) else { return };
        match record_encoding::decode(&key, value) {
            Ok(Record::Policy(policy)) => checked.set_policy(policy),
            // A starting endpoint reports its own readiness. A node in front of a pod accepts connections from gateways
            // only.
            Ok(Record::Endpoint(endpoint))
                if endpoint.state == EndpointState::Starting || endpoint.pod().is_some() =>
            {
                checked.endpoints.remove(&endpoint.instance);
            }
            Ok(Record::Endpoint(endpoint)) => {
                let Endpoint { instance, address, mtls, .. } = endpoint;
                checked.endpoints.insert(instance, (address, mtls));
            }
            Ok(_) => {}
            Err(problem) => {
                tracing::warn!(key = %text, %problem, "invalid record; the previous one stays in use")
            }
        }
    }

    fn delete(&mut self, _text: &str, key: &RecordKey) {
        let Some(checked) = key.service().and_then(|name| self.services.get_mut(name)) else { return };
        match key {
            RecordKey::Policy(_) => checked.set_policy(Policy::default()),
            RecordKey::Endpoint(_, _, instance) => _ = checked.endpoints.remove(instance),
            _ => {}
        }
    }

    fn mark_current(&mut self, _prefix: &Prefix) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use fairmesh_model::{Probe, Revision, StoreId};
    use fairmesh_rib::{
        Entry,
        follower::{Backoff, Follower, FollowerConfig},
    };
    use fairmesh_test_support::endpoint;
    use fairmesh_wire::transport::Address;

    use super::*;

    fn entry(key: &RecordKey, value: Bytes) -> (Arc<str>, Entry) {
        (key.to_string().into(), Entry { value, revision: 1 })
    }

    fn update(snapshots: impl IntoIterator<Item = (Prefix, Vec<(Arc<str>, Entry)>)>) -> Update {
        let snapshot = |(prefix, entries)| Snapshot { prefix, entries, age: Duration::ZERO };
        let revision = Revision { store: StoreId(7), partition: 0, number: 1 };
        let snapshots = snapshots.into_iter().map(snapshot).collect();
        Update { snapshots, ..Update::empty(revision) }
    }

    #[tokio::test]
    async fn checker_keeps_previous_record_when_snapshot_has_invalid_one() {
        let eu = Region::new("eu").unwrap();
        let name = ServiceName::new("shop/cart").unwrap();
        let upstream = FollowerConfig {
            transport: Default::default(),
            addresses: vec![Address::Unix("/nowhere/control.sock".into())],
            software: "test".to_owned(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let inbox = UpdateQueue::default();
        let mut checked_endpoints = CheckedEndpoints::new(eu.clone(), Follower::spawn(upstream, inbox));
        checked_endpoints.follow(BTreeSet::from([name.clone()]));
        let policy = RecordKey::Policy(name.clone());
        let key = |id: &str| RecordKey::Endpoint(name.clone(), eu.clone(), InstanceId::new(id).unwrap());
        let endpoint = |id: &str| entry(&key(id), record_encoding::encode(&endpoint(id, "eu").into()));
        let checked = Policy { health_check: Some(HealthCheck::new(Probe::Tcp)), ..Policy::default() };
        let below = Prefix::endpoints(&name, Some(&eu));
        checked_endpoints.update(&update([
            (Prefix::from(&policy), vec![entry(&policy, record_encoding::encode(&checked.into()))]),
            (below.clone(), vec![endpoint("a"), endpoint("b")]),
        ]));
        assert_eq!(checked_endpoints.wanted().count(), 2);
        let torn = |key: &RecordKey| entry(key, Bytes::from_static(b"\xff"));
        checked_endpoints
            .update(&update([(Prefix::from(&policy), vec![torn(&policy)]), (below, vec![torn(&key("a"))])]));
        let wanted: Vec<_> =
            checked_endpoints.wanted().map(|((_, instance), ..)| instance.to_string()).collect();
        assert_eq!(wanted, ["a"], "checked as before; an endpoint missing in the snapshot is gone");
        checked_endpoints.update(&update([(Prefix::from(&policy), vec![])]));
        assert_eq!(checked_endpoints.wanted().count(), 0);
    }

    #[tokio::test]
    async fn queued_checker_updates_of_one_record_are_merged() {
        let mut queue = UpdateQueue::default();
        let key = RecordKey::Policy(ServiceName::new("shop/cart").unwrap());
        let value = |number: u64| {
            let lookaside = Some(format!("picks:{number}"));
            record_encoding::encode(&Policy { lookaside, ..Policy::default() }.into())
        };
        for number in 1..=1000 {
            let revision = Revision { store: StoreId(7), partition: 0, number };
            let put = entry(&key, value(number));
            queue.update(Update { puts: vec![put], ..Update::empty(revision) });
        }
        let update = queue.next().await;
        assert_eq!((update.revision.number, update.puts.len()), (1000, 1));
        assert_eq!(update.puts[0].1.value, value(1000));
    }
}
