//! Records of identities: the roots of the trust domain, and the agents that joined it.

use std::collections::BTreeSet;

use crate::{Invalid, Region, Tenant, TrustDomain};

/// Upper bound of a trust domain's roots: one, or old and new ones during a rotation.
pub const MAX_ROOTS: usize = 8;
/// Upper bound of remembered retired roots. Control planes that still have their files must not record them again.
pub const MAX_RETIRED_ROOTS: usize = 32;
/// Upper bound of a certificate, in bytes of DER.
pub const MAX_CERTIFICATE: usize = 4096;
/// Upper bound of tenants to which an agent is restricted.
pub const MAX_TENANTS: usize = 64;

/// The root certificates of a trust domain. They are public, and the same on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    /// The trust domain.
    pub domain: TrustDomain,
    /// Roots in DER, the newest last; at least one.
    pub roots: Vec<Vec<u8>>,
    /// The SHA-256 of retired roots, oldest first; at most [`MAX_RETIRED_ROOTS`], and none of `roots`.
    pub retired: Vec<[u8; 32]>,
}

impl TrustBundle {
    /// A bundle without retired roots.
    pub const fn new(domain: TrustDomain, roots: Vec<Vec<u8>>) -> Self {
        Self { domain, roots, retired: Vec::new() }
    }

    /// Removes a root and remembers its SHA-256. The oldest retired roots are forgotten.
    pub fn retire(&mut self, root: &[u8], digest: [u8; 32]) {
        self.roots.retain(|one| one != root);
        self.retired.push(digest);
        let surplus = self.retired.len().saturating_sub(MAX_RETIRED_ROOTS);
        self.retired.drain(..surplus);
    }
}

/// Upper bound of trust domains that a mesh is federated with.
pub const MAX_FEDERATED_DOMAINS: usize = 32;

/// Federated trust domains whose certificates are verified. Policies name their callers by whole id, and services name their
/// servers by whole id. Their processes are not members of this mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FederatedDomains {
    /// At most [`MAX_FEDERATED_DOMAINS`], each once.
    pub bundles: Vec<TrustBundle>,
    /// Bundle endpoints of some of these domains, so that roots can be kept current; one each.
    pub endpoints: Vec<BundleEndpoint>,
}

/// Upper bound of a URL, in bytes.
pub const MAX_BUNDLE_URL: usize = 2048;

/// A SPIFFE bundle endpoint, where a trust domain serves its roots. Web authorities vouch for its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BundleEndpoint {
    /// The trust domain.
    pub domain: TrustDomain,
    /// The URL.
    pub url: String,
}

impl FederatedDomains {
    /// The bundle of a domain.
    pub fn find(&self, domain: &TrustDomain) -> Option<&TrustBundle> {
        self.bundles.iter().find(|bundle| bundle.domain == *domain)
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.bundles.len() > MAX_FEDERATED_DOMAINS {
            let problem = format!("has {} trust domains", self.bundles.len());
            let hint = format!("keep at most {MAX_FEDERATED_DOMAINS}; remove those that nothing calls");
            return Err(Invalid::new("bundles", problem, hint));
        }
        self.validate_endpoints()?;
        let mut seen = BTreeSet::new();
        match self.bundles.iter().position(|bundle| !seen.insert(&bundle.domain)) {
            None => Ok(()),
            Some(i) => {
                let problem = format!("{} is there twice", self.bundles[i].domain);
                Err(Invalid::new(format!("bundles[{i}]"), problem, "give each trust domain once"))
            }
        }
    }

    fn validate_endpoints(&self) -> Result<(), Invalid> {
        let mut seen = BTreeSet::new();
        for (i, BundleEndpoint { domain, url }) in self.endpoints.iter().enumerate() {
            let invalid = |problem, hint: &str| Err(Invalid::new(format!("endpoints[{i}]"), problem, hint));
            if !seen.insert(domain) || self.find(domain).is_none() {
                return invalid(
                    format!("{domain} is there twice, or has no roots"),
                    "give one for each trust domain with roots at most",
                );
            }
            if url.is_empty() || url.len() > MAX_BUNDLE_URL {
                return invalid(format!("the URL has {} bytes", url.len()), "keep it to 2048");
            }
        }
        Ok(())
    }
}

/// An agent that joined the trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedAgent {
    /// The tenants whose services the agent may vouch for; empty means all.
    pub tenants: Vec<Tenant>,
    /// When the agent joined, in seconds since 1970.
    pub joined: u64,
    /// The only region that the agent checks and reports for; `None` means any.
    pub region: Option<Region>,
}

impl JoinedAgent {
    /// Whether the agent may vouch for services of a tenant.
    pub fn vouches_for(&self, tenant: &Tenant) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }
}
