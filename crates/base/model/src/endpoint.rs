mod capacity;
pub(crate) mod host_speeds;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use crate::{InstanceId, Invalid, Location};

pub use capacity::{Capacities, Capacity};
pub use host_speeds::{AddressPrefix, FULL_SPEED, Hosts};

/// The weight of an instance on an ordinary host. An endpoint with twice the power has 2000.
pub const FULL_WEIGHT: u32 = 1000;
/// Maximum weight. Hosts of one fleet differ by 2 ×, rarely by 10 × (Uber, host-aware balancing), so a greater weight
/// is a typing error.
pub const MAX_WEIGHT: u32 = 100 * FULL_WEIGHT;

/// One running instance of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The stable instance id, unique within the service.
    pub instance: InstanceId,
    /// The address on which the instance listens.
    pub address: SocketAddr,
    /// The location of the instance.
    pub location: Location,
    /// The lifecycle state.
    pub state: EndpointState,
    /// Relative compute power in thousandths, 1 to [`MAX_WEIGHT`]. An instance on an ordinary host has
    /// [`FULL_WEIGHT`] (ServiceRouter §3.4.2).
    pub weight: u32,
    /// Time for which the endpoint stays live without renewal; `None` if another source controls its lifetime.
    pub lease: Option<Duration>,
    /// Whether the endpoint accepts only mutual TLS and proves its service's identity by certificate.
    pub mtls: bool,
    /// At most 32 labels, set by the owner.
    pub labels: BTreeMap<String, String>,
}

impl Endpoint {
    /// Label that distinguishes successive processes with the same instance id: a number that increases with each
    /// process.
    pub const INCARNATION: &str = "fairmesh.incarnation";
    /// Label with the name of the agent that registered the endpoint. Until the endpoint is lost, no other agent may
    /// act for it.
    pub const AGENT: &str = "fairmesh.agent";

    /// Label with the time and author of an operator's drain, set by the registry. The drain lasts until an operator
    /// ends it or the endpoint is removed.
    pub const DRAINED: &str = "fairmesh.drained";
    /// Label with the time when the endpoint was marked as lost and the reason, set by the registry. The reason is
    /// [`Self::EXPIRED`] or [`Self::REPORTED`].
    pub const LOST: &str = "fairmesh.lost";
    /// Label with the address of the pod, for an endpoint that listens on the node in front of the pod. Only gateways
    /// call such endpoints: each connection begins with a PROXY protocol header whose destination is the pod's
    /// address.
    pub const POD: &str = "fairmesh.pod";
    /// The endpoint is lost because its lease expired.
    pub const EXPIRED: &str = "expired";
    /// The endpoint is lost because its own process reported it.
    pub const REPORTED: &str = "reported";

    /// Time at which an operator drained the endpoint, in milliseconds since 1970, and the operator's name.
    pub fn drained(&self) -> Option<(u64, &str)> {
        self.noted(Self::DRAINED)
    }

    /// Time at which the endpoint was lost, in milliseconds since 1970, and the reason.
    pub fn lost(&self) -> Option<(u64, &str)> {
        self.noted(Self::LOST)
    }

    /// Whether the endpoint is lost only because its lease expired, and is not drained. Possibly only its agent died.
    pub fn is_expired(&self) -> bool {
        let expired = self.lost().is_some_and(|(_, why)| why == Self::EXPIRED);
        self.state == EndpointState::Lost && expired && self.drained().is_none()
    }

    fn noted(&self, label: &str) -> Option<(u64, &str)> {
        let (at_ms, what) = self.labels.get(label)?.split_once(' ')?;
        Some((at_ms.parse().ok()?, what))
    }

    /// The pod's address, if the endpoint listens on the node in front of the pod. Pods of two tenants may have the
    /// same address.
    pub fn pod(&self) -> Option<SocketAddr> {
        self.labels.get(Self::POD)?.parse().ok()
    }

