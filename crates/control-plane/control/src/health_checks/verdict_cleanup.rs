use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Triggers, Wake, Write};
use fairmesh_model::{
    Endpoint, Hosts, Prefix, Record, RecordKey, Region, ServiceName, Standing, Verdict, Verdicts,
};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use super::{
    Checks, LEADERLESS_GRACE,
    elected_checkers::LeaderlessChecker,
    verdict_writer::{self, StoredVerdict},
};

/// Interval between checks for leaderless regions.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of records changed by one batch.
const MAX_OPS_PER_BATCH: usize = 1000;

/// State of health checking in the whole mesh.
pub(crate) struct CheckHealth {
    /// Number of regions with endpoints to check but without a checker.
    pub(crate) unchecked_regions: usize,
    /// Number of pairs of service and region in which callers ignore verdicts, because no other region can take the
    /// calls (panic).
    pub(crate) panics: usize,
}

/// Deletes verdicts on endpoints that are gone or no longer checked. In leaderless regions, marks verdicts as
/// stale and deletes the record of the last checker.
#[derive(Clone, Debug)]
pub(crate) struct VerdictController(pub(crate) Checks);

/// The records that may need a write.
#[derive(Debug)]
pub(crate) struct CheckFacts {
    verdicts: Vec<VerdictFacts>,
    checkers: Vec<LeaderlessChecker>,
}

/// A verdict that may need a write.
#[derive(Debug)]
pub(crate) struct VerdictFacts {
    region: Region,
    key: RecordKey,
    stored: StoredVerdict,
    /// Whether the endpoint exists and its service has a health check.
    is_checked: bool,
    /// Whether the region has been without a checker for too long.
    is_leaderless: bool,
}

impl VerdictFacts {
    /// The write that the verdict needs, if any.
    fn op(&self) -> Option<Op> {
        let Self { key, stored, .. } = self;
        if !self.is_checked {
            return Some(Op::delete(key.to_string()).expecting(Expect::Revision(stored.revision)));
        }
        // A healthy verdict has no effect, so it need not be marked as stale.
        let loses = self.is_leaderless && !stored.verdict.healthy && !stored.verdict.stale;
        loses.then(|| {
            verdict_writer::put(key, Some(stored), Verdict { stale: true, ..stored.verdict.clone() })
        })
    }
}

impl Controller for VerdictController {
    const NAME: &'static str = "verdicts";
    type Facts = CheckFacts;
    type Effect = Infallible;

    fn triggers(&self) -> Triggers {
        let notify = Some(Arc::clone(&self.0.check_index.stale_verdicts));
        Triggers { notify, interval: Some(SWEEP_INTERVAL), ..Triggers::default() }
    }

    /// Reads the facts. If nothing has changed, only verdicts of leaderless regions can need a write.
    async fn read_facts(&mut self, _: &Node, wake: Wake) -> Result<Self::Facts, BoxError> {
        let (mut verdicts, now) = (Vec::new(), Instant::now());
        for (region, keys) in self.0.check_index.verdicts() {
            let is_leaderless = self.0.elections.leaderless_for(&region, now) > LEADERLESS_GRACE;
            if is_leaderless || wake == Wake::Changed {
                verdicts.extend(keys.into_iter().filter_map(|key| self.0.verdict_facts(key, is_leaderless)));
            }
        }
        Ok(CheckFacts { verdicts, checkers: self.0.leaderless_checkers(now) })
    }

    fn reconcile(&mut self, facts: Self::Facts, _: Now) -> Decision<Infallible> {
        let mut writes = Vec::new();
        for facts in facts.verdicts.chunk_by(|one, next| one.region == next.region) {
            let ops: Vec<Op> = facts.iter().filter_map(VerdictFacts::op).collect();
            writes.extend(ops.chunks(MAX_OPS_PER_BATCH).map(|ops| Write {
                subject: format!("verdicts of region {}", facts[0].region),
                reason: "the endpoint is gone or not checked, or its region has no checker",
                ops: ops.to_vec(),
            }));
        }
        writes.extend(facts.checkers.iter().map(|checker| Write {
            subject: format!("checker of region {}", checker.region),
            reason: "the region has no checker",
            ops: vec![checker.op()],
        }));
        Decision { writes, ..Decision::default() }
    }

    async fn apply(&mut self, effect: Infallible) -> Result<(), BoxError> {
        match effect {}
    }
}

impl Checks {
    /// The facts about the verdict at a key; `None` if the verdict no longer exists.
    fn verdict_facts(&self, key: RecordKey, is_leaderless: bool) -> Option<VerdictFacts> {
        let RecordKey::Health(service, region, instance) = &key else { return None };
        let stored = self.stored(&key)?;
        let endpoint = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
        let is_checked = self.check_index.services().borrow().contains(service)
            && self.node.get(&endpoint.to_string()).is_some();
        Some(VerdictFacts { region: region.clone(), key, stored, is_checked, is_leaderless })
    }

    /// Number of regions with a checker.
    pub(crate) fn checkers(&self) -> usize {
        self.elections.leaders()
    }

    /// Number of agents that campaign to become checkers.
    pub(crate) fn checker_candidates(&self) -> usize {
        self.elections.candidates()
    }

