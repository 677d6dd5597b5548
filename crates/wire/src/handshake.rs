//! Which protocol version two processes speak.
//!
//! A caller says in `Rib.Hello` which versions it speaks, the answerer picks the newest that both do, and every later
//! call carries it as metadata. The version rides on the call and not on the connection, because a channel reconnects on
//! its own and may then find a process of another release behind the same address. A [watch](crate::watch) is one connection
//! from its beginning to its end, and begins with the same exchange.

mod client;
mod server;

use std::ops::RangeInclusive;

pub use client::{ConnectError, Connection, SendVersion, VersionedChannel, connect};
pub(crate) use client::{HELLO_TIMEOUT, plain};
use fairmesh_model::{Invalid, Location, StoreId};
pub use server::{VersionCheck, VersionChecked, is_version_refusal, negotiate, software_of};

use crate::{convert, v1};

/// The protocol versions that this build speaks. A release speaks its own and the one before (the first has none).
pub const PROTOCOL: RangeInclusive<u32> = 1..=1;

/// The metadata key that carries the version on every call but Hello.
pub(crate) const VERSION_KEY: &str = "fairmesh-version";
/// The metadata key that says what the caller is, for people.
pub(crate) const SOFTWARE_KEY: &str = "fairmesh-software";

/// The metadata key that marks a refusal as one of the version, and tells it from other failed preconditions.
pub(crate) const REFUSED_KEY: &str = "fairmesh-version-refused";

/// What the answerer of a handshake said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that both speak from now on.
    pub version: u32,
    /// The store behind it, or `None` for an agent that has never met a control plane.
    pub store: Option<StoreId>,
    /// Where it runs, if it is an agent.
    pub location: Option<Location>,
    /// What it is, for people: `control plane 0.1.0`.
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
