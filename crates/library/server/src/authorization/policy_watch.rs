//! Follows the service's policy, the mesh's default, and the elected checkers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{
    DefaultAuthorization, Invalid, Label, Policy, Prefix, Record, RecordKey, Region, Revision, ServiceName,
    TokenIssuers,
};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_router::AuthorizationTable;
use fairmesh_tokens::Issuers;
use fairmesh_wire::record_encoding;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Authorizer, system_time};
use crate::{RegistryClient, layer::processed_call::ServedClasses};

/// The subscription to the policy. Dropping it unsubscribes.
#[derive(Debug)]
pub(crate) struct PolicySubscription {
    handle: FollowerHandle,
    _acks: AbortOnDropHandle<()>,
}

impl PolicySubscription {
    /// Unsubscribes from the upstream, so that drains do not wait for this process to reconnect. Returns within a
    /// second.
    pub(crate) async fn close(&self) {
        self.handle.close().await;
    }
}

/// Follows the policy of `service`.
pub(super) fn follow(
    registry: &RegistryClient,
    service: ServiceName,
    (authorizer, served): (Arc<Authorizer>, Arc<ServedClasses>),
) -> PolicySubscription {
    let config = FollowerConfig {
        transport: registry.transport().clone(),
        addresses: registry.addresses().to_vec(),
        software: registry.software().to_owned(),
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let wanted = [RecordKey::Policy(service), RecordKey::DefaultAuthorization].map(|key| Prefix::from(&key));
    let (applied, mut revisions) = watch::channel(None);
    let records = PolicyRecords {
        wanted: wanted.iter().cloned().collect(),
        complete: BTreeSet::new(),
        unreadable: BTreeSet::new(),
        policy: Policy::default(),
        default: DefaultAuthorization::default(),
        checkers: BTreeMap::new(),
        records_checkers: false,
        authorizer,
        served,
        applied,
    };
    let handle = Follower::spawn(config, records);
    wanted.into_iter().chain([Prefix::checkers(), issuers()]).for_each(|prefix| handle.subscribe(prefix));
    let acknowledged = handle.clone();
    let acks = tokio::spawn(async move {
        while revisions.changed().await.is_ok() {
            let revision: Option<Revision> = *revisions.borrow_and_update();
            revision.into_iter().for_each(|revision| acknowledged.ack(revision));
        }
    });
    PolicySubscription { handle, _acks: AbortOnDropHandle::new(acks) }
}

/// The received records, compiled once the required ones are known. Checkers are not required: an upstream of an
/// earlier release has no record of them.
struct PolicyRecords {
    wanted: BTreeSet<Prefix>,
    complete: BTreeSet<Prefix>,
    /// Prefixes with records that cannot be decoded and have no earlier valid version. Without these records, the
    /// permitted callers are unknown.
    unreadable: BTreeSet<Prefix>,
    policy: Policy,
    default: DefaultAuthorization,
    checkers: BTreeMap<Region, Label>,
    /// Whether any checker was ever recorded. Before that, the control plane or a replica may be of the previous
    /// release, which records no checkers.
    records_checkers: bool,
    authorizer: Arc<Authorizer>,
    served: Arc<ServedClasses>,
    applied: watch::Sender<Option<Revision>>,
}

impl Sink for PolicyRecords {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        self.compile();
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        if *prefix == issuers() {
            tracing::warn!(%prefix, reason, "the issuers of tokens are not known: requests with a token of an end user are refused");
            return self.set_issuers(&TokenIssuers::default());
        }
        match *prefix == Prefix::checkers() {
            true => {
                tracing::warn!(%prefix, reason, "the elected checkers are not known: any agent may make probes");
                self.complete.insert(prefix.clone());
                self.compile();
            }
            false => {
                tracing::error!(%prefix, reason, "the policy cannot be followed, so that who may call is not known");
            }
        }
    }
}

