//! Records of identities: the roots of the trust domain, and the agents that joined it.

use crate::{Region, Tenant, TrustDomain};

/// Upper bound of roots of a trust domain: one, or the old and the new ones while roots are rotated.
pub const MAX_ROOTS: usize = 8;
/// Upper bound of a certificate, in bytes of DER.
pub const MAX_CERTIFICATE: usize = 4096;
/// Upper bound of tenants to which an agent is restricted.
pub const MAX_TENANTS: usize = 64;

/// The certificates that a trust domain begins with. Public, and the same on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustBundle {
    /// The trust domain.
    pub domain: TrustDomain,
    /// Roots in DER, the newest last; at least one.
    pub roots: Vec<Vec<u8>>,
}

/// An agent that joined the trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedAgent {
    /// The tenants whose services it may vouch for; empty: all.
    pub tenants: Vec<Tenant>,
    /// When it joined, in seconds since 1970.
    pub joined: u64,
    /// The only region that it checks and reports for; `None`: any.
    pub region: Option<Region>,
}

impl JoinedAgent {
    /// Whether it may vouch for services of a tenant.
    pub fn vouches_for(&self, tenant: &Tenant) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }
}
