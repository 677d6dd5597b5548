//! The PROXY protocol, versions 1 and 2, as bytes: a header with the addresses of a connection, which a load balancer
//! sends first.
//!
//! Where the specification leaves a choice, input that two implementations could interpret differently is refused: a
//! forged header would determine the address that a connection is attributed to.

mod binary;
mod text;

#[cfg(test)]
mod tests;

use std::{fmt, net::SocketAddr};

/// Length of the first read; no header is shorter.
pub const MIN_LENGTH: usize = 15;

/// Version of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// The address it connected to.
    pub destination: SocketAddr,
}

/// The header at the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// At least this many further bytes belong to the header.
    Incomplete(usize),
    /// The header is complete.
    Complete {
        /// Length in bytes.
        length: usize,
        /// `None` if the header has no TCP addresses, as for health checks of the load balancer; the connection's own
        /// addresses apply.
        addresses: Option<Addresses>,
        /// The id of the connection, if its sender gave it one of 16 bytes.
        connection_id: Option<ConnectionId>,
    },
}

/// Identifies a connection in the logs and metrics of all processes on its way: `PP2_TYPE_UNIQUE_ID` of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u128);

impl fmt::Display for ConnectionId {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Bytes that are no header, or an ambiguous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid PROXY protocol header: {0}")]
pub struct InvalidHeader(&'static str);

/// Parses the beginning of a connection.
///
/// # Errors
/// The bytes cannot become a valid header.
pub fn read(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    match bytes.first() {
        None => Ok(Header::Incomplete(MIN_LENGTH)),
        Some(first) if *first == binary::SIGNATURE[0] => binary::read(bytes),
        Some(_) => text::read(bytes),
    }
}

/// Encodes a header.
pub fn write(version: Version, addresses: Addresses) -> Vec<u8> {
    let addresses = addresses.same_family();
    match version {
        Version::V1 => text::write(addresses),
        Version::V2 => binary::write(addresses, None),
    }
}

/// Encodes a header of version 2 with the id of the connection.
pub fn write_with_id(addresses: Addresses, connection_id: ConnectionId) -> Vec<u8> {
    binary::write(addresses.same_family(), Some(connection_id))
}

impl Addresses {
    /// A header holds addresses of one family: if they differ, the IPv4 address is mapped to IPv6.
    fn same_family(self) -> Self {
        let Self { source, destination } = self;
        if source.is_ipv4() == destination.is_ipv4() {
            return self;
        }
        Self { source: mapped(source), destination: mapped(destination) }
    }
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        v6 @ SocketAddr::V6(_) => v6,
    }
}
