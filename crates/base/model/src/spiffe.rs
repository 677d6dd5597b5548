//! SPIFFE ids: the identities in certificates.

use std::{fmt, str::FromStr};

use crate::{Invalid, Label, ServiceName, Tenant, TrustDomain};

/// The scheme of ids. The tenant `RESERVED` is for the mesh's own processes.
const SCHEME: &str = "spiffe://";
const RESERVED: &str = "fairmesh";

/// A SPIFFE id. Services have `spiffe://DOMAIN/TENANT/SERVICE`, and the mesh's processes have
/// `spiffe://DOMAIN/fairmesh/ROLE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpiffeId {
    /// The trust domain.
    pub domain: TrustDomain,
    /// The identity within the trust domain.
    pub path: SpiffePath,
}

/// An identity within a trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpiffePath {
    /// A service, which all of its instances share.
    Service(ServiceName),
    /// A process of the mesh, or a person who operates the mesh.
    Mesh(MeshRole, Label),
}

/// The role of a process of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MeshRole {
    /// The agent of a machine.
    Agent,
    /// A control plane.
    Control,
    /// A replica of the routing information base.
    Replica,
    /// A proxy or a lookaside shared by many programs.
    Proxy,
    /// A key server. It signs for proxies, and may not read the records of services.
    KeyServer,
    /// A gateway that serves many tenants. Nodes trust it to reach their pods.
    Gateway,
    /// A person, or a program that calls services but is not a service itself.
    Operator,
}

impl MeshRole {
    const ALL: [Self; 7] = [
        Self::Agent,
        Self::Control,
        Self::Replica,
        Self::Proxy,
        Self::KeyServer,
        Self::Gateway,
        Self::Operator,
    ];

    /// The role's name in ids.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Control => "control",
            Self::Replica => "replica",
            Self::Proxy => "proxy",
            Self::KeyServer => "keyserver",
            Self::Gateway => "gateway",
            Self::Operator => "operator",
        }
    }
}

impl SpiffePath {
    /// The id of this identity in a trust domain.
    pub fn within(self, domain: &TrustDomain) -> SpiffeId {
        SpiffeId { domain: domain.clone(), path: self }
    }
}

impl fmt::Display for SpiffePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Mesh(role, name) => write!(f, "{RESERVED}/{}/{name}", role.as_str()),
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.domain, self.path)
    }
}

impl FromStr for SpiffePath {
    type Err = Invalid;

    /// Parses `TENANT/SERVICE` or `fairmesh/ROLE/NAME`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = || {
            let hint = "write TENANT/SERVICE, such as shop/cart, or fairmesh/ROLE/NAME";
            Invalid::new("identity", format!("'{text}' is no identity"), hint)
        };
        match text.split('/').collect::<Vec<_>>()[..] {
            [RESERVED, role, name] => {
                let role = MeshRole::ALL.into_iter().find(|known| known.as_str() == role);
                Ok(Self::Mesh(role.ok_or_else(refuse)?, Label::new(name)?))
            }
            [tenant, service] => {
                Ok(Self::Service(ServiceName { tenant: Tenant::new(tenant)?, service: Label::new(service)? }))
            }
            _ => Err(refuse()),
        }
    }
}

impl FromStr for SpiffeId {
    type Err = Invalid;

    /// Parses an id in its displayed form. Other spellings are refused.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parts = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
        let (domain, path) = parts.ok_or_else(|| {
            let hint = "write spiffe://DOMAIN/TENANT/SERVICE, such as spiffe://example.org/shop/cart";
            Invalid::new("identity", format!("'{text}' is no SPIFFE id"), hint)
        })?;
        Ok(Self { domain: TrustDomain::new(domain)?, path: path.parse()? })
    }
}
