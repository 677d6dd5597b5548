use std::net::SocketAddr;

use crate::{Invalid, SpiffeId, endpoint::check_address};

/// The declaration of a service, independent of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// How candidates for calls are found.
    pub kind: ServiceKind,
    /// The protocol of the service's endpoints.
    pub protocol: Protocol,
    /// The virtual address that unmodified programs connect to, if assigned.
    pub virtual_address: Option<SocketAddr>,
    /// SPIFFE id that endpoints prove by mutual TLS instead of the service's own id. The id belongs to a federated
    /// trust domain.
    pub identity: Option<SpiffeId>,
}

impl Service {
    /// Checks constraints beyond the types: programs must be able to connect to the virtual address.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.virtual_address.map_or(Ok(()), |address| check_address("virtualAddress", address))
    }
}

/// How candidates for a call are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "spec", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "spec", serde(rename_all = "kebab-case"))]
pub enum ServiceKind {
    /// Any endpoint serves any call.
    #[default]
    Replicated,
    /// A shard map assigns keys to endpoints (ServiceRouter §3.3).
    Sharded,
    /// The key is hashed over the endpoints by consistent hashing (ServiceRouter §3.3).
    ConsistentHash,
}

/// The protocol of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "spec", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "spec", serde(rename_all = "kebab-case"))]
pub enum Protocol {
    /// HTTP/1.1, with one call at a time per connection.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
}

impl Protocol {
    /// Whether concurrent calls share a connection.
    pub fn is_multiplexed(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc)
    }
}
