//! Ports and networks as arguments.

use std::{fmt, net::IpAddr, str::FromStr};

use fairmesh_model::Invalid;

/// The default port of HTTP.
pub(super) const HTTP: Ports = Ports { first: 80, last: 80 };

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) is_ipv4: bool,
    /// Name in nftables rules.
    pub(super) keyword: &'static str,
    /// The option of `ip` that selects the family.
    pub(super) option: &'static str,
    /// The network that contains all addresses of the family.
    pub(super) everywhere: &'static str,
}

/// Both families.
pub(super) const FAMILIES: [Family; 2] = [
    Family { is_ipv4: true, keyword: "ip", option: "-4", everywhere: "0.0.0.0/0" },
    Family { is_ipv4: false, keyword: "ip6", option: "-6", everywhere: "::/0" },
];

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ports {
    first: u16,
    last: u16,
}

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network {
    pub(super) address: IpAddr,
    bits: u8,
}

pub(super) fn list<T: fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<_> = all.into_iter().map(|one| one.to_string()).collect();
    all.join(", ")
}

/// Sorts and merges ports, because nftables refuses ranges that overlap.
pub(super) fn merged(ports: &[Ports]) -> Vec<Ports> {
    let mut sorted = ports.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<Ports> = Vec::new();
    for ports in sorted {
        match merged.last_mut() {
            Some(last) if ports.first <= last.last.saturating_add(1) => last.last = last.last.max(ports.last),
            _ => merged.push(ports),
        }
    }
    merged
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

impl FromStr for Ports {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = first.parse().ok().zip(last.parse().ok()).map(|(first, last)| Self { first, last });
        let sound = ports.filter(|ports| ports.first > 0 && ports.first <= ports.last);
        sound.ok_or_else(|| {
            let problem = format!("'{text}' is not a port");
            Invalid::new("", problem, "write one as 80, or a range as 8000-8099")
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || {
            let problem = format!("'{text}' is not a network");
            Invalid::new("", problem, "write 10.0.0.0/8, fd00::/8 or a single address")
        };
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { address: network(address, bits), bits })
    }
}

/// Returns the network address: all bits except the first `bits` are cleared.
fn network(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into())
        }
        IpAddr::V6(v6) => {
            IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into())
        }
    }
}
