//! Map values, as declared in `bpf/lib/shared.h`. Tests compare both declarations.
#![allow(unsafe_code, reason = "values of maps are read and written as bytes")]

use std::{
    cell::UnsafeCell,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
    sync::atomic::{AtomicU32, AtomicU64},
};

use aya::Pod;
use fairmesh_balancer::BLOCK_ENDPOINTS;
use fairmesh_router::{ROUTE_ARMS, ROUTE_STEPS, RouteStep, ServiceNumbers};

/// Maximum number of networks, and of ports, in a selection.
pub(crate) const SELECTED: usize = 8;
pub(crate) const PATH_BYTES: usize = 256;
/// Roles of the programs in a cgroup.
pub(crate) const CALLERS: u32 = 1;
pub(crate) const SERVERS: u32 = 2;
/// Added to the roles of a cgroup that stays attached when its programs have ended: not only for a container.
pub(crate) const KEPT: u32 = 4;
/// Maximum length of a request that the kernel sends, head and body, in bytes.
pub const MAX_REQUEST: usize = 64 * 1024;
/// Maximum length of a request that the kernel keeps completely, in bytes. Of a longer request, it keeps only the
/// head.
pub(crate) const MAX_KEPT: usize = 2048;
/// Maximum length of the host of a published service, in bytes.
pub(crate) const HOST_BYTES: usize = 64;
/// Maximum number of published services.
pub(crate) const SERVICES: u32 = 1024;
/// Number of endpoints of all services. Block B of statistics holds the endpoints from B * BLOCK_ENDPOINTS
/// on.
pub(crate) const ENDPOINTS: u32 = SERVICES * BLOCK_ENDPOINTS as u32;
/// Maximum number of attached cgroups.
pub(crate) const ATTACHMENTS: u32 = 64;
/// Maximum number of pooled connections to one endpoint, and in total.
pub(crate) const ENDPOINT_SLOTS: usize = 64;
pub(crate) const SLOTS: u32 = 8192;
/// Maximum number of callers' connections.
pub(crate) const LINKS: u32 = 65_536;
pub(crate) const UNKNOWN: u64 = u64::MAX;
pub(crate) const WITHDRAWN: u64 = u64::MAX;
/// Maximum length of a load report in a response that the kernel sends to its caller, in bytes.
pub(crate) const LOAD_BYTES: usize = 128;
/// Maximum number of endpoints with a permit, and maximum length of the fields in one, in bytes.
pub(crate) const PERMITS: u32 = 192;
pub(crate) const PERMIT_BYTES: usize = 512;
/// Added to the port of the proxy in a [`LocalConnection`] over IPv6.
pub(crate) const OVER_IPV6: u32 = 1 << 16;
/// Values of a slot's owner for absent and idle slots. Any other value is the cookie of a caller's socket.
pub(crate) const SLOT_ABSENT: u64 = 0;
pub(crate) const SLOT_IDLE: u64 = u64::MAX;

/// An IPv6 address in network byte order, as it lies in memory. An IPv4 address is mapped (`::ffff:a.b.c.d`).
pub(crate) type MappedAddress = [u32; 4];

