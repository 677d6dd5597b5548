use fairmesh_model::{Record, RecordKey, Region, Verdict};
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_store::WriteError;
use fairmesh_wire::record_encoding;
use tonic::Status;

use super::{Checks, service::Finding};
use crate::store_error::write_error;

/// Maximum number of attempts at a write whose records conflict.
const MAX_ATTEMPTS: usize = 8;

/// A verdict as stored in the RIB.
#[derive(Debug)]
pub(super) struct StoredVerdict {
    pub(super) verdict: Verdict,
    pub(super) revision: u64,
}

impl Checks {
    /// Writes the findings that change a stored verdict.
    pub(super) async fn judge(&self, region: &Region, findings: &[Finding]) -> Result<(), Status> {
        self.write(|| findings.iter().filter_map(|finding| self.write_op(region, finding)).collect()).await
    }

    /// The operation for a finding. `None` if the endpoint was removed, or the stored verdict has the same
    /// effect.
    fn write_op(&self, region: &Region, Finding { service, instance, verdict }: &Finding) -> Option<Op> {
        let endpoint = RecordKey::Endpoint(service.clone(), region.clone(), instance.clone());
        self.node.get(&endpoint.to_string())?;
        let key = RecordKey::Health(service.clone(), region.clone(), instance.clone());
        let stored = self.stored(&key);
        let mut verdict = verdict.clone();
        if let Some(StoredVerdict { verdict: before, .. }) =
            stored.as_ref().filter(|stored| stored.verdict.healthy == verdict.healthy)
        {
            // Not skipped if stale: a newly elected checker confirms the verdicts of its predecessor.
            if !before.stale && before.effect() >= verdict.effect() {
                return None;
            }
            verdict.since_ms = before.since_ms;
        }
        Some(put(&key, stored.as_ref(), verdict))
    }

    pub(super) fn stored(&self, key: &RecordKey) -> Option<StoredVerdict> {
        let entry = self.node.get(&key.to_string())?;
        match record_encoding::decode(key, &entry.value) {
            Ok(Record::Verdict(verdict)) => Some(StoredVerdict { verdict, revision: entry.revision }),
            _ => None,
        }
    }

    /// Writes the operations that `plan` derives from the current records. Plans again after a conflict.
    pub(super) async fn write(&self, plan: impl Fn() -> Vec<Op> + Send + Sync) -> Result<(), Status> {
        let mut attempts = 1;
        loop {
            let ops = plan();
            if ops.is_empty() {
                return Ok(());
            }
            match self.store.write(Batch { ops }).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Conflict(conflict)) if attempts < MAX_ATTEMPTS => {
                    self.node.wait_applied(conflict.current).await;
                }
                Err(error) => return Err(write_error(error).into()),
            }
            attempts += 1;
        }
    }
}

/// The operation that writes a verdict, conditional on the stored one being unchanged.
pub(super) fn put(key: &RecordKey, stored: Option<&StoredVerdict>, verdict: Verdict) -> Op {
    let expect = stored.map_or(Expect::Absent, |stored| Expect::Revision(stored.revision));
    Op::put(key.to_string(), record_encoding::encode(&Record::Verdict(verdict))).expecting(expect)
}