impl PolicyRecords {
    /// Applies the records once the required ones are known.
    fn compile(&self) {
        if self.wanted.is_subset(&self.complete) && self.unreadable.is_empty() {
            self.served.apply(&self.policy);
            let table = AuthorizationTable::compile(&self.policy, self.default, self.known_checkers());
            self.authorizer.set(table);
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
        self.authorizer.set_issuers(issuers);
    }

    /// Keeps the last valid record in force, so that an unreadable one never widens access. Without one, an
    /// unreadable policy leaves unknown who may call, and an unreadable default allows no call.
    fn put_unreadable(&mut self, key: &RecordKey, error: &Invalid) {
        let prefix = Prefix::from(key);
        let is_first = self.wanted.contains(&prefix) && !self.complete.contains(&prefix);
        match key {
            RecordKey::DefaultAuthorization if is_first => {
                tracing::error!(%key, %error, "the default of the mesh cannot be read: calls that no rule of the policy allows are refused");
                self.default = DefaultAuthorization::Deny;
            }
            _ if is_first => {
                tracing::error!(%key, %error, "the policy cannot be read: all calls are refused until it is written again, or this process is upgraded");
                self.unreadable.insert(prefix);
                self.authorizer.set_unreadable();
            }
            _ => tracing::error!(%key, %error, "the record is not understood; keeping the last one"),
        }
    }

    /// The elected checkers; `None` once the upstream responded that it has no record of any. Probes are refused until
    /// it responds.
    fn known_checkers(&self) -> Option<BTreeSet<Label>> {
        let is_unknown = !self.records_checkers && self.complete.contains(&Prefix::checkers());
        (!is_unknown).then(|| self.checkers.values().cloned().collect())
    }
}

/// Prefix of the token issuers' record. It is not required: only a request with a token needs it.
fn issuers() -> Prefix {
    Prefix::from(&RecordKey::TokenIssuers)
}

impl Mirror for PolicyRecords {
    fn retain(&mut self, snapshot: &Snapshot) {
        if snapshot.prefix == issuers() && !snapshot.holds(snapshot.prefix.as_str()) {
            self.set_issuers(&TokenIssuers::default());
        }
        if snapshot.prefix == Prefix::checkers() {
            self.checkers.retain(|region, _| snapshot.holds(&RecordKey::Checker(region.clone()).to_string()));
        }
        if !snapshot.holds(snapshot.prefix.as_str()) {
            self.unreadable.remove(&snapshot.prefix);
        }
        for key in &self.wanted {
            if *key == snapshot.prefix && !snapshot.holds(key.as_str()) {
                match key.as_str().starts_with("/g/") {
                    true => self.default = DefaultAuthorization::default(),
                    false => self.policy = Policy::default(),
                }
            }
        }
    }

    fn put(&mut self, key: RecordKey, record: ArrivedRecord<'_>) {
        let prefix = Prefix::from(&key);
        let read = record_encoding::decode(&key, record.value);
        if read.is_ok() {
            self.unreadable.remove(&prefix);
        }
        match read {
            Ok(Record::Policy(policy)) => self.policy = policy,
            Ok(Record::DefaultAuthorization(default)) => self.default = default,
            Ok(Record::TokenIssuers(record)) => self.set_issuers(&record),
            Ok(Record::ElectedChecker(checker)) => {
                if let RecordKey::Checker(region) = key {
                    self.records_checkers = true;
                    self.checkers.insert(region, checker.agent);
                }
            }
            Ok(_) => {}
            Err(error) => self.put_unreadable(&key, &error),
        }
    }

