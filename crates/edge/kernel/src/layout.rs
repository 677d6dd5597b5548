//! Values of maps, as `bpf/shared.h` declares them; the tests compare both.
#![allow(unsafe_code, reason = "values of maps are read and written as bytes")]

use std::{
    cell::UnsafeCell,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    str,
    sync::atomic::{AtomicU32, AtomicU64},
};

use aya::Pod;
use fairmesh_balancer::BLOCK_ENDPOINTS;
use fairmesh_router::{ROUTE_ARMS, ROUTE_STEPS, RouteStep, ServiceNumbers};

/// Networks and ports of one selection at most.
pub(crate) const SELECTED: usize = 8;
pub(crate) const PATH_BYTES: usize = 256;
/// Roles of the programs in a cgroup.
pub(crate) const CALLERS: u32 = 1;
pub(crate) const SERVERS: u32 = 2;
/// The longest request that the kernel sends, head and body.
pub const MAX_REQUEST: usize = 64 * 1024;
/// The longest of which it keeps all; of a longer one it keeps the head.
pub(crate) const MAX_KEPT: usize = 2048;
/// The longest host of a published service.
pub(crate) const HOST_BYTES: usize = 64;
/// Services that are published at most.
pub(crate) const SERVICES: u32 = 1024;
/// Endpoints of all services: those of block B of statistics are B * BLOCK_ENDPOINTS and the following.
pub(crate) const ENDPOINTS: u32 = SERVICES * BLOCK_ENDPOINTS as u32;
/// Cgroups to which the programs are attached.
pub(crate) const ATTACHMENTS: u32 = 64;
/// Pooled connections to one endpoint, and to all.
pub(crate) const ENDPOINT_SLOTS: usize = 64;
pub(crate) const SLOTS: u32 = 8192;
/// Connections of callers.
pub(crate) const LINKS: u32 = 65_536;
pub(crate) const UNKNOWN: u64 = u64::MAX;
pub(crate) const WITHDRAWN: u64 = u64::MAX;
/// The longest load report of a response that the kernel sends to its caller.
pub(crate) const LOAD_BYTES: usize = 128;
/// Owners of a slot that are no cookie.
pub(crate) const SLOT_ABSENT: u64 = 0;
pub(crate) const SLOT_IDLE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SelectionValue {
    pub(crate) networks: u32,
    pub(crate) ports: u32,
    pub(crate) address: [u32; SELECTED],
    pub(crate) mask: [u32; SELECTED],
    pub(crate) port: [u32; SELECTED],
    /// 1 where nothing but services may be reached.
    pub(crate) only_services: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AttachmentValue {
    /// How many cgroups were created for it: itself, and those around it.
    pub(crate) was_created: u32,
    /// [`CALLERS`] or [`SERVERS`] or both.
    pub(crate) roles: u32,
    /// Position of the [`GroupValue`] of its callers.
    pub(crate) group: u32,
    /// 1 where responses of the proxy take the short cut to its callers.
    pub(crate) short_cut: u32,
    /// Which connects of its callers are redirected.
    pub(crate) selection: SelectionValue,
    pub(crate) path: [u8; PATH_BYTES],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ProxyConfig {
    pub(crate) netns_cookie: u64,
    pub(crate) pid: u32,
    /// Holds also once the proxy listens no longer.
    pub(crate) only_services: u32,
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
    port: u16,
    pub(crate) only_services: u8,
    /// 1 where its data passes TCP alone.
    pub(crate) by_tcp: u8,
}

/// The host by which requests name a service; zeros follow it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct HostKey([u8; HOST_BYTES]);

/// Where the policy of a service lies. The id is of this policy alone, also when the position is used again.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ServiceValue {
    pub(crate) id: u64,
    pub(crate) position: u32,
    pub(crate) unused: u32,
}

/// A service that the programs pick endpoints of.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PolicyValue {
    /// That of the [`ServiceValue`]; 0 while there is none.
    pub(crate) id: u64,
    /// When the clock of the picks was 0, by the clock of the programs.
    pub(crate) origin: u64,
    /// Where the counts of its endpoints lie.
    pub(crate) block: u32,
    /// 1 where a second attempt may be made with any method.
    pub(crate) repeats_any: u32,
    pub(crate) numbers: ServiceNumbers,
    pub(crate) step_count: u32,
    pub(crate) unused_count: u32,
    pub(crate) arms: [ArmValue; ROUTE_ARMS],
    pub(crate) steps: [RouteStep; ROUTE_STEPS],
}

