//! Follows the policy of the service, the default of the mesh, and the elected checkers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{
    DefaultAuthorization, Label, Policy, Prefix, Record, RecordKey, Region, Revision, ServiceName,
};
use fairmesh_rib::{
    ArrivedRecord, Mirror, Snapshot, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_router::AuthorizationTable;
use fairmesh_wire::records;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Authorizer;
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
        policy: Policy::default(),
        default: DefaultAuthorization::default(),
        checkers: BTreeMap::new(),
        authorizer,
        served,
        applied,
    };
    let handle = Follower::spawn(config, records);
    wanted.into_iter().chain([Prefix::checkers()]).for_each(|prefix| handle.subscribe(prefix));
    let acknowledged = handle.clone();
    let acks = tokio::spawn(async move {
        while revisions.changed().await.is_ok() {
            let revision: Option<Revision> = *revisions.borrow_and_update();
            revision.into_iter().for_each(|revision| acknowledged.ack(revision));
        }
    });
    PolicySubscription { handle, _acks: AbortOnDropHandle::new(acks) }
}

/// The records, compiled once the wanted ones are known. Checkers are not waited for: an upstream of an earlier release has none.
struct PolicyRecords {
    wanted: BTreeSet<Prefix>,
    complete: BTreeSet<Prefix>,
    policy: Policy,
    default: DefaultAuthorization,
    checkers: BTreeMap<Region, Label>,
    authorizer: Arc<Authorizer>,
    served: Arc<ServedClasses>,
    applied: watch::Sender<Option<Revision>>,
}

impl Sink for PolicyRecords {
    fn update(&mut self, update: Update) {
        self.apply(&update);
        if self.wanted.is_subset(&self.complete) {
            self.served.apply(&self.policy);
            let checkers = self.checkers.values().cloned().collect();
            self.authorizer.set(AuthorizationTable::compile(&self.policy, self.default, checkers));
        }
        self.applied.send_replace(Some(update.revision));
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        match *prefix == Prefix::checkers() {
            true => {
                tracing::warn!(%prefix, reason, "the elected checkers are not known: their probes are refused")
            }
            false => {
                tracing::error!(%prefix, reason, "the policy cannot be followed, so that who may call is not known");
            }
        }
    }
}

impl Mirror for PolicyRecords {
    fn retain(&mut self, snapshot: &Snapshot) {
        if snapshot.prefix == Prefix::checkers() {
            self.checkers.retain(|region, _| snapshot.holds(&RecordKey::Checker(region.clone()).to_string()));
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
        match records::decode(&key, record.value) {
            Ok(Record::Policy(policy)) => self.policy = policy,
            Ok(Record::DefaultAuthorization(default)) => self.default = default,
            Ok(Record::ElectedChecker(checker)) => {
                if let RecordKey::Checker(region) = key {
                    self.checkers.insert(region, checker.agent);
                }
            }
            Ok(_) => {}
            // The last valid record stays in force, so that an invalid one opens nothing.
            Err(error) => tracing::error!(%key, %error, "the record is not understood; keeping the last one"),
        }
    }

    fn delete(&mut self, _text: &str, key: &RecordKey) {
        match key {
            RecordKey::Policy(_) => self.policy = Policy::default(),
            RecordKey::DefaultAuthorization => self.default = DefaultAuthorization::default(),
            RecordKey::Checker(region) => _ = self.checkers.remove(region),
            _ => {}
        }
    }

    fn mark_current(&mut self, prefix: &Prefix) {
        self.complete.insert(prefix.clone());
    }
}
