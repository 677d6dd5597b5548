//! Follows the file with this control plane's intermediate, and renews its certificates accordingly.

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake};
use fairmesh_identity::{IdentityError, Reread};
use fairmesh_rib::Node;

use super::CertificateIssuer;

/// Interval at which the file is compared with the intermediate in use. File system notifications were
/// rejected: files of mounted secrets are replaced in ways that they miss.
const INTERVAL: Duration = Duration::from_secs(5);
/// The file, relative to the data directory.
const FILE: &str = "ca/issuer.key";

/// Uses an intermediate that an authority elsewhere issued, once it is in this control plane's file. Also makes the
/// control plane trust the recorded roots, and replaces certificates that are not valid yet after the clock was set
/// back.
#[derive(Clone, Debug)]
pub(crate) struct IssuerFileController {
    issuer: Arc<CertificateIssuer>,
    node: Node,
    /// Why the current content of the file is not used. Each content is tried only once.
    unused: Option<String>,
}

impl IssuerFileController {
    pub(super) fn new(issuer: Arc<CertificateIssuer>, node: Node) -> Self {
        Self { issuer, node, unused: None }
    }

    fn use_file(&mut self) -> Result<(), BoxError> {
        self.unused = None;
        let now = self.issuer.clock.now();
        match self.issuer.authority.reread_issuer(now) {
            Ok(Reread::Unchanged) => Ok(()),
            Ok(Reread::Replaced) => {
                tracing::info!("certificates are issued by the new intermediate in {FILE}");
                Ok(self.issuer.renew_own(&self.node).map(drop)?)
            }
            Err(error) => {
                let problem = not_used(&error);
                self.unused = Some(problem.clone());
                Err(problem.into())
            }
        }
    }
}

fn not_used(error: &IdentityError) -> String {
    format!("{FILE} is not used; the intermediate before stays in use: {error}")
}

/// The differences between the certificates in use and the file and records.
#[derive(Debug)]
pub(crate) struct IssuerFileFacts {
    /// Whether the file has content that was not yet tried; or why the file cannot be read.
    has_other_issuer: Result<bool, IdentityError>,
    has_other_roots: bool,
    /// Whether there are certificates that are not valid yet.
    is_ahead: bool,
}

/// A change to the certificates of this control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssuerFileEffect {
    /// Use the intermediate in the file.
    UseFile,
    /// Renew this control plane's certificate, with the recorded roots.
    TrustRoots,
    /// Replace certificates that are not valid yet.
    ReplaceFuture,
}

impl fmt::Display for IssuerFileEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UseFile => "use the intermediate in the file",
            Self::TrustRoots => "trust the roots of the records",
            Self::ReplaceFuture => "replace certificates that are not valid yet",
        })
    }
}

impl Controller for IssuerFileController {
    const NAME: &'static str = "issuer-file";
    const LONGEST_PAUSE: Duration = INTERVAL;
    type Facts = IssuerFileFacts;
    type Effect = IssuerFileEffect;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(INTERVAL), ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<IssuerFileFacts, BoxError> {
        Ok(IssuerFileFacts {
            has_other_issuer: self.issuer.authority.has_other_issuer(),
            has_other_roots: self.issuer.trusts_other_roots(node),
            is_ahead: self.issuer.is_ahead(node),
        })
    }

    fn reconcile(&mut self, facts: IssuerFileFacts, _: Now) -> Decision<IssuerFileEffect> {
        decide(facts, self.unused.clone())
    }

    async fn apply(&mut self, effect: IssuerFileEffect) -> Result<(), BoxError> {
        match effect {
            IssuerFileEffect::UseFile => self.use_file(),
            IssuerFileEffect::TrustRoots => Ok(self.issuer.renew_own(&self.node).map(drop)?),
            IssuerFileEffect::ReplaceFuture => {
                let replaced = self.issuer.replace_future(&self.node);
                if replaced.map_err(|error| format!("{error}; check the clock"))? {
                    self.issuer.roots_changed.notify_one();
                }
                Ok(())
            }
        }
    }
}

/// Decides on the changes. `unused` is the reason why the content that was tried last is not used.
fn decide(facts: IssuerFileFacts, unused: Option<String>) -> Decision<IssuerFileEffect> {
    let IssuerFileFacts { has_other_issuer, has_other_roots, is_ahead } = facts;
    let (has_other_issuer, unreadable) = match has_other_issuer {
        Ok(has_other_issuer) => (has_other_issuer, None),
        Err(error) => (false, Some(not_used(&error))),
    };
    let refused = unreadable.or(unused).filter(|_| !has_other_issuer);
    let effects = [
        (has_other_issuer, IssuerFileEffect::UseFile),
        (has_other_roots, IssuerFileEffect::TrustRoots),
        (is_ahead, IssuerFileEffect::ReplaceFuture),
    ];
    Decision {
        effects: effects.into_iter().filter(|(is_due, _)| *is_due).map(|(_, effect)| effect).collect(),
        refused: refused.map(|reason| Refusal { subject: FILE.to_owned(), reason }).into_iter().collect(),
        ..Decision::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(has_other_issuer: bool) -> IssuerFileFacts {
        IssuerFileFacts { has_other_issuer: Ok(has_other_issuer), has_other_roots: false, is_ahead: false }
    }

    #[test]
    fn unusable_issuer_file_stays_refused_until_content_changes() {
        let refused = |facts, unused: Option<&str>| {
            let decision = decide(facts, unused.map(str::to_owned));
            (decision.effects, decision.refused.into_iter().map(|refusal| refusal.reason).collect::<Vec<_>>())
        };
        assert_eq!(refused(facts(false), None), (vec![], vec![]));
        assert_eq!(refused(facts(false), Some("half a file")), (vec![], vec!["half a file".to_owned()]));
        assert_eq!(refused(facts(true), Some("half a file")), (vec![IssuerFileEffect::UseFile], vec![]));
        let error = IdentityError::Crypto("no permission".into());
        let unreadable =
            IssuerFileFacts { has_other_issuer: Err(error), has_other_roots: true, is_ahead: true };
        let (effects, reasons) = refused(unreadable, None);
        assert_eq!(effects, [IssuerFileEffect::TrustRoots, IssuerFileEffect::ReplaceFuture]);
        assert!(reasons[0].contains("no permission"), "{reasons:?}");
    }
}