    fn delete(&mut self, _text: &str, key: &RecordKey) {
        self.unreadable.remove(&Prefix::from(key));
        match key {
            RecordKey::Policy(_) => self.policy = Policy::default(),
            RecordKey::DefaultAuthorization => self.default = DefaultAuthorization::default(),
            RecordKey::TokenIssuers => self.set_issuers(&TokenIssuers::default()),
            RecordKey::Checker(region) => _ = self.checkers.remove(region),
            _ => {}
        }
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        self.complete.insert(prefix.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{ElectedChecker, Identity, StoreId, spec::PolicySpec};
    use fairmesh_rib::Entry;
    use fairmesh_wire::transport::Transport;
    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::*;

    /// Returns records from an upstream that has sent the policy, which has a health check.
    fn followed() -> PolicyRecords {
        let service = ServiceName::new("shop/cart").unwrap();
        let wanted = [RecordKey::Policy(service.clone()), RecordKey::DefaultAuthorization]
            .map(|key| Prefix::from(&key));
        let policy = json!({"service": "shop/cart", "healthCheck": {"http": {"path": "/healthz"}}});
        let spec: PolicySpec = serde_json::from_value(policy).unwrap();
        let transport = Transport::tls(Arc::<fairmesh_identity::Workload>::default());
        PolicyRecords {
            wanted: wanted.iter().cloned().collect(),
            complete: wanted.into(),
            unreadable: BTreeSet::new(),
            policy: spec.validate().unwrap().1,
            default: DefaultAuthorization::Deny,
            checkers: BTreeMap::new(),
            records_checkers: false,
            authorizer: Arc::new(Authorizer::of_server(service, &transport)),
            served: Arc::default(),
            applied: watch::Sender::new(None),
        }
    }

    /// Returns a snapshot of the checkers with these agents.
    fn snapshot(agents: &[&str]) -> Update {
        let entry = |name: &&str| {
            let key = RecordKey::Checker(Region::new(*name).unwrap()).to_string();
            let agent = Label::new(*name).unwrap();
            let value = record_encoding::encode(&ElectedChecker { agent, elected_at_ms: 1 }.into());
            (key.into(), Entry { value, revision: 1 })
        };
        let entries = agents.iter().map(entry).collect();
        let snapshot = Snapshot { prefix: Prefix::checkers(), entries, age: Duration::ZERO };
        let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
        Update { snapshots: vec![snapshot], ..Update::empty(revision) }
    }

    fn may_probe(records: &PolicyRecords, agent: &str) -> bool {
        let id = format!("spiffe://prod/fairmesh/agent/{agent}").parse().unwrap();
        records.authorizer.probe_for(&Identity::Spiffe(id)).is_some()
    }

    #[test]
    fn every_agent_may_probe_health_until_first_checker_is_recorded() {
        let mut records = followed();
        records.compile();
        assert!(!may_probe(&records, "red"), "the upstream has not responded");
        records.update(snapshot(&[]));
        assert!(may_probe(&records, "red"), "the upstream records no checkers");
        records.update(snapshot(&["web"]));
        assert_eq!(["red", "web"].map(|agent| may_probe(&records, agent)), [false, true]);
        records.update(snapshot(&[]));
        assert!(!may_probe(&records, "web"), "no checker is elected");
    }

    #[test]
    fn every_agent_may_probe_health_if_checker_records_are_refused() {
        let mut records = followed();
        records.refused(&Prefix::checkers(), "unknown prefix");
        assert!(may_probe(&records, "web"));
        records.update(snapshot(&["web"]));
        records.refused(&Prefix::checkers(), "unknown prefix");
        assert_eq!(["red", "web"].map(|agent| may_probe(&records, agent)), [false, true]);
    }
    #[test]
    fn server_treats_unreadable_first_policy_as_unknown() {
        let mut records = followed();
        let key = RecordKey::Policy(ServiceName::new("shop/cart").unwrap());
        let snapshot = |value: Vec<u8>| {
            let entry = Entry { value: value.into(), revision: 1 };
            let entries = [(key.to_string().into(), entry)].into();
            let snapshot = Snapshot { prefix: Prefix::from(&key), entries, age: Duration::ZERO };
            let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
            Update { snapshots: vec![snapshot], ..Update::empty(revision) }
        };
        records.complete.remove(&Prefix::from(&key));
        for _ in 0..2 {
            records.update(snapshot(vec![0xff]));
            assert!(
                records.authorizer.ready().now_or_never().is_none(),
                "a later release may have written it"
            );
        }
        records.update(snapshot(record_encoding::encode(&Policy::default().into()).to_vec()));
        assert!(records.authorizer.ready().now_or_never().is_some());
        records.update(snapshot(vec![0xff]));
        assert!(records.unreadable.is_empty(), "the last one stays in force");
    }
}