/// A backend of a split. The id is 0 while its service is not published.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ArmValue {
    pub(crate) cumulative_weight: u64,
    pub(crate) id: u64,
    pub(crate) position: u32,
    pub(crate) unused: u32,
}

/// The policy of generation N lies in buffer N mod 2, in memory that the programs share. They discard what they decided if the
/// generation has changed meanwhile, so that a buffer that is read is never written.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PolicyBuffers {
    pub(crate) generation: AtomicU64,
    pub(crate) buffers: UnsafeCell<[PolicyValue; 2]>,
}

/// Pooled connections to an endpoint.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EndpointValue {
    /// Positions of their slots plus 1; 0 where there is none.
    pub(crate) slots: [AtomicU32; ENDPOINT_SLOTS],
    /// Set by the programs when none was idle.
    pub(crate) wanted: AtomicU32,
    /// In seconds of the programs' clock: since the server has closed a connection on which it had just responded, nothing is moved to its
    /// sockets so long.
    pub(crate) closes_until: AtomicU32,
}

/// A connection of the proxy to a server on this machine: addresses in network byte order, ports in host byte order.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct LocalConnection {
    proxy_ip: u32,
    server_ip: u32,
    proxy_port: u32,
    server_port: u32,
}

/// How much of a caller's connection the proxy has served, in memory that the programs share.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LinkValue {
    /// Of the caller; 0 while there is none.
    pub(crate) cookie: AtomicU64,
    /// [`WITHDRAWN`] while the kernel is to send nothing.
    pub(crate) bytes: AtomicU64,
    /// What the proxy has sent with the responses to these; [`UNKNOWN`] while it does not know.
    pub(crate) received: AtomicU64,
    /// Then, the requests among them that the kernel sent.
    pub(crate) requests: AtomicU64,
    /// Counted by the programs.
    pub(crate) sent: AtomicU64,
    /// Bytes that took the short cut, counted by the programs.
    pub(crate) diverted: AtomicU64,
    /// Of the response that is about to be sent, as part of `received`; 0 before it is known.
    pub(crate) length: AtomicU32,
    /// 1 once the caller has sent a request before it had read all earlier responses.
    pub(crate) pipelines: AtomicU32,
    /// Responses that were moved to the caller, counted by the programs before.
    pub(crate) moved: AtomicU64,
    /// How many of these it had read when the programs last looked.
    pub(crate) read: AtomicU64,
}

/// Requests of the callers in one cgroup, in memory that the programs share.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct GroupValue {
    /// How many the kernel may have in flight; 0 for half of all [`SLOTS`].
    pub(crate) most: AtomicU32,
    pub(crate) in_flight: AtomicU32,
    /// Of its callers in the maps: half of all [`LINKS`] at most.
    pub(crate) connections: AtomicU32,
    unused: [u32; 13],
}

