//! The PROXY protocol, versions 1 and 2: a header that a load balancer sends first, with the addresses of the
//! connection.
//!
//! If the specification leaves a choice, input that two implementations could interpret differently is refused: a
//! forged header would determine the address to which a connection is attributed.

mod binary;
mod text;

#[cfg(test)]
mod tests;

use std::{fmt, net::SocketAddr};

/// Number of bytes to read first: the length of the shortest header.
pub const MIN_LENGTH: usize = 15;

/// Version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The text format.
    V1,
    /// The binary format.
    V2,
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The address of the client.
    pub source: SocketAddr,
    /// The address to which the client connected.
    pub destination: SocketAddr,
}

/// Result of parsing the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The header is incomplete: at least this many further bytes belong to it.
    Incomplete(usize),
    /// The header is complete.
    Complete {
        /// Length in bytes.
        length: usize,
        /// The addresses in the header. `None` if the header has no TCP addresses, as for health checks by the load
        /// balancer; then the connection's own addresses apply.
        addresses: Option<Addresses>,
        /// Id of the connection; `None` if the header has no id of 16 bytes.
        connection_id: Option<ConnectionId>,
    },
}

/// Identifies a connection in the logs and metrics of all processes on its path: `PP2_TYPE_UNIQUE_ID` in the
/// specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u128);

impl fmt::Display for ConnectionId {
    /// Formats the id as 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The bytes are not a header, or an ambiguous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid PROXY protocol header: {0}")]
pub struct InvalidHeader(&'static str);

/// Parses the header at the beginning of a connection.
///
/// # Errors
/// If the bytes cannot become a valid header.
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

/// Encodes a version 2 header with the id of the connection.
pub fn write_with_id(addresses: Addresses, connection_id: ConnectionId) -> Vec<u8> {
    binary::write(addresses.same_family(), Some(connection_id))
}

impl Addresses {
    /// Converts both addresses to one address family, as a header requires. If the families differ, the IPv4 address
    /// is mapped to IPv6.
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
