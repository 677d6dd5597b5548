use std::sync::{Arc, Mutex, PoisonError};

use fairmesh_identity::{Clock as _, RevocationList, SystemClock, Trust, call_statement};
use fairmesh_model::{RecordKey, SpiffeId};
use fairmesh_rib::Node;
use fairmesh_wire::{LogLimiter, transport::StatedCall};
use tonic::Status;

use crate::identity::recorded_bundle;

static REFUSED: LogLimiter = LogLimiter::new();

/// Verifies signed calls with the recorded roots.
#[derive(Debug)]
pub(super) struct RecordedTrust {
    node: Node,
    revocations: RevocationList,
    /// The roots, with the revision of their record.
    cached: Mutex<Option<(u64, Arc<Trust>)>>,
}

impl RecordedTrust {
    pub(super) fn new(node: Node, revocations: RevocationList) -> Self {
        Self { node, revocations, cached: Mutex::default() }
    }

    /// The identity that signed the statement about a call.
    ///
    /// # Errors
    /// The statement is invalid, or belongs to another call.
    pub(super) fn signer(&self, signed: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, Status> {
        let trust = self.trust()?;
        call_statement::verify(&trust, signed, call, SystemClock.now()).map_err(|refused| {
            if let Some(left_out) = REFUSED.next() {
                tracing::warn!(%refused, path = call.path, left_out, "a signed call was refused");
            }
            Status::unauthenticated(refused.to_string())
        })
    }

    fn trust(&self) -> Result<Arc<Trust>, Status> {
        let unknown = || Status::unavailable("the roots of the trust domain are not recorded yet; retry");
        let revision = self
            .node
            .get(&RecordKey::TrustBundle.to_string())
            .map(|entry| entry.revision)
            .ok_or_else(unknown)?;
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, trust)) = cached.as_ref().filter(|(known, _)| *known == revision) {
            return Ok(Arc::clone(trust));
        }
        let bundle = recorded_bundle(&self.node).ok_or_else(unknown)?;
        let trust = Trust::new(bundle).map_err(|error| Status::internal(error.to_string()))?;
        let trust = Arc::new(trust.with_revocations(self.revocations.clone()));
        *cached = Some((revision, Arc::clone(&trust)));
        Ok(trust)
    }
}