/// The state of a pooled connection, in memory that the programs share.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotValue {
    pub(crate) owner: AtomicU64,
    pub(crate) claimed_ns: AtomicU64,
    /// Of the decision.
    pub(crate) seed: AtomicU64,
    pub(crate) length: AtomicU32,
    /// To which it leads. Programs may have found the slot when it led to another one.
    pub(crate) endpoint: AtomicU32,
    /// Written while the slot is absent.
    pub(crate) connection: UnsafeCell<LocalConnection>,
    /// Whether the response may go to the caller past the connection of the proxy that serves it.
    pub(crate) is_direct: AtomicU32,
    /// What the programs alone use.
    response: UnsafeCell<[u32; 2]>,
    /// Of the request.
    pub(crate) head_bytes: AtomicU32,
    /// What the programs alone use.
    programs: UnsafeCell<[u32; 3]>,
    /// Position plus 1 of the [`GroupValue`] in which the request counts; 0 where it counts no longer.
    pub(crate) group: AtomicU32,
    load: UnsafeCell<[u8; LOAD_BYTES]>,
    pub(crate) request: UnsafeCell<[u8; MAX_KEPT]>,
}

/// A call whose response the kernel sent to its caller: a [`SlotValue`] up to the head of the request, which follows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CompletedValue {
    pub(crate) cookie: u64,
    pub(crate) claimed_ns: u64,
    pub(crate) seed: u64,
    length: u32,
    pub(crate) endpoint: u32,
    connection: LocalConnection,
    is_direct: u32,
    pub(crate) status: u32,
    pub(crate) body_bytes: u32,
    pub(crate) head_bytes: u32,
    pub(crate) finished_ns: u64,
    pub(crate) load_bytes: u32,
    group: u32,
    pub(crate) load: [u8; LOAD_BYTES],
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
// SAFETY: as above.
unsafe impl Pod for HostKey {}
// SAFETY: as above.
unsafe impl Pod for ServiceValue {}
// SAFETY: as above.
unsafe impl Pod for LocalConnection {}
// SAFETY: as above.
unsafe impl Pod for CompletedValue {}

impl SelectionValue {
    /// Connections to this port of every address.
    pub(crate) fn of_port(port: u16) -> Self {
        let mut value = Self { ports: 1, ..Self::default() };
        value.port[0] = port.into();
        value
    }

    /// An address and the length of its prefix each; every address without any.
    pub(crate) fn networks(&self) -> Vec<(Ipv4Addr, u8)> {
        let networks = self.address.iter().zip(&self.mask).take(self.networks as usize);
        // Up to 32.
        let network =
            |(address, mask): (&u32, &u32)| (Ipv4Addr::from(address.to_ne_bytes()), mask.count_ones() as u8);
        networks.map(network).collect()
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        let ports = self.port.iter().take(self.ports as usize);
        ports.filter_map(|port| u16::try_from(*port).ok()).collect()
    }
}

/// An IPv4 address as it lies in memory, in network byte order.
pub(crate) fn network_order(ip: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(ip.octets())
}

impl From<SocketAddrV4> for CallerAddress {
    fn from(address: SocketAddrV4) -> Self {
        Self { ip: network_order(*address.ip()), port: address.port().into() }
    }
}

impl CallerAddress {
    /// `None` of an address that is none of IPv4.
    pub(crate) fn of(address: SocketAddr) -> Option<Self> {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, address.port()).into()),
            IpAddr::V6(_) => None,
        }
    }
}

impl LocalConnection {
    /// `None` unless both ends are on this machine: then they have the same address, or both are loopback addresses.
    pub(crate) fn new(proxy: SocketAddr, server: SocketAddr) -> Option<Self> {
        let [IpAddr::V4(proxy_ip), IpAddr::V4(server_ip)] =
            [proxy, server].map(|end| end.ip().to_canonical())
        else {
            return None;
        };
        let is_local = proxy_ip == server_ip || (proxy_ip.is_loopback() && server_ip.is_loopback());
        is_local.then(|| Self {
            proxy_ip: network_order(proxy_ip),
            server_ip: network_order(server_ip),
            proxy_port: proxy.port().into(),
            server_port: server.port().into(),
        })
    }
}

impl DestinationValue {
    /// The address that the caller connected to.
    pub(crate) fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from(self.ip.to_ne_bytes()), self.port)
    }
}