    /// The number in the [`Self::INCARNATION`] label; 0 without the label.
    pub fn incarnation(&self) -> u64 {
        self.labels.get(Self::INCARNATION).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Checks constraints beyond the types: the address is callable, weight, lease and labels are in range, and the
    /// incarnation is a number.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            return Err(Invalid::new(
                "weight",
                format!("{} is out of range", self.weight),
                format!("write 1 to {MAX_WEIGHT}; {FULL_WEIGHT} is an ordinary host"),
            ));
        }
        check_reachable("address", self.address)?;
        if let Some(lease) = self.lease
            && !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&lease)
        {
            return Err(Invalid::new("lease", format!("{lease:?} is out of range"), "write 1s to 1h"));
        }
        // Labels set by the registry do not count towards the owner's limit.
        let own = self.labels.keys().filter(|name| ![Self::DRAINED, Self::LOST].contains(&name.as_str()));
        let labels_fit = own.count() <= 32
            && self.labels.iter().all(|(name, text)| (1..=63).contains(&name.len()) && text.len() <= 255);
        if !labels_fit {
            let hint = "keep at most 32, with names up to 63 bytes and values up to 255";
            return Err(Invalid::new("labels", "too many or too long", hint));
        }
        if let Some(text) = self.labels.get(Self::POD)
            && self.pod().is_none_or(|pod| pod.port() == 0)
        {
            let field = format!("labels.{}", Self::POD);
            let problem = format!("'{text}' is not an IP address with a port");
            return Err(Invalid::new(field, problem, "write the address of the pod, or leave it out"));
        }
        match self.labels.get(Self::INCARNATION) {
            Some(text) if text.parse::<u64>().is_err() => {
                let field = format!("labels.{}", Self::INCARNATION);
                Err(Invalid::new(field, format!("'{text}' is not a number"), "write digits, or leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// Rejects addresses that cannot be called, and addresses that reach only the caller's own machine or link. Loopback
/// is allowed, for meshes on one machine.
///
/// # Errors
/// [`Invalid`] with `field` and a remedy.
pub fn check_reachable(field: &str, address: SocketAddr) -> Result<(), Invalid> {
    check_address(field, address)?;
    check_not_of_machine(field, address)
}

/// Rejects addresses that cannot be called: unspecified, multicast and broadcast addresses, and port 0.
pub(crate) fn check_address(field: &str, address: SocketAddr) -> Result<(), Invalid> {
    let ip = address.ip().to_canonical();
    let is_broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    let (problem, hint) = match () {
        () if address.port() == 0 => {
            ("port 0 cannot be called".to_owned(), "write the port that it listens on")
        }
        () if ip.is_unspecified() => {
            let hint = "write the address by which callers reach it, even if it listens on all addresses";
            (format!("{ip} means every address of a machine"), hint)
        }
        () if ip.is_multicast() || is_broadcast => {
            (format!("{ip} is the address of many machines"), "write the address of one")
        }
        () => return Ok(()),
    };
    Err(Invalid::new(field, problem, hint))
}

/// Addresses of cloud metadata services outside the link-local ranges: AWS over IPv6, and Alibaba.
const METADATA: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

/// Whether an address belongs to the caller's own machine or link. These are:
/// - link-local addresses (RFC 3927, RFC 4291 §2.5.6), where clouds serve credentials;
/// - other addresses of cloud metadata services.
///
/// Loopback addresses are not included.
pub fn is_of_link(ip: IpAddr) -> bool {
    let ip = embedded_ipv4(ip).map_or_else(|| ip.to_canonical(), IpAddr::V4);
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_link_local || METADATA.contains(&ip)
}

/// The IPv4 address to which a gateway would translate an IPv6 address: NAT64 (RFC 6052), 6to4 (RFC 3056), and
/// IPv4-compatible addresses (RFC 4291 2.5.5.1).
fn embedded_ipv4(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let of_halves = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of_halves(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(of_halves(high, low)),
        [0x2002, high, low, ..] => Some(of_halves(high, low)),
        _ => None,
    }
}

/// Refuses addresses that every machine uses for its own services, since a caller would reach its own machine.
/// Loopback is allowed, for meshes on one machine.
fn check_not_of_machine(field: &str, address: SocketAddr) -> Result<(), Invalid> {
    let ip = address.ip().to_canonical();
    if !is_of_link(ip) {
        return Ok(());
    }
    let problem = format!(
        "{ip} is for services of the caller's own machine or link, such as the credentials of a cloud"
    );
    Err(Invalid::new(field, problem, "write an address by which other machines reach it"))
}

/// The lifecycle state of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "spec", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "spec", serde(rename_all = "lowercase"))]
pub enum EndpointState {
    /// The endpoint runs but is not ready. It receives no calls.
    Starting,
    /// The endpoint receives calls.
    #[default]
    Serving,
    /// The endpoint is about to stop. It receives no new calls and finishes calls in flight (ServiceRouter §3.2).
    Draining,
    /// The lease expired or probes failed. The endpoint receives calls only as a last resort.
    Lost,
}

impl EndpointState {
    /// The state's name for users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Lost => "lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_accepts_only_callable_addresses() {
        let checked = |text: &str| check_address("address", text.parse().unwrap());
        for wrong in [
            "0.0.0.0:80",
            "[::]:80",
            "[::ffff:0.0.0.0]:80",
            "224.0.0.1:80",
            "[ff02::1]:80",
            "255.255.255.255:80",
            "[::ffff:255.255.255.255]:80",
            "10.0.0.1:0",
        ] {
            assert_eq!(checked(wrong).unwrap_err().field, "address", "{wrong}");
        }
        for right in ["10.0.0.1:80", "127.0.0.1:80", "[::1]:80", "[fe80::1]:80", "10.0.0.255:80"] {
            checked(right).unwrap();
        }
    }

    #[test]
    fn link_local_and_metadata_addresses_are_refused_but_not_loopback() {
        let checked = |text: &str| check_not_of_machine("address", text.parse().unwrap());
        for wrong in [
            "169.254.169.254:80",
            "169.254.0.1:80",
            "[::ffff:169.254.169.254]:80",
            "[::169.254.169.254]:80",
            "[64:ff9b::a9fe:a9fe]:80",
            "[2002:a9fe:a9fe::1]:80",
            "[fe80::1]:80",
            "[fd00:ec2::254]:80",
            "100.100.100.200:80",
        ] {
            assert_eq!(checked(wrong).unwrap_err().field, "address", "{wrong}");
        }
        for right in ["127.0.0.1:80", "[::1]:80", "10.0.0.1:80", "[fd00::1]:80", "100.100.100.201:80"] {
            checked(right).unwrap();
        }
    }
}
