//! The certificate authority of the mesh, and the rules for issuing certificates.
//!
//! Keys are in files of this control plane and never in the store. Roots and joined agents are records, so
//! that all control planes of a store decide alike.

mod authority_service;
mod bundle_endpoints;
pub(crate) mod bundle_page;
mod issuer_file;
mod revocations;
mod root_retirement;
mod service;
mod token_issuers;
mod trust_bundle;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_identity::{
    Authority, Clock, Credentials, HostCertificate, IdentityError, PrivateKey, RevocationList, SystemClock,
    Tokens, Trust, Workload,
};
use fairmesh_model::{Label, MeshRole, Prefix, SpiffePath, TrustBundle, TrustDomain};
use fairmesh_rib::{
    Node,
    access::{AccessControl, WorkloadIndex},
};
use fairmesh_store::Store;
use fairmesh_wire::{environment::host_name, transport::Transport};
use tokio::sync::Notify;
use tonic::Status;

pub(crate) use bundle_endpoints::FederationController;
use issuer_file::IssuerFileController;
pub(crate) use revocations::RevocationController;
pub(crate) use service::{IdentityService, is_own};
pub(crate) use token_issuers::TokenIssuerController;
use trust_bundle::RecordedBundle;
pub(crate) use trust_bundle::{TrustBundleController, recorded_bundle};

use crate::{ControlConfig, ControlError, audit::AuditLog};

/// Folder of the authority within the data directory, and folder of the tokens within the authority's folder.
const CA_FOLDER: &str = "ca";
const TOKEN_FOLDER: &str = "tokens";

/// Age at which this control plane's own certificate is renewed.
const OWN_RENEWAL: Duration = Duration::from_secs(8 * 3600);

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Prefix of the records of joined agents.
const JOINED_AGENTS: &str = "/g/identity/agents/";

/// The controllers of a control plane that issues certificates.
pub(crate) struct IssuerControllers {
    pub(crate) revocations: RevocationController,
    pub(crate) trust_bundle: TrustBundleController,
    pub(crate) issuer_file: IssuerFileController,
}

/// Issues the certificates of a trust domain: the authority, join tokens, and the certificates of this control plane.
#[derive(Debug)]
pub(crate) struct CertificateIssuer {
    authority: Authority,
    tokens: Tokens,
    /// Secures connections with this control plane's certificate, and signs responses.
    workload: Arc<Workload>,
    /// Revision of the revocation record in force.
    revoked_at: Mutex<Option<u64>>,
    /// Secures the HTTP pages with a certificate for host names, and lists these names.
    pages: (Arc<HostCertificate>, Vec<String>),
    /// Files with another certificate for the pages and its key.
    page_files: Option<(PathBuf, PathBuf)>,
    clock: Arc<dyn Clock>,
    /// Notified when the authority has created another root by itself.
    roots_changed: Arc<Notify>,
}

