//! Negotiation of the protocol version between two processes.
//!
//! The client sends its versions in `Rib.Hello`, the server picks the newest common version, and every later call
//! carries this version as metadata. The version belongs to calls rather than to the connection, because a channel
//! reconnects by itself and may then reach a process of another release at the same address. A [watch](crate::watch)
//! is a single connection and begins with the same exchange.

mod client;
mod server;
#[cfg(feature = "server")]
mod version_check;

use std::{fmt, ops::RangeInclusive};

pub use client::{ConnectError, Connection, SendVersion, VersionedChannel, connect};
pub(crate) use client::{HELLO_TIMEOUT, sanitize};
use fairmesh_model::{Invalid, Location, StoreId};
pub use server::{is_version_refusal, negotiate, software_of};
#[cfg(feature = "server")]
pub use version_check::{VersionCheck, VersionChecked};

use crate::{convert, v1};

/// Prefix of a control plane's description of itself. Clients send user tokens only to a server with this prefix.
pub const CONTROL_PLANE: &str = "control plane ";

/// The protocol versions of this build. A release supports its own version and the previous one (the first release
/// has no previous one).
pub const PROTOCOL: RangeInclusive<u32> = 1..=1;

/// Metadata key of the version, in every call except Hello.
pub(crate) const VERSION_KEY: &str = "fairmesh-version";
/// Metadata key of the client's description of itself, for display.
pub(crate) const SOFTWARE_KEY: &str = "fairmesh-software";

/// Metadata key that distinguishes version errors from other failed preconditions.
pub(crate) const REFUSED_KEY: &str = "fairmesh-version-refused";

/// Formats the request without its token.
impl fmt::Debug for v1::HelloRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { oldest_version, newest_version, software, bearer_token } = self;
        f.debug_struct("HelloRequest")
            .field("oldest_version", oldest_version)
            .field("newest_version", newest_version)
            .field("software", software)
            .field("has_bearer_token", &!bearer_token.is_empty())
            .finish()
    }
}

/// The server's response to a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The negotiated version.
    pub version: u32,
    /// The server's store; `None` for an agent that has never reached a control plane.
    pub store: Option<StoreId>,
    /// The server's location; only agents send it.
    pub location: Option<Location>,
    /// The server's description of itself, for display: `control plane 0.1.0`.
    pub software: String,
}

impl From<Hello> for v1::HelloResponse {
    fn from(hello: Hello) -> Self {
        Self {
            version: hello.version,
            store_id: hello.store.map(convert::store_id_bytes).unwrap_or_default(),
            location: hello.location.map(Into::into),
            software: hello.software,
        }
    }
}

impl TryFrom<v1::HelloResponse> for Hello {
    type Error = Invalid;

    fn try_from(message: v1::HelloResponse) -> Result<Self, Invalid> {
        let store = match message.store_id.is_empty() {
            true => None,
            false => Some(convert::store_id(&message.store_id)?),
        };
        let location =
            message.location.map(Location::try_from).transpose().map_err(|e| e.within("location"))?;
        Ok(Self { version: message.version, store, location, software: message.software })
    }
}
