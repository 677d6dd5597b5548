//! Records of elected checkers. Servers use them to tell a checker's probes from requests of other agents.

use fairmesh_model::{ElectedChecker, Label, Prefix, RecordKey, Region};
use fairmesh_rib::{Expect, Op};
use fairmesh_wire::{LogLimiter, record_encoding};
use tokio::time::{Duration, Instant};
use tonic::Status;

use super::{Checks, LEADERLESS_GRACE, election::MAX_REGIONS};
use crate::wall_clock::now_ms;

/// Pause before a failed write of a checker's record is repeated.
const RETRY: Duration = Duration::from_secs(1);

static NOT_RECORDED: LogLimiter = LogLimiter::new();

/// Checker record of a region that has been without a checker for too long.
#[derive(Debug)]
pub(super) struct LeaderlessChecker {
    pub(super) region: Region,
    revision: u64,
}

impl LeaderlessChecker {
    /// The operation that deletes the record, unless another checker is elected meanwhile.
    pub(super) fn op(&self) -> Op {
        let key = RecordKey::Checker(self.region.clone()).to_string();
        Op::delete(key).expecting(Expect::Revision(self.revision))
    }
}

impl Checks {
    /// Whether agents have certificates. Servers recognise checkers by them.
    pub(super) fn has_trust_domain(&self) -> bool {
        self.node.get(&RecordKey::TrustBundle.to_string()).is_some()
    }

    /// Records the elected checker of a region. This happens before the agent learns of its election, since servers
    /// would otherwise refuse its first probes. Without a trust domain, agents have no identity to record.
    pub(super) async fn record_checker(&self, region: &Region, agent: Option<&Label>) {
        let Some(agent) = agent else { return };
        while let Err(status) = self.write_checker(region, agent).await {
            if let Some(suppressed) = NOT_RECORDED.next() {
                tracing::warn!(%region, checker = %agent, %status, suppressed, "elected checker could not be recorded; retrying");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Writes the record of a checker. Every election writes, so that a deletion planned before the election
    /// fails.
    async fn write_checker(&self, region: &Region, agent: &Label) -> Result<(), Status> {
        let key = RecordKey::Checker(region.clone()).to_string();
        let checker = ElectedChecker { agent: agent.clone(), elected_at_ms: now_ms() };
        let value = record_encoding::encode(&checker.into());
        if self.node.get(&key).is_none() && self.node.read(&[Prefix::checkers()]).1.len() >= MAX_REGIONS {
            return Err(Status::resource_exhausted(format!("{MAX_REGIONS} regions have a recorded checker")));
        }
        let plan = || {
            let stored = self.node.get(&key).map(|entry| entry.revision);
            let expect = stored.map_or(Expect::Absent, Expect::Revision);
            vec![Op::put(key.clone(), value.clone()).expecting(expect)]
        };
        self.write(plan).await
    }

    /// The checker records of regions that have been without a checker for too long.
    pub(super) fn leaderless_checkers(&self, now: Instant) -> Vec<LeaderlessChecker> {
        let (_, entries) = self.node.read(&[Prefix::checkers()]);
        let leaderless = entries.iter().filter_map(|(key, entry)| match RecordKey::parse(key) {
            Ok(RecordKey::Checker(region)) => Some(LeaderlessChecker { region, revision: entry.revision }),
            _ => None,
        });
        leaderless.filter(|one| self.elections.leaderless_for(&one.region, now) > LEADERLESS_GRACE).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairmesh_model::StoreId;
    use fairmesh_rib::{Entry, Node};
    use fairmesh_store::RedbStore;

    use super::*;
    use crate::health_checks::CheckIndex;

    #[tokio::test(start_paused = true)]
    async fn health_checker_record_is_deleted_after_grace_without_leader() {
        let [eu, us] = ["eu", "us"].map(|name| Region::new(name).unwrap());
        let checker = ElectedChecker { agent: Label::new("web-1").unwrap(), elected_at_ms: 1 };
        let value = record_encoding::encode(&checker.into());
        let entry = |region: &Region| {
            let key = RecordKey::Checker(region.clone()).to_string();
            (key.into(), Entry { value: value.clone(), revision: 1 })
        };
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(RedbStore::open(folder.path().join("rib.redb")).unwrap());
        let node = Node::load(StoreId(1), 1, vec![entry(&eu), entry(&us)]);
        let checks = Checks::new(node, store, Arc::new(CheckIndex::default()));
        let _leader = checks.elections.clone().campaign(eu).await;
        tokio::time::advance(LEADERLESS_GRACE).await;
        assert!(checks.leaderless_checkers(Instant::now()).is_empty());
        tokio::time::advance(Duration::from_secs(1)).await;
        let leaderless = checks.leaderless_checkers(Instant::now());
        assert_eq!(leaderless.iter().map(|one| &one.region).collect::<Vec<_>>(), [&us]);
        assert_eq!(leaderless[0].op().expect, Expect::Revision(1));
    }
}