impl CertificateIssuer {
    /// Opens the authority. `None` if the mesh has no trust domain, or if none is given and this control
    /// plane has no authority files.
    pub(crate) fn open(
        config: &ControlConfig,
        told: Option<&TrustDomain>,
        recorded: Option<&TrustBundle>,
    ) -> Result<Option<Self>, ControlError> {
        let folder = config.data_dir.join(CA_FOLDER);
        let domain = match (told, recorded) {
            (Some(told), Some(recorded)) if *told != recorded.domain => {
                return Err(ControlError::OtherTrustDomain {
                    told: told.clone(),
                    recorded: recorded.domain.clone(),
                });
            }
            (Some(domain), _) => domain,
            (None, Some(recorded)) if Authority::exists(&folder) => &recorded.domain,
            (None, _) if config.http_certificate.is_some() => {
                tracing::warn!(
                    "the pages are in plaintext: without a trust domain, --admin-tls-cert has no effect"
                );
                return Ok(None);
            }
            (None, recorded) => {
                if recorded.is_none() && config.etcd.is_some() {
                    tracing::info!(
                        "the store in etcd has no trust domain, so the mesh is in plaintext; give every control plane --trust-domain \
                         NAME for mutual TLS"
                    );
                }
                return Ok(None);
            }
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        if let Some(recorded) = recorded
            && !Authority::adopt(&folder, recorded)?
        {
            return Err(ControlError::NoIntermediate { domain: domain.clone(), folder });
        }
        let authority = Authority::open(&folder, domain, clock.now())?;
        let tokens = Tokens::open(&folder.join(TOKEN_FOLDER))?;
        let workload = Arc::<Workload>::default();
        workload.note_roots_of_peers();
        let pages = (Arc::new(HostCertificate::new(Arc::clone(&workload))), page_hosts(config));
        let (revoked_at, roots_changed) = Default::default();
        let page_files = config.http_certificate.clone();
        Ok(Some(Self { authority, tokens, workload, revoked_at, pages, page_files, clock, roots_changed }))
    }

    /// The roots of the domain: the recorded ones, and the roots of this control plane that are not retired. Likewise its
    /// keys for JWT-SVIDs.
    fn bundle(&self, node: &Node) -> TrustBundle {
        self.authority.complete(recorded_bundle(node), self.clock.now())
    }

    /// Returns the verifier for processes that request certificates.
    fn trust(&self, node: &Node) -> Result<Trust, IdentityError> {
        // Applied first, since a revocation affects all certificates that are issued after its write.
        self.apply_revocations(node);
        Ok(Trust::new(self.bundle(node))?.with_revocations(self.workload.revocations().clone()))
    }

    /// Whether the roots trusted by this control plane's certificate differ from the recorded roots.
    fn trusts_other_roots(&self, node: &Node) -> bool {
        let roots = self.bundle(node).roots;
        self.workload.credentials().is_some_and(|own| own.trust().bundle().roots != roots)
    }

    /// The transport by which this control plane accepts connections of the mesh.
    ///
    /// # Errors
    /// The control plane cannot issue itself a certificate.
    pub(crate) fn transport(&self, node: &Node) -> Result<Transport, IdentityError> {
        self.replace_future(node)?;
        self.renew_own(node)?;
        Ok(Transport::tls(Arc::clone(&self.workload) as _))
    }

    /// Returns the certificate with which this control plane signs responses.
    fn own(&self, node: &Node) -> Result<Arc<Credentials>, IdentityError> {
        let is_fresh = |own: &Arc<Credentials>| is_fresh(own.validity().0, self.clock.now());
        match self.workload.credentials().filter(is_fresh) {
            Some(own) => Ok(own),
            None => self.renew_own(node),
        }
    }

    /// Replaces certificate files made while the clock was ahead, because other processes refuse certificates that
    /// are not valid yet. Replaces the root only if no agent has joined, because joined agents trust no other root.
    /// Returns whether anything was replaced.
    fn replace_future(&self, node: &Node) -> Result<bool, IdentityError> {
        let now = self.clock.now();
        let authority = self.authority.replace_future(now, !has_joined(node))?;
        let own = self.is_own_ahead(now);
        if authority || own {
            tracing::warn!(
                authority,
                own,
                "the clock was set back: certificates that are not valid yet are replaced"
            );
            self.renew_own(node)?;
        }
        Ok(authority || own)
    }

    /// Whether [`replace_future`](Self::replace_future) would replace anything.
    fn is_ahead(&self, node: &Node) -> bool {
        let now = self.clock.now();
        self.is_own_ahead(now) || self.authority.is_ahead(now, !has_joined(node))
    }

    /// Whether this control plane's own certificate is not valid yet.
    fn is_own_ahead(&self, now: Duration) -> bool {
        self.workload.credentials().is_some_and(|own| own.validity().0 > now)
    }

    /// Issues this control plane a certificate, under the newest intermediate and with all roots.
    fn renew_own(&self, node: &Node) -> Result<Arc<Credentials>, IdentityError> {
        let (now, bundle) = (self.clock.now(), self.bundle(node));
        let id = SpiffePath::Mesh(MeshRole::Control, own_name()).within(&bundle.domain);
        let key = PrivateKey::generate()?;
        let issued = self.authority.issue(&key.signing_request()?, &id, now)?;
        self.workload.install(Credentials::new(key, issued.chain, bundle, now)?)?;
        let own = self
            .workload
            .credentials()
            .ok_or_else(|| IdentityError::Crypto("no certificate was made".into()))?;
        self.renew_pages(&own, now)?;
        Ok(own)
    }

    /// Issues the certificate for the pages, or reads it again.
    fn renew_pages(&self, own: &Credentials, now: Duration) -> Result<(), IdentityError> {
        let (pages, hosts) = &self.pages;
        if let Some((certificate, key)) = &self.page_files {
            return pages.install_given(own, (certificate, key));
        }
        let key = PrivateKey::generate()?;
        let issued = self.authority.issue_for_hosts(&key.signing_request()?, hosts, now)?;
        pages.install(own, &key, issued.chain)
    }

    /// The transport by which this control plane accepts connections to its pages. Call
    /// [`transport`](Self::transport) first.
    pub(crate) fn pages_transport(&self) -> Transport {
        Transport::tls(Arc::clone(&self.pages.0) as _)
    }
}

impl IdentityService {
    /// Creates a service that issues certificates of `issuer` according to the records of `node`, and writes
    /// to `store`.
    pub(crate) fn new(
        issuer: Option<Arc<CertificateIssuer>>,
        (node, store): (&Node, &Arc<dyn Store>),
        (access, audit): (AccessControl, AuditLog),
    ) -> Self {
        let selectors = WorkloadIndex::new(node.clone());
        Self { issuer, node: node.clone(), store: Arc::clone(store), access, selectors, audit }
    }

