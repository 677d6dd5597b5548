//! Retirement of roots.

use std::{collections::BTreeSet, sync::Arc};

use fairmesh_identity::{IdentityError, sha256};
use fairmesh_model::{Identity, Prefix, SpiffeId, SpiffePath};
use fairmesh_rib::{PeerKind, WatcherInfo};
use fairmesh_store::write_author::saying;
use fairmesh_wire::v1;
use tonic::Status;

use super::{CertificateIssuer, IdentityService, RecordedBundle, authority_service::on_disk, failed};
use crate::{audit::hex, change_message::read_message};

/// Maximum number of processes named in a refusal.
const MAX_NAMED: usize = 5;

impl IdentityService {
    /// Removes a root from the records and from this control plane's file.
    pub(super) async fn retire(
        &self,
        issuer: &Arc<CertificateIssuer>,
        request: v1::RetireRootRequest,
    ) -> Result<v1::DescribeAuthorityResponse, Status> {
        let v1::RetireRootRequest { sha256: wanted, dry_run, force, message } = request;
        let message =
            read_message(message).map_err(|problem| Status::invalid_argument(problem.to_string()))?;
        let recorded = RecordedBundle::read(&self.node)?;
        let mut bundle = issuer.authority.complete(recorded.bundle.clone(), issuer.clock.now());
        let root = bundle.roots.iter().find(|root| sha256(root).as_slice() == wanted).cloned();
        let root = root.ok_or_else(|| Status::not_found("the trust domain has no such root"))?;
        let unused = issuer.authority.check_unused(&bundle, &root, issuer.clock.now());
        unused.map_err(|error| failed(&error))?;
        if !force {
            self.check_unpresented(issuer, &root)?;
        }
        bundle.retire(&root, sha256(&root));
        let roots = bundle.roots.len();
        let retired =
            v1::DescribeAuthorityResponse { bundle: Some(bundle.clone().into()), ..self.describe()? };
        if dry_run {
            return Ok(retired);
        }
        saying(message.into(), recorded.replace(bundle, &*self.store)).await?;
        let forgetting = Arc::clone(issuer);
        on_disk(move || forgetting.authority.forget_root(&root)).await?;
        issuer.renew_own(&self.node).map_err(|error| failed(&error))?;
        tracing::warn!(root = hex(&wanted), roots, "a root of the trust domain was retired");
        Ok(retired)
    }

    /// Refuses to retire a root while some process may have a certificate under it, or may not trust the root that
    /// signs instead.
    fn check_unpresented(&self, issuer: &CertificateIssuer, root: &[u8]) -> Result<(), Status> {
        let mut problems = Vec::new();
        match issuer.authority.check_expired_beneath(root, issuer.clock.now()) {
            Ok(()) => {}
            Err(error @ IdentityError::RecentRoot { .. }) => problems.push(error.to_string()),
            Err(error) => return Err(failed(&error)),
        }
        let beneath = issuer.workload.peers_beneath(root).map_err(|error| failed(&error))?;
        if !beneath.is_empty() {
            let ids = beneath.iter().map(ToString::to_string).collect();
            problems.push(format!("certificates beneath it are shown by {}", named(&ids)));
        }
        let lacking = self.agents_without(&issuer.authority.signing_root());
        if !lacking.is_empty() {
            problems.push(format!("agents do not trust the root that signs now: {}", named(&lacking)));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "{}; retire it then, or with --force, where processes that still need it are refused until they have renewed or joined again",
            problems.join("; ")
        )))
    }

    /// Agents that follow this control plane and report that they do not trust this root.
    fn agents_without(&self, root: &[u8]) -> BTreeSet<String> {
        let root = sha256(root);
        let watchers = self.node.watchers(&Prefix::everything());
        let lacking = watchers.into_iter().filter(|watcher| {
            let peer = watcher.peer.as_ref().filter(|peer| peer.kind == PeerKind::Agent);
            peer.is_some_and(|peer| !peer.roots.is_empty() && !peer.roots.contains(&root))
        });
        lacking.map(|watcher| agent_name(&watcher)).collect()
    }
}

/// The name in the agent's certificate: an agent could state that of another one.
fn agent_name(watcher: &WatcherInfo) -> String {
    match &watcher.identity {
        Identity::Spiffe(SpiffeId { path: SpiffePath::Mesh(_, name), .. }) => format!("agent {name}"),
        _ => watcher.software.clone(),
    }
}

/// Lists the first names, and the number of further ones.
fn named(all: &BTreeSet<String>) -> String {
    let first: Vec<&str> = all.iter().take(MAX_NAMED).map(String::as_str).collect();
    match all.len().saturating_sub(MAX_NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}
