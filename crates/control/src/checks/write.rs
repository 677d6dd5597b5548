use fairmesh_model::{Record, RecordKey, Region, Verdict};
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_store::WriteError;
use fairmesh_wire::records;
use tonic::Status;

use super::{Checks, service::Finding};
use crate::backend::write_error;

/// How often a write is retried after a conflict on one of its records.
const TRIES: usize = 8;

/// A verdict as it stands in the RIB.
pub(super) struct Held {
    pub(super) verdict: Verdict,
    pub(super) revision: u64,
}

impl Checks {
    /// Writes the findings that change a verdict.
    pub(super) async fn judge(&self, region: &Region, findings: &[Finding]) -> Result<(), Status> {
        self.write(|| findings.iter().filter_map(|finding| self.new_in(region, finding)).collect()).await
    }

    /// The write that a finding asks for: none on an endpoint that is gone, nor where the RIB says as much already.
    fn new_in(&self, region: &Region, Finding { service, instance, verdict }: &Finding) -> Option<Op> {
        let endpoint = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
        self.node.get(&endpoint.to_string())?;
        let key = RecordKey::Health(service.clone(), region.clone(), instance.clone());
        let held = self.held(&key);
        let mut verdict = verdict.clone();
        if let Some(Held { verdict: before, .. }) =
            held.as_ref().filter(|held| held.verdict.healthy == verdict.healthy)
        {
            // A newly elected checker confirms the verdicts of the one before.
            if !before.stale && before.effect() >= verdict.effect() {
                return None;
            }
            verdict.since_ms = before.since_ms;
        }
        Some(put(&key, held.as_ref(), verdict))
    }

    pub(super) fn held(&self, key: &RecordKey) -> Option<Held> {
        let entry = self.node.get(&key.to_string())?;
        match records::decode(key, &entry.value) {
            Ok(Record::Verdict(verdict)) => Some(Held { verdict, revision: entry.revision }),
            _ => None,
        }
    }

    /// Writes the changes that `plan` makes of the current records, and plans again after a conflict.
    pub(super) async fn write(&self, plan: impl Fn() -> Vec<Op> + Send + Sync) -> Result<(), Status> {
        let mut tries = 1;
        loop {
            let ops = plan();
            if ops.is_empty() {
                return Ok(());
            }
            match self.store.write(Batch { ops }).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Conflict(conflict)) if tries < TRIES => {
                    self.node.applied(conflict.current).await;
                }
                Err(error) => return Err(write_error(error).into()),
            }
            tries += 1;
        }
    }
}

/// Writes a verdict if the one that it replaces is unchanged.
pub(super) fn put(key: &RecordKey, held: Option<&Held>, verdict: Verdict) -> Op {
    let expect = held.map_or(Expect::Absent, |held| Expect::Revision(held.revision));
    Op::put(key.to_string(), records::encode(&Record::Verdict(verdict))).expecting(expect)
}
