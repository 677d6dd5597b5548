//! The certificate authority of the mesh, and the rules for issuing certificates.
//!
//! Keys are in files of this control plane and never in the store. Roots and joined agents are records, so that every
//! control plane of a store decides alike.

mod bundle_endpoints;
mod operate;
mod retire;
mod revocations;
mod service;
mod trust_bundle;
mod workload_index;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_identity::{
    Authority, Clock, Credentials, HostCertificate, IdentityError, PrivateKey, Reread, RevocationList,
    SystemClock, Tokens, Trust, Workload,
};
use fairmesh_model::{Label, MeshRole, Prefix, SpiffePath, TrustBundle, TrustDomain};
use fairmesh_rib::{Node, access::AccessControl};
use fairmesh_store::Store;
use fairmesh_wire::{LogLimiter, environment::host_name, transport::Transport};
use tokio::time::sleep;
use tonic::Status;

pub(crate) use bundle_endpoints::FederationController;
pub(crate) use revocations::RevocationController;
pub(crate) use service::{IdentityService, is_own};
use trust_bundle::RecordedBundle;
pub(crate) use trust_bundle::{TrustBundleController, recorded_bundle};
use workload_index::WorkloadIndex;

use crate::{ControlConfig, ControlError, audit::AuditLog};

/// The authority's folder within the data directory, and the tokens' folder within that.
const CA_FOLDER: &str = "ca";
const TOKEN_FOLDER: &str = "tokens";

/// Age at which the certificate of this control plane is replaced.
const OWN_RENEWAL: Duration = Duration::from_secs(8 * 3600);

/// How often the file of the intermediate is compared with what is in use.
const ISSUER_INTERVAL: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The agents that joined.
const JOINED_AGENTS: &str = "/g/identity/agents/";

static NOT_REPLACED: LogLimiter = LogLimiter::new();

/// Issues the certificates of a trust domain: the authority, join tokens, and the certificates of this control plane.
#[derive(Debug)]
pub(crate) struct CertificateIssuer {
    authority: Authority,
    tokens: Tokens,
    /// Secures connections, and signs responses.
    workload: Arc<Workload>,
    /// The revision of the revocations in force.
    revoked_at: Mutex<Option<u64>>,
    /// Secures the HTTP pages, for clients that know this control plane by host names.
    pages: (Arc<HostCertificate>, Vec<String>),
    clock: Arc<dyn Clock>,
}

impl CertificateIssuer {
    /// Opens the authority. `None` if the mesh has no trust domain, or this control plane has no intermediate of it.
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
            (None, _) => return Ok(None),
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
        Ok(Some(Self { authority, tokens, workload, revoked_at: Mutex::default(), pages, clock }))
    }

    /// The roots of the domain: recorded ones, and unretired ones of this control plane.
    fn bundle(&self, node: &Node) -> TrustBundle {
        self.authority.complete(recorded_bundle(node))
    }

    /// The verifier of processes that request certificates.
    fn trust(&self, node: &Node) -> Result<Trust, IdentityError> {
        // A revocation applies to certificates issued after its write.
        self.apply_revocations(node);
        Ok(Trust::new(self.bundle(node))?.with_revocations(self.workload.revocations().clone()))
    }

    /// Trusts the roots of the records.
    fn follow_roots(&self, node: &Node) -> Result<(), IdentityError> {
        let roots = self.bundle(node).roots;
        let differ = |own: Arc<Credentials>| own.trust().bundle().roots != roots;
        if self.workload.credentials().is_some_and(differ) { self.renew_own(node).map(drop) } else { Ok(()) }
    }

    /// How this control plane accepts connections of the mesh.
    ///
    /// # Errors
    /// When it cannot issue itself a certificate.
    pub(crate) fn transport(&self, node: &Node) -> Result<Transport, IdentityError> {
        self.replace_future(node)?;
        self.renew_own(node)?;
        Ok(Transport::tls(Arc::clone(&self.workload) as _))
    }

    /// The certificate by which this control plane signs responses.
    fn own(&self, node: &Node) -> Result<Arc<Credentials>, IdentityError> {
        let is_fresh = |own: &Arc<Credentials>| is_fresh(own.validity().0, self.clock.now());
        match self.workload.credentials().filter(is_fresh) {
            Some(own) => Ok(own),
            None => self.renew_own(node),
        }
    }

    /// Replaces files made while the clock was ahead, since others refuse them as not valid yet. The root is replaced only while
    /// no agent has joined, because joined agents trust no other root. Returns whether anything was replaced.
    fn replace_future(&self, node: &Node) -> Result<bool, IdentityError> {
        let now = self.clock.now();
        let agents = Prefix::new(JOINED_AGENTS).ok();
        let has_joined = agents.is_none_or(|agents| !node.read(&[agents]).1.is_empty());
        let authority = self.authority.replace_future(now, !has_joined)?;
        let own = self.workload.credentials().is_some_and(|own| own.validity().0 > now);
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

    /// Issues a certificate to this control plane, under the newest intermediate and with all roots.
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

    /// Issues the certificate of the pages.
    fn renew_pages(&self, own: &Credentials, now: Duration) -> Result<(), IdentityError> {
        let (pages, hosts) = &self.pages;
        let key = PrivateKey::generate()?;
        let issued = self.authority.issue_for_hosts(&key.signing_request()?, hosts, now)?;
        pages.install(own, &key, issued.chain)
    }

    /// How this control plane accepts connections to its pages, once it accepts those of the mesh.
    pub(crate) fn pages_transport(&self) -> Transport {
        Transport::tls(Arc::clone(&self.pages.0) as _)
    }
}

