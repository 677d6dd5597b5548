//! Records of the trust domain: its root certificates, and the agents that joined it.

use std::collections::BTreeSet;

use crate::{Invalid, Region, Tenant, TrustDomain};

/// Maximum number of roots of a trust domain. There is one root, or old and new roots during a rotation.
pub const MAX_ROOTS: usize = 8;
/// Maximum number of retired roots that the bundle remembers. Control planes that still have the files of a retired
/// root must not record it again.
pub const MAX_RETIRED_ROOTS: usize = 32;
/// Maximum size of a certificate, in bytes of DER.
pub const MAX_CERTIFICATE: usize = 4096;
/// Maximum number of keys for JWT-SVIDs of a trust domain.
pub const MAX_JWT_KEYS: usize = 16;
/// Maximum size of a key for JWT-SVIDs, in bytes.
pub const MAX_JWT_KEY: usize = 2048;
/// Maximum number of tenants to which an agent is restricted.
pub const MAX_TENANTS: usize = 64;

/// The root certificates of a trust domain. They are public and equal on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    /// The trust domain.
    pub domain: TrustDomain,
    /// Roots in DER, the newest last; at least one.
    pub roots: Vec<Vec<u8>>,
    /// SHA-256 of each retired root, oldest first. At most [`MAX_RETIRED_ROOTS`], and disjoint from `roots`.
    pub retired: Vec<[u8; 32]>,
    /// Keys that verify JWT-SVIDs, at most [`MAX_JWT_KEYS`].
    pub jwt_keys: Vec<JwtKey>,
}

/// A public key that verifies JWT-SVIDs of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtKey {
    /// A JSON Web Key with an id and with only the members that verification needs.
    pub jwk: Vec<u8>,
    /// Time from which the key verifies nothing, in seconds since 1970; `None` in bundles of other domains.
    pub expires_at: Option<u64>,
}

impl TrustBundle {
    /// A bundle without retired roots.
    pub const fn new(domain: TrustDomain, roots: Vec<Vec<u8>>) -> Self {
        Self { domain, roots, retired: Vec::new(), jwt_keys: Vec::new() }
    }

    /// Removes a root and remembers its SHA-256. Beyond the maximum, the oldest retired roots are forgotten.
    pub fn retire(&mut self, root: &[u8], digest: [u8; 32]) {
        self.roots.retain(|one| one != root);
        self.retired.push(digest);
        let surplus = self.retired.len().saturating_sub(MAX_RETIRED_ROOTS);
        self.retired.drain(..surplus);
    }
}

/// Maximum number of federated trust domains.
pub const MAX_FEDERATED_DOMAINS: usize = 32;

/// Federated trust domains whose certificates are verified. Policies name callers of these domains by full id, and
/// services name servers by full id. Processes of these domains are not members of this mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FederatedDomains {
    /// Bundles, at most [`MAX_FEDERATED_DOMAINS`] and one per domain.
    pub bundles: Vec<TrustBundle>,
    /// Bundle endpoints from which roots are refreshed, at most one per domain.
    pub endpoints: Vec<BundleEndpoint>,
}

/// Maximum length of a URL, in bytes.
pub const MAX_BUNDLE_URL: usize = 2048;

/// A SPIFFE bundle endpoint, where a trust domain serves its roots. Its server is authenticated by Web PKI.
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

    /// Checks the limits.
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
    /// Tenants for whose services the agent may vouch; empty means all tenants.
    pub tenants: Vec<Tenant>,
    /// Time of joining, in seconds since 1970.
    pub joined: u64,
    /// The only region in which the agent may be a checker and report; `None` means any region.
    pub region: Option<Region>,
}

impl JoinedAgent {
    /// Whether the agent may vouch for services of `tenant`.
    pub fn vouches_for(&self, tenant: &Tenant) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }
}