/// Length of the prefix of all mapped IPv4 addresses.
const MAPPED_PREFIX: u8 = 96;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SelectionValue {
    pub(crate) networks: u32,
    pub(crate) ports: u32,
    pub(crate) address: [MappedAddress; SELECTED],
    pub(crate) mask: [MappedAddress; SELECTED],
    pub(crate) port: [u32; SELECTED],
    /// 1 if only services may be reached.
    pub(crate) only_services: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AttachmentValue {
    /// Number of directories that `attach` created: the cgroup and its missing parents.
    pub(crate) was_created: u32,
    /// [`CALLERS`] or [`SERVERS`] or both, and [`KEPT`] or not.
    pub(crate) roles: u32,
    /// Position of the [`GroupValue`] for the callers in this cgroup.
    pub(crate) group: u32,
    /// 1 if the proxy's responses to the callers take the short cut.
    pub(crate) short_cut: u32,
    /// The callers' connects to redirect.
    pub(crate) selection: SelectionValue,
    pub(crate) path: [u8; PATH_BYTES],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ProxyConfig {
    pub(crate) netns_cookie: u64,
    pub(crate) pid: u32,
    /// 1 if only services may be reached. Stays in force after the proxy stops listening.
    pub(crate) only_services: u32,
    /// Where the proxy takes listeners of containers, as in a [`ContainerSocket`](crate::ContainerSocket); 0 if it takes none.
    pub(crate) container_socket: u32,
    pub(crate) unused: u32,
}

/// The address of a caller. Containers may have equal addresses; the namespace tells them apart.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CallerAddress {
    netns_cookie: u64,
    ip: u32,
    port: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DestinationValue {
    pub(crate) cookie: u64,
    ip: MappedAddress,
    port: u16,
    pub(crate) only_services: u8,
    /// 1 if all data goes through TCP.
    pub(crate) by_tcp: u8,
    unused: u32,
}

/// The host that names a service in requests, padded with zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct HostKey([u8; HOST_BYTES]);

/// Position and id of a service's policy. The id is unique, even if the position is reused.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ServiceValue {
    pub(crate) id: u64,
    pub(crate) position: u32,
    pub(crate) unused: u32,
}

/// A published service, for which the programs pick endpoints.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PolicyValue {
    /// The id from the [`ServiceValue`]; 0 without a policy.
    pub(crate) id: u64,
    /// Start of the clock used for picks, as a reading of the programs' clock.
    pub(crate) origin: u64,
    /// The block with the statistics of the candidates.
    pub(crate) block: u32,
    /// 1 if requests with any method may be retried.
    pub(crate) repeats_any: u32,
    pub(crate) numbers: ServiceNumbers,
    pub(crate) step_count: u32,
    pub(crate) unused_count: u32,
    pub(crate) arms: [ArmValue; ROUTE_ARMS],
    pub(crate) steps: [RouteStep; ROUTE_STEPS],
}

/// A backend of a split. The id is 0 while the backend's service is not published.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ArmValue {
    pub(crate) cumulative_weight: u64,
    pub(crate) id: u64,
    pub(crate) position: u32,
    pub(crate) unused: u32,
}

/// Double buffer of a policy in shared memory: generation N is in buffer N mod 2. A program discards its decision if
/// the generation has changed meanwhile. The proxy may therefore always write the other buffer.
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
    /// Slot positions plus 1; 0 for an empty entry.
    pub(crate) slots: [AtomicU32; ENDPOINT_SLOTS],
    /// Set by the programs when they find no idle connection.
    pub(crate) wanted: AtomicU32,
    /// Time until which nothing is moved to the server's sockets, in seconds of the programs' clock, because the
    /// server closed a connection right after a response.
    pub(crate) closes_until: AtomicU32,
}

/// A connection of the proxy to a server on this machine: addresses in network byte order, ports in host byte order. Over IPv6, the
/// address of both ends is a number of it, and [`OVER_IPV6`] is added to the port of the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LocalConnection {
    proxy_ip: u32,
    server_ip: u32,
    proxy_port: u32,
    server_port: u32,
}

/// Progress of the proxy in serving a caller's connection. In memory shared with the programs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LinkValue {
    /// The caller's socket; 0 if the link is unused.
    pub(crate) cookie: AtomicU64,
    /// Bytes of requests that the proxy has served; [`WITHDRAWN`] stops the kernel from sending.
    pub(crate) bytes: AtomicU64,
    /// Bytes of the proxy's responses to these requests; [`UNKNOWN`] if the proxy cannot tell.
    pub(crate) received: AtomicU64,
    /// Number of those responses that belong to requests that the kernel sent.
    pub(crate) requests: AtomicU64,
    /// Number of requests sent by the kernel, excluding completed calls. Counted by the programs.
    pub(crate) sent: AtomicU64,
    /// Bytes that took the short cut. Counted by the programs.
    pub(crate) diverted: AtomicU64,
    /// Length of the response about to be sent, which is part of `received`; 0 before it is known.
    pub(crate) length: AtomicU32,
    /// 1 once the caller has sent a request before it read all earlier responses.
    pub(crate) pipelines: AtomicU32,
    /// Responses moved to the caller. The programs count them before moving them.
    pub(crate) moved: AtomicU64,
    /// Number of moved responses that the caller had read when the programs last looked.
    pub(crate) read: AtomicU64,
}

/// Requests of one cgroup's callers. In memory shared with the programs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct GroupValue {
    /// Limit of requests in flight in the kernel; 0 means half of all [`SLOTS`].
    pub(crate) most: AtomicU32,
    pub(crate) in_flight: AtomicU32,
    /// Connections of the callers in the maps: at most half of all [`LINKS`].
    pub(crate) connections: AtomicU32,
    unused: [u32; 13],
}

