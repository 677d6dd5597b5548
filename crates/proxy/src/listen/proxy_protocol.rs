//! The PROXY protocol, versions 1 and 2, as bytes: what a balancer in front says first of each connection, so that who
//! connected to it is known behind it.
//!
//! What the specification leaves to the reader is refused where two readers could understand it differently: a head that a
//! program could have slipped in decides for whom a connection is taken.

mod binary;
mod text;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

/// What is read at first: no head is shorter.
pub const MIN_LENGTH: usize = 15;

/// How a head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Between whom a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Who connected.
    pub source: SocketAddr,
    /// What it connected to.
    pub destination: SocketAddr,
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The head goes on: so many more bytes belong to it, and maybe others after them.
    Incomplete(usize),
    /// The head is whole.
    Complete {
        /// Its bytes.
        length: usize,
        /// What it says; `None` where it says nothing of TCP, as of a balancer's own checks, and the connection counts as it is.
        addresses: Option<Addresses>,
    },
}

/// Bytes that are no head of the PROXY protocol, or that two readers could understand differently; says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no head of the PROXY protocol that can be relied on: {0}")]
pub struct InvalidHeader(&'static str);

/// Reads the head of a connection, of which so much has come.
///
/// # Errors
/// Where it is none, as soon as that is sure.
pub fn read(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    match bytes.first() {
        None => Ok(Header::Incomplete(MIN_LENGTH)),
        Some(first) if *first == binary::SIGNATURE[0] => binary::read(bytes),
        Some(_) => text::read(bytes),
    }
}

/// The head that says this.
pub fn write(version: Version, addresses: Addresses) -> Vec<u8> {
    let addresses = addresses.same_family();
    match version {
        Version::V1 => text::write(addresses),
        Version::V2 => binary::write(addresses),
    }
}

impl Addresses {
    /// A head has room for one family of addresses: where they differ, both are of version 6.
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