    /// The controllers of a control plane that issues certificates.
    pub(crate) fn controllers(&self) -> Option<IssuerControllers> {
        let issuer = self.issuer.as_ref()?;
        Some(IssuerControllers {
            revocations: RevocationController { issuer: Arc::clone(issuer), node: self.node.clone() },
            trust_bundle: TrustBundleController::new(Arc::clone(issuer), self.node.clone()),
            issuer_file: IssuerFileController::new(Arc::clone(issuer), self.node.clone()),
        })
    }

    /// The revocations that this control plane applies to callers.
    pub(crate) fn revocations(&self) -> RevocationList {
        self.issuer.as_ref().map(|issuer| issuer.workload.revocations().clone()).unwrap_or_default()
    }
}

/// Whether any agent has joined the mesh.
fn has_joined(node: &Node) -> bool {
    let agents = Prefix::new(JOINED_AGENTS).ok();
    agents.is_none_or(|agents| !node.read(&[agents]).1.is_empty())
}

/// Whether a certificate of this control plane whose validity starts at `begin` needs no renewal yet.
fn is_fresh(begin: Duration, now: Duration) -> bool {
    (begin..begin + OWN_RENEWAL).contains(&now)
}

/// The host names in the pages' certificate: the configured names, this machine's name, and the listening
/// address.
pub(crate) fn page_hosts(config: &ControlConfig) -> Vec<String> {
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let listen = config.http.map(|http| http.ip()).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
    let mut hosts = config.http_names.clone();
    for host in host_name().into_iter().chain(own).chain(listen) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

/// The name of this control plane: the machine's name, if it is a valid label.
fn own_name() -> Label {
    let host = host_name().and_then(|host| Label::new(host.to_ascii_lowercase()).ok());
    host.unwrap_or_else(|| Label::new("control").expect("it is a name"))
}

/// The refusal of certificate requests in a mesh without a trust domain.
fn no_domain() -> Status {
    Status::failed_precondition(
        "this control plane issues no certificates; start one of the mesh with --trust-domain NAME",
    )
}

fn failed(error: &IdentityError) -> Status {
    match error {
        IdentityError::InvalidRequest(_) => Status::invalid_argument(error.to_string()),
        IdentityError::RootKeyAbsent { .. }
        | IdentityError::TooManyRoots(_)
        | IdentityError::YoungRoot { .. }
        | IdentityError::RootInUse { .. }
        | IdentityError::OtherRootKey { .. }
        | IdentityError::RecentRoot { .. } => Status::failed_precondition(error.to_string()),
        _ => {
            tracing::error!(%error, "a certificate was not issued");
            Status::internal(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_plane_replaces_own_certificate_that_is_old_or_not_yet_valid() {
        let begin = Duration::from_secs(1_000_000);
        let second = Duration::from_secs(1);
        assert!(is_fresh(begin, begin) && is_fresh(begin, begin + OWN_RENEWAL - second));
        assert!(!is_fresh(begin, begin - second), "the clock was set back");
        assert!(!is_fresh(begin, begin + OWN_RENEWAL));
    }
}