/// State of a pooled connection. In memory shared with the programs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotValue {
    pub(crate) owner: AtomicU64,
    pub(crate) claimed_ns: AtomicU64,
    /// The seed of the routing decision and the pick.
    pub(crate) seed: AtomicU64,
    pub(crate) length: AtomicU32,
    /// The endpoint of the connection. A program may have found the slot while it belonged to another
    /// endpoint.
    pub(crate) endpoint: AtomicU32,
    /// Written only while the slot is absent.
    pub(crate) connection: UnsafeCell<LocalConnection>,
    /// Whether the response may bypass the proxy's connection to the caller.
    pub(crate) is_direct: AtomicU32,
    /// Used only by the programs.
    response: UnsafeCell<[u32; 2]>,
    /// Length of the request's head.
    pub(crate) head_bytes: AtomicU32,
    /// Used only by the programs.
    programs: UnsafeCell<[u32; 3]>,
    /// Position plus 1 of the [`GroupValue`] that counts the request; 0 once the request no longer counts.
    pub(crate) group: AtomicU32,
    /// Position plus 1 of the [`PermitValue`] that requests on this connection need; 0 if they need none. Written only
    /// while the slot is absent.
    pub(crate) permit: AtomicU32,
    unused: u32,
    load: UnsafeCell<[u8; LOAD_BYTES]>,
    pub(crate) request: UnsafeCell<[u8; MAX_KEPT]>,
}

/// A completed call: the start of a [`SlotValue`], followed by the request's head.
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
    permit: u32,
    unused: u32,
    pub(crate) load: [u8; LOAD_BYTES],
}

/// What the server of an endpoint permits to this proxy's callers. In memory shared with the programs, which discard what
/// they read while the generation was odd or changed.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PermitValue {
    pub(crate) generation: AtomicU64,
    /// End of the permit, as a reading of the programs' clock in nanoseconds; 0 while nothing is permitted.
    pub(crate) until: AtomicU64,
    /// The endpoint, as in slots.
    pub(crate) endpoint: AtomicU32,
    /// Length of the fields in bytes, a multiple of 8.
    pub(crate) length: AtomicU32,
    pub(crate) fields: [AtomicU64; PERMIT_BYTES / 8],
}

// SAFETY: each type is `repr(C)`, consists of integers without padding, and accepts any bytes.
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
    /// Selects connections to this port at every address.
    pub(crate) fn of_port(port: u16) -> Self {
        let mut value = Self { ports: 1, ..Self::default() };
        value.port[0] = port.into();
        value
    }

    /// Selects connections to a network at this position: to an address with a prefix of this length.
    pub(crate) fn set_network(&mut self, at: usize, (address, prefix): (IpAddr, u8)) {
        let (address, prefix) = match address {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), MAPPED_PREFIX + prefix.min(32)),
            IpAddr::V6(ip) => (ip, prefix.min(128)),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        self.mask[at] = words(Ipv6Addr::from_bits(mask));
        self.address[at] = words(Ipv6Addr::from_bits(address.to_bits() & mask));
    }

    /// The selected networks: addresses with prefix lengths. An empty list selects every address.
    pub(crate) fn networks(&self) -> Vec<(IpAddr, u8)> {
        let network = |(address, mask): (&MappedAddress, &MappedAddress)| {
            // Cannot truncate: at most 128 bits are set.
            let prefix = of_words(mask).to_bits().count_ones() as u8;
            match (of_words(address).to_ipv4_mapped(), prefix.checked_sub(MAPPED_PREFIX)) {
                (Some(ip), Some(prefix)) => (IpAddr::V4(ip), prefix),
                _ => (IpAddr::V6(of_words(address)), prefix),
            }
        };
        self.address.iter().zip(&self.mask).take(self.networks as usize).map(network).collect()
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        let ports = self.port.iter().take(self.ports as usize);
        ports.filter_map(|port| u16::try_from(*port).ok()).collect()
    }
}

fn words(ip: Ipv6Addr) -> MappedAddress {
    let mut words = MappedAddress::default();
    for (word, octets) in words.iter_mut().zip(ip.octets().as_chunks().0) {
        *word = u32::from_ne_bytes(*octets);
    }
    words
}

fn of_words(words: &MappedAddress) -> Ipv6Addr {
    let mut octets = [0; 16];
    for (octets, word) in octets.as_chunks_mut().0.iter_mut().zip(words) {
        *octets = word.to_ne_bytes();
    }
    Ipv6Addr::from(octets)
}

