//! Values of maps, as `bpf/shared.h` declares them.
#![allow(unsafe_code, reason = "values of maps are read and written as bytes")]

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    str,
};

use aya::Pod;

/// Networks and ports of one selection at most.
pub(crate) const SELECTED: usize = 8;
pub(crate) const PATH_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SelectionValue {
    pub(crate) networks: u32,
    pub(crate) ports: u32,
    pub(crate) address: [u32; SELECTED],
    pub(crate) mask: [u32; SELECTED],
    pub(crate) port: [u32; SELECTED],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AttachmentValue {
    pub(crate) was_created: u32,
    pub(crate) path: [u8; PATH_BYTES],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ProxyConfig {
    pub(crate) netns_cookie: u64,
    pub(crate) pid: u32,
    pub(crate) unused: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CallerAddress {
    ip: u32,
    port: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DestinationValue {
    pub(crate) cookie: u64,
    ip: u32,
    port: u32,
}

// SAFETY: each is `repr(C)`, consists of integers alone, has no padding, and is valid whatever its bytes are.
unsafe impl Pod for SelectionValue {}
// SAFETY: as above.
unsafe impl Pod for AttachmentValue {}
// SAFETY: as above.
unsafe impl Pod for ProxyConfig {}
// SAFETY: as above.
unsafe impl Pod for CallerAddress {}
// SAFETY: as above.
unsafe impl Pod for DestinationValue {}

/// An IPv4 address as it lies in memory, in network byte order.
pub(crate) fn network_order(ip: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(ip.octets())
}

impl From<SocketAddrV4> for CallerAddress {
    fn from(address: SocketAddrV4) -> Self {
        Self { ip: network_order(*address.ip()), port: address.port().into() }
    }
}

impl DestinationValue {
    /// The address that the caller connected to.
    pub(crate) fn address(&self) -> SocketAddrV4 {
        // The program stores a port, which has 16 bits.
        SocketAddrV4::new(Ipv4Addr::from(self.ip.to_ne_bytes()), self.port as u16)
    }
}

impl AttachmentValue {
    /// `None` if the path is too long.
    pub(crate) fn new(path: &str, was_created: bool) -> Option<Self> {
        let mut bytes = [0; PATH_BYTES];
        bytes.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
        Some(Self { was_created: was_created.into(), path: bytes })
    }

    pub(crate) fn path(&self) -> &str {
        let length = self.path.iter().position(|byte| *byte == 0).unwrap_or(PATH_BYTES);
        str::from_utf8(&self.path[..length]).unwrap_or_default()
    }
}

/// What the programs count, in the order of `enum counter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Connections redirected to the proxy.
    Redirected,
    /// Connections made directly, since no proxy listened.
    NoProxy,
    /// Requests sent by the kernel.
    SentByKernel,
    /// Sends left to the proxy, which had not accepted the connection yet.
    NotRegistered,
    /// Sends left to the proxy while an earlier request of the connection was in flight.
    InFlight,
    /// Sends that are no plain HTTP/1.1 request, or not a whole one.
    NotPlain,
    /// Requests that are too large.
    TooLarge,
    /// Requests of services that the proxy had not published.
    ServiceUnknown,
    /// Requests for which no pooled connection was idle.
    NoIdleConnection,
    /// Requests that could not be moved to a pooled connection.
    RedirectFailed,
}

impl Counter {
    /// All, in the order of the map.
    pub const ALL: [Self; 10] = [
        Self::Redirected,
        Self::NoProxy,
        Self::SentByKernel,
        Self::NotRegistered,
        Self::InFlight,
        Self::NotPlain,
        Self::TooLarge,
        Self::ServiceUnknown,
        Self::NoIdleConnection,
        Self::RedirectFailed,
    ];

    /// Its name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::NoProxy => "no-proxy",
            Self::SentByKernel => "sent-by-kernel",
            Self::NotRegistered => "not-registered",
            Self::InFlight => "in-flight",
            Self::NotPlain => "not-plain",
            Self::TooLarge => "too-large",
            Self::ServiceUnknown => "service-unknown",
            Self::NoIdleConnection => "no-idle-connection",
            Self::RedirectFailed => "redirect-failed",
        }
    }
}
