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
        policy: None,
        default: None,
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
    /// `None` if there is no record.
    policy: Option<Policy>,
    /// `None` if there is no record.
    default: Option<DefaultAuthorization>,
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
            tracing::info!(%prefix, reason, "the issuers of tokens are not known: requests with a token of an end user are refused");
            return self.set_issuers(&TokenIssuers::default());
        }
        match *prefix == Prefix::checkers() {
            true => {
                tracing::info!(%prefix, reason, "the elected checkers are not known: any agent may make probes");
                self.complete.insert(prefix.clone());
                self.compile();
            }
            false => {
                tracing::info!(%prefix, reason, "the policy is not known yet, and so is not who may call");
            }
        }
    }
}

impl PolicyRecords {
    /// Applies the records once the required ones are known.
    fn compile(&self) {
        if self.wanted.is_subset(&self.complete) && self.unreadable.is_empty() {
            let none = Policy::default();
            let policy = self.policy.as_ref().unwrap_or(&none);
            self.served.apply(policy);
            let default = self.default.unwrap_or_default();
            self.authorizer.set(AuthorizationTable::compile(policy, default, self.known_checkers()));
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
    /// unreadable policy leaves unknown who may call, and an unreadable default allows no call. This holds even if the
    /// record is known to have been absent before: it may restrict callers for the first time.
    fn put_unreadable(&mut self, key: &RecordKey, error: &Invalid) {
        match key {
            RecordKey::DefaultAuthorization if self.default.is_none() => {
                tracing::error!(%key, %error, "the default of the mesh cannot be read: calls that no rule of the policy allows are refused");
                self.default = Some(DefaultAuthorization::Deny);
            }
            RecordKey::Policy(_) if self.policy.is_none() => {
                tracing::error!(%key, %error, "the policy cannot be read: all calls are refused until it is written again, or this process is upgraded");
                self.unreadable.insert(Prefix::from(key));
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
                    true => self.default = None,
                    false => self.policy = None,
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
            Ok(Record::Policy(policy)) => self.policy = Some(policy),
            Ok(Record::DefaultAuthorization(default)) => self.default = Some(default),
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
            RecordKey::Policy(_) => self.policy = None,
            RecordKey::DefaultAuthorization => self.default = None,
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
    use crate::authorization::NotAccepted;

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
            policy: Some(spec.validate().unwrap().1),
            default: Some(DefaultAuthorization::Deny),
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

    /// Returns a snapshot of one record with this value, or of its absence.
    fn snapshot_of(key: &RecordKey, value: Option<Vec<u8>>) -> Update {
        let entry = |value: Vec<u8>| (key.to_string().into(), Entry { value: value.into(), revision: 1 });
        let entries = value.map(entry).into_iter().collect();
        let snapshot = Snapshot { prefix: Prefix::from(key), entries, age: Duration::ZERO };
        let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
        Update { snapshots: vec![snapshot], ..Update::empty(revision) }
    }

    /// A value that no release can decode.
    fn damaged() -> Option<Vec<u8>> {
        Some(vec![0xff])
    }

    fn policy_key() -> RecordKey {
        RecordKey::Policy(ServiceName::new("shop/cart").unwrap())
    }

    #[test]
    fn server_treats_unreadable_first_policy_as_unknown() {
        for is_absence_known in [false, true] {
            let mut records = PolicyRecords { policy: None, ..followed() };
            let key = policy_key();
            records.complete.remove(&Prefix::from(&key));
            let is_ready = |records: &PolicyRecords| records.authorizer.ready().now_or_never().is_some();
            if is_absence_known {
                records.update(snapshot_of(&key, None));
                assert!(is_ready(&records), "there is no policy");
            }
            for _ in 0..2 {
                records.update(snapshot_of(&key, damaged()));
                assert!(!is_ready(&records), "a later release may have written it");
            }
            let valid = record_encoding::encode(&Policy::default().into()).to_vec();
            records.update(snapshot_of(&key, Some(valid)));
            assert!(is_ready(&records));
            records.update(snapshot_of(&key, damaged()));
            assert!(records.unreadable.is_empty(), "the last one stays in force");
        }
    }

    #[test]
    fn server_refuses_calls_once_its_first_policy_is_unreadable() {
        for (key, refusal) in
            [(policy_key(), NotAccepted::Unknown), (RecordKey::DefaultAuthorization, NotAccepted::Refused)]
        {
            let mut records = PolicyRecords { policy: None, default: None, ..followed() };
            let caller = Identity::Spiffe("spiffe://prod/shop/web".parse().unwrap());
            records.compile();
            assert_eq!(records.authorizer.accept_connection(&caller), Ok(()), "the default allows it");
            records.update(snapshot_of(&key, damaged()));
            assert_eq!(records.authorizer.accept_connection(&caller), Err(refusal), "{key}");
            records.update(snapshot_of(&key, None));
            assert_eq!(records.authorizer.accept_connection(&caller), Ok(()), "{key} was deleted");
        }
    }
}