/// An IPv4 address in network byte order, as it lies in memory.
pub(crate) fn network_order(ip: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(ip.octets())
}

impl CallerAddress {
    /// The address in the network namespace with this cookie. `None` if the address is not IPv4.
    pub(crate) fn of(address: SocketAddr, netns_cookie: u64) -> Option<Self> {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => Some(Self { netns_cookie, ip: network_order(ip), port: address.port().into() }),
            IpAddr::V6(_) => None,
        }
    }
}

impl LocalConnection {
    /// The connection, or `None` unless both ends are on this machine: they have the same address, or both
    /// are loopback addresses. `number` returns the number of an IPv6 address.
    pub(crate) fn new(
        proxy: SocketAddr,
        server: SocketAddr,
        number: impl FnOnce(MappedAddress) -> Option<u32>,
    ) -> Option<Self> {
        let [proxy_ip, server_ip] = [proxy, server].map(|end| end.ip().to_canonical());
        let (proxy_ip, server_ip, family) = match (proxy_ip, server_ip) {
            (IpAddr::V4(one), IpAddr::V4(other))
                if one == other || (one.is_loopback() && other.is_loopback()) =>
            {
                (network_order(one), network_order(other), 0)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) if one == other => {
                let number = number(words(one))?;
                (number, number, OVER_IPV6)
            }
            _ => return None,
        };
        let proxy_port = u32::from(proxy.port()) | family;
        Some(Self { proxy_ip, server_ip, proxy_port, server_port: server.port().into() })
    }
}

impl DestinationValue {
    /// The address that the caller connected to.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(of_words(&self.ip).to_canonical(), self.port)
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

/// Counters of the programs, in the order of C's `enum counter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Connections redirected to the proxy.
    Redirected,
    /// Connections made directly, since no proxy listened.
    NoProxy,
    /// Requests sent by the kernel.
    SentByKernel,
    /// Requests left to the proxy, because it did not serve the connection yet.
    NotRegistered,
    /// Sends left to the proxy while an earlier request of the connection was in flight.
    InFlight,
    /// Sends that do not contain a complete, plain HTTP/1.1 request.
    NotPlain,
    /// Requests that are too large for the kernel to send.
    TooLarge,
    /// Requests to services that the proxy had not published.
    ServiceUnknown,
    /// Requests for which no pooled connection was idle.
    NoIdleConnection,
    /// Requests that could not be moved to a pooled connection.
    RedirectFailed,
    /// Requests for which the picked endpoint is ejected.
    EndpointEjected,
    /// Requests whose policy changed while their endpoint was picked.
    PolicyChanged,
    /// Requests that may match a route that the kernel cannot evaluate.
    RouteLeft,
    /// Responses of servers on this machine that the kernel sent to the callers.
    AnsweredDirectly,
    /// Responses of servers on this machine that were left to the proxy.
    ResponseLeft,
    /// Responses of the proxy that took the short cut to the callers.
    ShortCut,
    /// Requests of cgroups at their limit of requests in flight.
    GroupFull,
    /// Connections refused, because no proxy listened and only services may be reached.
    Refused,
    /// Requests of the proxy that took the short cut to servers on this machine.
    ForwardedRequest,
    /// Responses that took the short cut back to the proxy.
    ForwardedResponse,
    /// Requests left to the proxy that took the short cut from the callers.
    MovedToProxy,
    /// Connections of blocking sockets; their data passes TCP.
    Blocking,
    /// Connections of programs that query the readable length (`FIONREAD`); their data passes TCP.
    ByLength,
    /// Connections beyond a cgroup's limit in the maps; their data passes TCP.
    TooManyConnections,
    /// Sockets that became blocking between connect and first send.
    BlocksLater,
    /// Requests sent by the kernel to servers that others reach by mutual TLS.
    Permitted,
    /// Requests to such servers that were left to the proxy, because no permit was in force.
    NotPermitted,
    /// Connections made directly over IPv6, since they cannot lead to the proxy, which listens on an IPv4 address.
    Ipv6Left,
}

impl Counter {
    /// All counters, in the order of the map.
    pub const ALL: [Self; 28] = [
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
        Self::Permitted,
        Self::NotPermitted,
        Self::Ipv6Left,
    ];

    /// The name in metrics and JSON.
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
            Self::Permitted => "in-place-of-mtls",
            Self::NotPermitted => "not-permitted",
            Self::Ipv6Left => "ipv6-direct",
        }
    }
}

#[cfg(test)]
mod tests;