impl IdentityService {
    /// Issues certificates of `issuer` by the records of `node`, and writes to `store`.
    pub(crate) fn new(
        issuer: Option<Arc<CertificateIssuer>>,
        (node, store): (&Node, &Arc<dyn Store>),
        (access, audit): (AccessControl, AuditLog),
    ) -> Self {
        let selectors = WorkloadIndex::new(node.clone());
        Self { issuer, node: node.clone(), store: Arc::clone(store), access, selectors, audit }
    }

    /// The controllers of a control plane that issues certificates.
    pub(crate) fn controllers(&self) -> Option<(RevocationController, TrustBundleController)> {
        let issuer = self.issuer.clone()?;
        let revocations = RevocationController { issuer: Arc::clone(&issuer), node: self.node.clone() };
        Some((revocations, TrustBundleController::new(issuer, self.node.clone())))
    }

    /// The revocations by which this control plane refuses callers.
    pub(crate) fn revocations(&self) -> RevocationList {
        self.issuer.as_ref().map(|issuer| issuer.workload.revocations().clone()).unwrap_or_default()
    }

    /// Uses an intermediate that is put into the file of this control plane's, as an authority elsewhere issues it.
    pub(crate) async fn follow_issuer_file(self) {
        let Some(issuer) = self.issuer else { return std::future::pending().await };
        loop {
            sleep(ISSUER_INTERVAL).await;
            match issuer.authority.reread_issuer(issuer.clock.now()) {
                Ok(Reread::Unchanged) => {}
                Ok(Reread::Replaced) => {
                    tracing::info!("certificates are issued by the new intermediate in ca/issuer.key");
                    if let Err(error) = issuer.renew_own(&self.node) {
                        tracing::error!(%error, "the certificate of this control plane cannot be renewed");
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "ca/issuer.key is not used; the intermediate before stays in use");
                }
            }
            if let Err(error) = issuer.follow_roots(&self.node) {
                tracing::error!(%error, "the roots of the records are not used");
            }
            match issuer.replace_future(&self.node) {
                Ok(false) => {}
                // Retried with the others, hourly.
                Ok(true) => drop(issuer.publish(&self.node, &*self.store).await),
                Err(error) => {
                    if let Some(left_out) = NOT_REPLACED.next() {
                        tracing::error!(%error, left_out, "certificates that are not valid yet cannot be replaced; check the clock");
                    }
                }
            }
        }
    }
}

/// Whether a certificate of this control plane that began at `begin` still needs no renewal.
fn is_fresh(begin: Duration, now: Duration) -> bool {
    (begin..begin + OWN_RENEWAL).contains(&now)
}

/// The hosts in the pages' certificate: the configured names, this machine, and the address.
fn page_hosts(config: &ControlConfig) -> Vec<String> {
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let listen = Some(config.http.ip()).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
    let mut hosts = config.http_names.clone();
    for host in host_name().into_iter().chain(own).chain(listen) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

/// The name of this control plane: the machine's name if it is valid.
fn own_name() -> Label {
    let host = host_name().and_then(|host| Label::new(host.to_ascii_lowercase()).ok());
    host.unwrap_or_else(|| Label::new("control").expect("it is a name"))
}

/// The refusal of certificate requests without a trust domain.
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
    fn a_certificate_from_the_future_is_replaced_like_an_old_one() {
        let begin = Duration::from_secs(1_000_000);
        let second = Duration::from_secs(1);
        assert!(is_fresh(begin, begin) && is_fresh(begin, begin + OWN_RENEWAL - second));
        assert!(!is_fresh(begin, begin - second), "the clock was set back");
        assert!(!is_fresh(begin, begin + OWN_RENEWAL));
    }
}