impl HostKey {
    /// `None` if the host is too long.
    pub(crate) fn new(host: &str) -> Option<Self> {
        let mut bytes = [0; HOST_BYTES];
        bytes.get_mut(..host.len())?.copy_from_slice(host.as_bytes());
        Some(Self(bytes))
    }
}

impl AttachmentValue {
    /// `None` if the path is too long.
    pub(crate) fn new(path: &str, was_created: u32, roles: u32) -> Option<Self> {
        let mut bytes = [0; PATH_BYTES];
        bytes.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
        let selection = SelectionValue::default();
        Some(Self { was_created, roles, group: 0, short_cut: 0, selection, path: bytes })
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
    /// Requests left to the proxy, which did not serve the connection yet.
    NotRegistered,
    /// Sends left to the proxy while an earlier request of the connection was in flight.
    InFlight,
    /// Sends that are no plain HTTP/1.1 request, or not a whole one.
    NotPlain,
    /// Requests that are too large.
    TooLarge,
    /// Requests to services that the proxy had not published.
    ServiceUnknown,
    /// Requests for which no pooled connection was idle.
    NoIdleConnection,
    /// Requests that could not be moved to a pooled connection.
    RedirectFailed,
    /// Requests for which an endpoint was drawn that is ejected.
    EndpointEjected,
    /// Requests whose service changed while its endpoint was picked.
    PolicyChanged,
    /// Requests that a route may match which the kernel cannot judge or carry out.
    RouteLeft,
    /// Responses of servers on this machine that the kernel sent to the callers.
    AnsweredDirectly,
    /// Responses of such servers that were left to the proxy.
    ResponseLeft,
    /// Responses of the proxy that took the short cut to the callers.
    ShortCut,
    /// Requests of cgroups of which as many were in flight as may be.
    GroupFull,
    /// Connections refused, since no proxy listened and services alone may be reached.
    Refused,
    /// Requests that the proxy sent and that took the short cut to servers on this machine.
    ForwardedRequest,
    /// Their responses that took it back to the proxy.
    ForwardedResponse,
    /// Requests left to the proxy that took it from the callers.
    MovedToProxy,
    /// Connections of sockets that block, whose data passes TCP alone.
    Blocking,
    /// Connections of programs that ask how much they can read, whose data passes TCP alone.
    ByLength,
    /// Connections beyond those that a cgroup may have in the maps, whose data passes TCP alone.
    TooManyConnections,
    /// Sockets that blocked when they first sent, and not when they connected.
    BlocksLater,
}

impl Counter {
    /// All, in the order of the map.
    pub const ALL: [Self; 25] = [
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
        Self::EndpointEjected,
        Self::PolicyChanged,
        Self::RouteLeft,
        Self::AnsweredDirectly,
        Self::ResponseLeft,
        Self::ShortCut,
        Self::GroupFull,
        Self::Refused,
        Self::ForwardedRequest,
        Self::ForwardedResponse,
        Self::MovedToProxy,
        Self::Blocking,
        Self::ByLength,
        Self::TooManyConnections,
        Self::BlocksLater,
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
            Self::EndpointEjected => "endpoint-ejected",
            Self::PolicyChanged => "policy-changed",
            Self::RouteLeft => "route",
            Self::AnsweredDirectly => "answered-directly",
            Self::ResponseLeft => "response-left",
            Self::ShortCut => "short-cut",
            Self::GroupFull => "too-many-in-flight",
            Self::Refused => "refused",
            Self::ForwardedRequest => "short-cut-requests",
            Self::ForwardedResponse => "short-cut-responses",
            Self::MovedToProxy => "short-cut-to-sidecar",
            Self::Blocking => "blocking",
            Self::ByLength => "asks-for-length",
            Self::TooManyConnections => "too-many-connections",
            Self::BlocksLater => "blocks-later",
        }
    }
}

#[cfg(test)]
mod tests;
