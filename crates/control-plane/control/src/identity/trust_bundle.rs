//! The recorded roots of the mesh.

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
use fairmesh_model::{Prefix, Record, RecordKey, TrustBundle};
use fairmesh_rib::{Batch, Expect, Node, Op};
use fairmesh_store::Store;
use fairmesh_wire::record_encoding;
use tokio::time::Instant;
use tonic::Status;

use super::CertificateIssuer;
use crate::store_error::write_error;

/// Interval at which the intermediate is checked and this control plane's certificate is renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);

/// The trust bundle in the records.
pub(crate) fn recorded_bundle(node: &Node) -> Option<TrustBundle> {
    RecordedBundle::read(node).ok()?.bundle
}

/// The recorded trust bundle, with the condition for replacing it.
pub(crate) struct RecordedBundle {
    pub(super) bundle: Option<TrustBundle>,
    /// State of the record when it was read.
    expect: Expect,
}

impl RecordedBundle {
    /// Reads the record. Fails if a newer release wrote it.
    pub(super) fn read(node: &Node) -> Result<Self, Status> {
        let Some(entry) = node.get(&RecordKey::TrustBundle.to_string()) else {
            return Ok(Self { bundle: None, expect: Expect::Absent });
        };
        match record_encoding::decode(&RecordKey::TrustBundle, &entry.value) {
            Ok(Record::TrustBundle(bundle)) => {
                Ok(Self { bundle: Some(bundle), expect: Expect::Revision(entry.revision) })
            }
            Ok(_) => Err(Status::internal("the record of the trust bundle is another one")),
            Err(error) => Err(Status::internal(format!("the trust bundle is not understood: {error}"))),
        }
    }

    /// Replaces the record. Fails if it has changed since it was read.
    pub(super) async fn replace(&self, bundle: TrustBundle, store: &dyn Store) -> Result<(), Status> {
        store.write(Batch { ops: vec![self.op(bundle)] }).await.map_err(write_error)?;
        Ok(())
    }

    /// The write that replaces the record, unless it has changed since.
    fn op(&self, bundle: TrustBundle) -> Op {
        let value = record_encoding::encode(&Record::TrustBundle(bundle));
        Op::put(RecordKey::TrustBundle.to_string(), value).expecting(self.expect)
    }
}

impl CertificateIssuer {
    /// Records the given roots that are not yet recorded.
    pub(crate) async fn publish(&self, node: &Node, store: &dyn Store) -> Result<(), Status> {
        let recorded = RecordedBundle::read(node)?;
        let bundle = self.authority.complete(recorded.bundle.clone(), self.clock.now());
        if recorded.bundle.as_ref() == Some(&bundle) {
            return Ok(());
        }
        recorded.replace(bundle, store).await?;
        tracing::info!("the roots of this control plane are recorded");
        Ok(())
    }
}

/// Records this control plane's roots, and renews its certificates in time.
#[derive(Clone, Debug)]
pub(crate) struct TrustBundleController {
    issuer: Arc<CertificateIssuer>,
    node: Node,
    /// Times of the next renewals of the intermediate and of the control plane's own certificates; `None` before the
    /// first round. A failed renewal stays due.
    due: Option<[Instant; 2]>,
    /// Times at which the certificates renewed in this round are due again.
    next: Option<Instant>,
}

impl TrustBundleController {
    pub(super) fn new(issuer: Arc<CertificateIssuer>, node: Node) -> Self {
        Self { issuer, node, due: None, next: None }
    }
}

/// Effect: renew a certificate.
#[derive(Debug)]
pub(crate) enum Renewal {
    /// The intermediate, if it expires soon.
    Intermediate,
    /// The certificates of this process.
    Own,
}

impl fmt::Display for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Intermediate => "renew the intermediate if it expires soon",
            Self::Own => "renew the certificates of this control plane",
        })
    }
}

impl Controller for TrustBundleController {
    const NAME: &'static str = "trust-bundle";
    /// The recorded bundle, and the same bundle completed by all roots of this control plane; or why the record
    /// cannot be read.
    type Facts = Result<(RecordedBundle, TrustBundle), Status>;
    type Effect = Renewal;

    fn triggers(&self) -> Triggers {
        Triggers {
            prefixes: vec![Prefix::from(&RecordKey::TrustBundle)],
            notify: Some(Arc::clone(&self.issuer.roots_changed)),
            interval: Some(RENEWAL_INTERVAL),
            ..Triggers::default()
        }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<Self::Facts, BoxError> {
        Ok(RecordedBundle::read(node).map(|recorded| {
            let complete = self.issuer.authority.complete(recorded.bundle.clone(), self.issuer.clock.now());
            (recorded, complete)
        }))
    }

    fn reconcile(&mut self, facts: Self::Facts, now: Now) -> Decision<Renewal> {
        let mut decision = Decision::default();
        // Slightly earlier than the interval, which counts from the start of a round.
        let next = now.at + RENEWAL_INTERVAL - RENEWAL_INTERVAL / 60;
        self.next = Some(next);
        let due = self.due.get_or_insert([next; 2]);
        let renewals = [Renewal::Intermediate, Renewal::Own].into_iter().zip(due);
        decision.effects = renewals.filter(|(_, due)| **due <= now.at).map(|(renewal, _)| renewal).collect();
        let subject = RecordKey::TrustBundle.to_string();
        match facts {
            Ok((recorded, complete)) if recorded.bundle.as_ref() != Some(&complete) => {
                let reason = "the authority of this control plane has other keys";
                decision.writes.push(Write { subject, reason, ops: vec![recorded.op(complete)] });
            }
            Ok(_) => {}
            Err(status) => {
                decision.refused.push(Refusal { subject, reason: status.message().to_owned() });
            }
        }
        decision
    }

    async fn apply(&mut self, effect: Renewal) -> Result<(), BoxError> {
        let renewed = match effect {
            Renewal::Intermediate => {
                self.issuer.authority.renew_issuer_if_due(self.issuer.clock.now())?;
                0
            }
            Renewal::Own => {
                self.issuer.renew_own(&self.node)?;
                1
            }
        };
        if let (Some(due), Some(next)) = (&mut self.due, self.next) {
            due[renewed] = next;
        }
        Ok(())
    }

    fn written(&mut self, _: &str) {
        tracing::info!("the roots of this control plane are recorded");
    }
}
