//! Applies revocations, by which this control plane refuses callers.

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::Duration,
};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake};
use fairmesh_identity::REPAIR_REVOCATIONS;
use fairmesh_model::{Invalid, Prefix, Record, RecordKey, Revocations};
use fairmesh_rib::{Entry, Node};
use fairmesh_wire::record_encoding;

use super::CertificateIssuer;

/// Interval at which the record is compared with the revocations in force. The record is also compared after each
/// change.
const INTERVAL: Duration = Duration::from_secs(60);

/// The recorded revocations; empty without a record.
fn read(entry: Option<&Entry>) -> Result<Revocations, Invalid> {
    let Some(entry) = entry else { return Ok(Revocations::default()) };
    match record_encoding::decode(&RecordKey::Revocations, &entry.value)? {
        Record::Revocations(revocations) => Ok(revocations),
        _ => Ok(Revocations::default()),
    }
}

impl CertificateIssuer {
    /// Applies the record of revocations. If the record cannot be read, the earlier revocations stay in
    /// force; without earlier ones, callers with identities of services are refused.
    pub(super) fn apply_revocations(&self, node: &Node) {
        // Locked from the comparison on, so that no older record replaces a newer one, and no caller proceeds
        // before the record is applied.
        let mut applied = self.revoked_at.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = node.get(&RecordKey::Revocations.to_string());
        let revision = entry.as_ref().map(|entry| entry.revision);
        if revision == *applied {
            return;
        }
        *applied = revision;
        match read(entry.as_ref()) {
            Ok(revocations) => self.workload.revoke(revocations),
            Err(_) => _ = self.workload.revocations_unreadable(),
        }
    }
}

/// Applies revocations as soon as they are written. Revoked callers are then refused, and their connections closed.
#[derive(Clone, Debug)]
pub(crate) struct RevocationController {
    pub(super) issuer: Arc<CertificateIssuer>,
    pub(super) node: Node,
}

/// The record of revocations, compared with the revocations in force.
#[derive(Debug)]
pub(crate) struct RevocationFacts {
    revision: Option<u64>,
    in_force: Option<u64>,
    /// Reason why the record cannot be read.
    problem: Option<String>,
}

/// Effect: apply the record of revocations.
#[derive(Debug)]
pub(crate) struct PutInForce {
    revision: Option<u64>,
}

impl fmt::Display for PutInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision {
            Some(revision) => write!(f, "put the revocations of revision {revision} in force"),
            None => f.write_str("lift all revocations, since there is no record of them"),
        }
    }
}

impl Controller for RevocationController {
    const NAME: &'static str = "revocations";
    type Facts = RevocationFacts;
    type Effect = PutInForce;

    fn triggers(&self) -> Triggers {
        let prefixes = vec![Prefix::from(&RecordKey::Revocations)];
        Triggers { prefixes, interval: Some(INTERVAL), ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<RevocationFacts, BoxError> {
        let entry = node.get(&RecordKey::Revocations.to_string());
        let in_force = *self.issuer.revoked_at.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(RevocationFacts {
            revision: entry.as_ref().map(|entry| entry.revision),
            in_force,
            problem: read(entry.as_ref()).err().map(|error| error.to_string()),
        })
    }

    fn reconcile(&mut self, facts: RevocationFacts, _: Now) -> Decision<PutInForce> {
        decide(facts)
    }

    async fn apply(&mut self, _: PutInForce) -> Result<(), BoxError> {
        self.issuer.apply_revocations(&self.node);
        Ok(())
    }
}

fn decide(RevocationFacts { revision, in_force, problem }: RevocationFacts) -> Decision<PutInForce> {
    let refused = problem.map(|problem| Refusal {
        subject: RecordKey::Revocations.to_string(),
        reason: format!(
            "it is not understood: the last revocations stay in force, and a process that has read none refuses \
             services; upgrade this process, or replace the record {REPAIR_REVOCATIONS}: {problem}"
        ),
    });
    let has_changed = refused.is_none() && revision != in_force;
    Decision {
        effects: has_changed.then_some(PutInForce { revision }).into_iter().collect(),
        refused: refused.into_iter().collect(),
        ..Decision::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(revision: Option<u64>, in_force: Option<u64>, problem: Option<&str>) -> RevocationFacts {
        RevocationFacts { revision, in_force, problem: problem.map(str::to_owned) }
    }

    fn decide(facts: RevocationFacts) -> (Vec<String>, Vec<String>) {
        // The decision depends only on the facts.
        let decision = super::decide(facts);
        let effects = decision.effects.iter().map(ToString::to_string).collect();
        (effects, decision.refused.into_iter().map(|refusal| refusal.reason).collect())
    }

    #[test]
    fn changed_revocations_are_applied_unless_unreadable() {
        assert_eq!(decide(facts(None, None, None)), (vec![], vec![]));
        assert_eq!(decide(facts(Some(7), Some(7), None)), (vec![], vec![]));
        let (effects, _) = decide(facts(Some(8), Some(7), None));
        assert_eq!(effects, ["put the revocations of revision 8 in force"]);
        let (effects, _) = decide(facts(None, Some(7), None));
        assert_eq!(effects, ["lift all revocations, since there is no record of them"]);
        for in_force in [Some(7), Some(8)] {
            let (effects, refused) = decide(facts(Some(8), in_force, Some("it is malformed")));
            assert!(
                effects.is_empty() && refused[0].ends_with("it is malformed"),
                "{effects:?}, {refused:?}"
            );
            assert!(refused[0].contains("identity revoke ID --replace-unreadable"), "{refused:?}");
        }
    }
}
