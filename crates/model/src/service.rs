use std::net::SocketAddr;

use crate::{Invalid, endpoint::check_address};

/// What a service is, whichever endpoints it has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// How a call finds its candidates.
    pub kind: ServiceKind,
    /// What its endpoints speak.
    pub protocol: Protocol,
    /// The address that unmodified programs connect to, where one is assigned.
    pub virtual_address: Option<SocketAddr>,
}

impl Service {
    /// Checks what the types do not: a virtual address that programs can connect to.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.virtual_address.map_or(Ok(()), |address| check_address("virtualAddress", address))
    }
}

/// How a call finds its candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceKind {
    /// Any endpoint serves any call.
    #[default]
    Replicated,
    /// A shard map says which endpoints hold a key (ServiceRouter §3.3).
    Sharded,
    /// The key is hashed over the endpoints (ServiceRouter §3.3).
    ConsistentHash,
}

/// What endpoints speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1: one call at a time on a connection.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
}

impl Protocol {
    /// Whether many calls share a connection.
    pub fn is_multiplexed(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc)
    }
}
