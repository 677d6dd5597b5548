use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{
    Endpoint, Hosts, Prefix, Record, RecordKey, Region, ServiceName, Standing, Verdict, Verdicts,
};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::records;
use tokio::time::Instant;

use super::{Checks, write};

/// Time without a checker after which a region's verdicts become stale.
const LEADERLESS_GRACE: Duration = Duration::from_secs(60);
/// Interval between sweeps for leaderless regions.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum of records changed by one batch.
const MAX_OPS_PER_BATCH: usize = 1000;

/// State of health checking in the fleet.
pub(crate) struct CheckHealth {
    /// Regions with endpoints to check and no checker.
    pub(crate) unchecked_regions: usize,
    /// Pairs of service and region whose verdicts callers ignore, since no other region can carry the calls (panic).
    pub(crate) panics: usize,
}

impl Checks {
    /// Deletes verdicts on removed or unchecked endpoints, and marks those of leaderless regions as stale, forever.
    pub(crate) async fn clean_up_verdicts(&self) {
        let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let gone = tokio::select! {
                () = self.check_index.stale_verdicts.notified() => true,
                _ = ticks.tick() => false,
            };
            for (region, keys) in self.check_index.verdicts() {
                let leaderless = self.elections.leaderless_for(&region, Instant::now()) > LEADERLESS_GRACE;
                if !gone && !leaderless {
                    continue;
                }
                let keys: Vec<RecordKey> = keys.into_iter().collect();
                for keys in keys.chunks(MAX_OPS_PER_BATCH) {
                    let plan = || keys.iter().filter_map(|key| self.cleanup_op(key, leaderless)).collect();
                    if let Err(error) = self.write(plan).await {
                        tracing::warn!(%region, %error, "cannot write verdicts; retrying");
                    }
                }
            }
        }
    }

    /// The change that one verdict needs, if any.
    fn cleanup_op(&self, key: &RecordKey, leaderless: bool) -> Option<Op> {
        let RecordKey::Health(service, region, instance) = key else { return None };
        let stored = self.stored(key)?;
        let endpoint = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
        let checked = self.check_index.services().borrow().contains(service);
        if !checked || self.node.get(&endpoint.to_string()).is_none() {
            return Some(Op::delete(key.to_string()).expecting(Expect::Revision(stored.revision)));
        }
        // A healthy verdict has no force to lose.
        let loses = leaderless && !stored.verdict.healthy && !stored.verdict.stale;
        loses.then(|| write::put(key, Some(&stored), Verdict { stale: true, ..stored.verdict.clone() }))
    }

    /// Number of regions with a checker.
    pub(crate) fn checkers(&self) -> usize {
        self.elections.leaders()
    }

    /// Number of agents that stand for election as checkers.
    pub(crate) fn checker_candidates(&self) -> usize {
        self.elections.candidates()
    }

    /// Examines every checked service.
    pub(crate) fn check_health(&self) -> CheckHealth {
        let services = Arc::clone(&self.check_index.services().borrow());
        let hosts = match self.node.get(&RecordKey::Hosts.to_string()).map(|entry| entry.value) {
            Some(value) => match records::decode(&RecordKey::Hosts, &value) {
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

    /// Number of endpoints that health checks find unhealthy, by region of the endpoint.
    pub(crate) fn unhealthy_endpoints(&self) -> Vec<(Region, usize)> {
        self.check_index.unhealthy()
    }

    fn of_service(&self, service: &ServiceName) -> (Vec<Endpoint>, Verdicts) {
        let (mut endpoints, mut verdicts) = (Vec::new(), Verdicts::default());
        let (_, entries) = self.node.read(&[Prefix::endpoints(service, None), Prefix::health(service, None)]);
        for (key, entry) in entries {
            let Ok(key) = RecordKey::parse(&key) else { continue };
            match (records::decode(&key, &entry.value), key) {
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
    use fairmesh_rib::{Commit, Entry, Node};
    use fairmesh_store::RedbStore;
    use fairmesh_test_support::endpoint;

    use super::*;
    use crate::health_checks::{CheckIndex, Woken};

    fn entry(key: &RecordKey, record: &Record) -> (Arc<str>, Entry) {
        (key.to_string().into(), Entry { value: records::encode(record), revision: 1 })
    }

    /// A checked endpoint `a`, and unhealthy verdicts on it and on `gone`.
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

    /// The planned changes, by the last part of the key: `None` deletes.
    fn cleanup_op(health_check: Option<HealthCheck>, leaderless: bool) -> Vec<(String, Option<Record>)> {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(RedbStore::open(folder.path().join("rib.redb")).unwrap());
        let entries = entries(health_check);
        let check_index = Arc::new(CheckIndex::default());
        check_index.load(&entries);
        let checks = Checks::new(Node::load(StoreId(1), 1, entries), store, check_index.clone());
        let keys = check_index.verdicts().into_values().flatten();
        let ops = keys.filter_map(|key| Some((checks.cleanup_op(&key, leaderless)?, key)));
        let written = ops.map(|(op, key)| {
            let name = op.key.rsplit('/').next().unwrap_or_default().to_owned();
            (name, op.value.map(|value| records::decode(&key, &value).unwrap()))
        });
        written.collect()
    }

    #[test]
    fn a_verdict_written_after_its_endpoint_was_removed_triggers_cleanup() {
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
    fn verdicts_on_removed_endpoints_are_deleted_and_those_without_a_checker_become_stale() {
        let check = || Some(HealthCheck::new(Probe::Tcp));
        assert_eq!(cleanup_op(check(), false), [("gone".into(), None)]);
        let leaderless = cleanup_op(check(), true);
        let Some((name, Some(Record::Verdict(verdict)))) = leaderless.first() else {
            panic!("{leaderless:?}")
        };
        assert_eq!((name.as_str(), verdict.stale, verdict.since_ms), ("a", true, 7));
        assert_eq!(cleanup_op(None, false), [("a".into(), None), ("gone".into(), None)], "no longer checked");
    }
}