    /// Computes the state from every checked service.
    pub(crate) fn check_health(&self) -> CheckHealth {
        let services = Arc::clone(&self.check_index.services().borrow());
        let hosts = match self.node.get(&RecordKey::Hosts.to_string()).map(|entry| entry.value) {
            Some(value) => match record_encoding::decode(&RecordKey::Hosts, &value) {
                Ok(Record::Hosts(hosts)) => hosts,
                _ => Hosts::default(),
            },
            None => Hosts::default(),
        };
        let (mut regions, mut panics) = (BTreeSet::new(), 0);
        for service in services.iter() {
            let (endpoints, verdicts) = self.of_service(service);
            let endpoints: Vec<&Endpoint> = endpoints.iter().collect();
            let contested = verdicts.judge_for_all(&endpoints, &hosts).contested;
            panics += contested.iter().filter(|(_, standing)| *standing == Standing::Panic).count();
            regions.extend(endpoints.iter().map(|endpoint| endpoint.location.region.clone()));
        }
        let now = Instant::now();
        let unchecked = regions.iter().filter(|region| !self.elections.leaderless_for(region, now).is_zero());
        CheckHealth { unchecked_regions: unchecked.count(), panics }
    }

    /// Number of endpoints with an unhealthy verdict, by region of the endpoint.
    pub(crate) fn unhealthy_endpoints(&self) -> Vec<(Region, usize)> {
        self.check_index.unhealthy()
    }

    fn of_service(&self, service: &ServiceName) -> (Vec<Endpoint>, Verdicts) {
        let (mut endpoints, mut verdicts) = (Vec::new(), Verdicts::default());
        let (_, entries) = self.node.read(&[Prefix::endpoints(service, None), Prefix::health(service, None)]);
        for (key, entry) in entries {
            let Ok(key) = RecordKey::parse(&key) else { continue };
            match (record_encoding::decode(&key, &entry.value), key) {
                (Ok(Record::Endpoint(endpoint)), _) => endpoints.push(endpoint),
                (Ok(Record::Verdict(verdict)), RecordKey::Health(_, region, instance)) => {
                    verdicts.put(region, instance, verdict);
                }
                _ => {}
            }
        }
        (endpoints, verdicts)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{HealthCheck, InstanceId, Policy, Probe, Region, StoreId};
    use fairmesh_rib::{Commit, Entry};
    use fairmesh_store::RedbStore;
    use fairmesh_test_support::endpoint;

    use super::*;
    use crate::health_checks::{CheckIndex, Woken};

    fn entry(key: &RecordKey, record: &Record) -> (Arc<str>, Entry) {
        (key.to_string().into(), Entry { value: record_encoding::encode(record), revision: 1 })
    }

    /// Records: a checked endpoint `a`, and unhealthy verdicts on it and on the missing endpoint `gone`.
    fn entries(health_check: Option<HealthCheck>) -> Vec<(Arc<str>, Entry)> {
        let service = ServiceName::new("shop/one").unwrap();
        let eu = Region::new("eu").unwrap();
        let [a, gone] = ["a", "gone"].map(|id| InstanceId::new(id).unwrap());
        let endpoint = endpoint("a", "eu");
        let verdict = Record::Verdict(Verdict {
            healthy: false,
            since_ms: 7,
            confidence: 750,
            cause: "x".into(),
            stale: false,
        });
        let policy = Policy { health_check, ..Policy::default() };
        let health = |instance| RecordKey::Health(service.clone(), eu.clone(), instance);
        vec![
            entry(&RecordKey::Policy(service.clone()), &policy.into()),
            entry(&RecordKey::Endpoint(service.clone(), eu.clone(), a.clone()), &endpoint.into()),
            entry(&health(a), &verdict),
            entry(&health(gone), &verdict),
        ]
    }

    /// The planned changes, by the last part of the key. `None` deletes the record.
    fn planned_writes(health_check: Option<HealthCheck>, leaderless: bool) -> Vec<(String, Option<Record>)> {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(RedbStore::open(folder.path().join("rib.redb")).unwrap());
        let entries = entries(health_check);
        let check_index = Arc::new(CheckIndex::default());
        check_index.load(&entries);
        let checks = Checks::new(Node::load(StoreId(1), 1, entries), store, check_index.clone());
        let keys = check_index.verdicts().into_values().flatten();
        let facts = keys.filter_map(|key| checks.verdict_facts(key, leaderless));
        let ops = facts.filter_map(|facts| Some((facts.op()?, facts.key)));
        let written = ops.map(|(op, key)| {
            let name = op.key.rsplit('/').next().unwrap_or_default().to_owned();
            (name, op.value.map(|value| record_encoding::decode(&key, &value).unwrap()))
        });
        written.collect()
    }

    #[test]
    fn health_verdict_written_after_endpoint_removal_triggers_cleanup() {
        let entries = entries(None);
        let commit = |at: usize, gone: bool| {
            let (key, entry) = entries[at].clone();
            Commit { revision: 2, changes: vec![(key, (!gone).then_some(entry.value))] }
        };
        let node = Node::load(StoreId(1), 1, entries[..2].to_vec());
        let check_index = CheckIndex::default();
        let stale = |woken: Woken| woken.stale_verdicts;
        assert!(!stale(check_index.apply(&commit(2, false), &node)), "its endpoint exists");
        assert!(stale(check_index.apply(&commit(3, false), &node)), "it has no endpoint");
        assert!(!stale(check_index.apply(&commit(3, true), &node)), "it was deleted");
    }

    #[test]
    fn health_verdicts_of_removed_endpoints_are_deleted_or_marked_stale() {
        let check = || Some(HealthCheck::new(Probe::Tcp));
        assert_eq!(planned_writes(check(), false), [("gone".into(), None)]);
        let leaderless = planned_writes(check(), true);
        let Some((name, Some(Record::Verdict(verdict)))) = leaderless.first() else {
            panic!("{leaderless:?}")
        };
        assert_eq!((name.as_str(), verdict.stale, verdict.since_ms), ("a", true, 7));
        assert_eq!(
            planned_writes(None, false),
            [("a".into(), None), ("gone".into(), None)],
            "no longer checked"
        );
    }
}
