use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

use crate::{Endpoint, FULL_WEIGHT, HostType, Invalid, MAX_WEIGHT};

/// The speed of an ordinary host, in thousandths.
pub const FULL_SPEED: u32 = 1000;
/// Accepted speeds. Hosts of one fleet differ by 2 × (Uber, host-aware balancing), so more than 10 × is a typing
/// error.
const SPEED_RANGE: std::ops::RangeInclusive<u32> = FULL_SPEED / 10..=10 * FULL_SPEED;
/// Maximum number of host types, and of prefixes. Both lists are searched for every endpoint.
const MAX_ENTRIES: usize = 1024;

/// Speed of each host type in the fleet (Uber, zone weights and host-aware balancing, and assisted balancing).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    speeds: BTreeMap<HostType, u32>,
    /// Prefixes without duplicates, longest first and then by address.
    prefixes: Vec<(AddressPrefix, HostType)>,
}

/// A block of addresses, such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressPrefix {
    /// The prefix bits, followed by zeros; never an IPv4-mapped IPv6 address.
    network: IpAddr,
    length: u8,
}

impl Hosts {
    /// Creates the table from speeds, in thousandths of an ordinary host, and address prefixes for endpoints without
    /// a host type.
    ///
    /// # Errors
    /// [`Invalid`] for a speed outside 100 to 10000, a repeated prefix, a prefix whose host type has no speed, or
    /// more than 1024 host types or prefixes.
    pub fn new(
        speeds: BTreeMap<HostType, u32>,
        mut prefixes: Vec<(AddressPrefix, HostType)>,
    ) -> Result<Self, Invalid> {
        for (field, count) in [("types", speeds.len()), ("prefixes", prefixes.len())] {
            if count > MAX_ENTRIES {
                let hint = format!("write at most {MAX_ENTRIES}; hosts of equal speed may share a type");
                return Err(Invalid::new(field, format!("there are {count}"), hint));
            }
        }
        for (host_type, speed) in &speeds {
            check_speed(*speed).map_err(|e| e.within(format!("types.{host_type}")))?;
        }
        for (i, (prefix, host_type)) in prefixes.iter().enumerate() {
            if !speeds.contains_key(host_type) {
                let problem = format!("'{host_type}' has no speed");
                let hint = "name a type that is declared here, or declare it";
                return Err(Invalid::new(format!("prefixes[{i}].hostType"), problem, hint));
            }
            if prefixes[..i].iter().any(|(other, _)| other == prefix) {
                let problem = format!("{prefix} is repeated");
                return Err(Invalid::new(format!("prefixes[{i}].prefix"), problem, "write each prefix once"));
            }
        }
        prefixes.sort_by_key(|(prefix, _)| (std::cmp::Reverse(prefix.length), *prefix));
        Ok(Self { speeds, prefixes })
    }

    /// The speed of each host type.
    pub fn speeds(&self) -> &BTreeMap<HostType, u32> {
        &self.speeds
    }

    /// The prefixes, longest first.
    pub fn prefixes(&self) -> &[(AddressPrefix, HostType)] {
        &self.prefixes
    }

    /// Whether no host type is listed.
    pub fn is_empty(&self) -> bool {
        self.speeds.is_empty()
    }

    /// The host type of an endpoint: from its record, otherwise from the longest prefix that matches its address.
    pub fn host_type<'a>(&'a self, endpoint: &'a Endpoint) -> Option<&'a HostType> {
        let by_address = || {
            let address = endpoint.address.ip().to_canonical();
            let found = self.prefixes.iter().find(|(prefix, _)| prefix.contains(address));
            found.map(|(_, host_type)| host_type)
        };
        endpoint.location.host_type.as_ref().or_else(by_address)
    }

    /// The speed of an endpoint's machine, in thousandths; that of an ordinary host if unknown.
    pub fn speed(&self, endpoint: &Endpoint) -> u32 {
        let speed = self.host_type(endpoint).and_then(|host_type| self.speeds.get(host_type));
        speed.copied().unwrap_or(FULL_SPEED)
    }

    /// The capacity of an endpoint, in thousandths of an ordinary instance on an ordinary host: the endpoint's weight
    /// times its machine's speed, limited to 1 to [`MAX_WEIGHT`].
    pub fn power(&self, endpoint: &Endpoint) -> u32 {
        let power = u64::from(endpoint.weight) * u64::from(self.speed(endpoint)) / u64::from(FULL_SPEED);
        power.clamp(1, u64::from(MAX_WEIGHT)) as u32
    }
}

/// Checks the range of a speed.
///
/// # Errors
/// [`Invalid`] outside 100 to 10000.
pub(crate) fn check_speed(speed: u32) -> Result<(), Invalid> {
    if SPEED_RANGE.contains(&speed) {
        return Ok(());
    }
    Err(Invalid::new(
        "speed",
        format!("{speed} is out of range"),
        format!("write {} to {}; {FULL_WEIGHT} is an ordinary host", SPEED_RANGE.start(), SPEED_RANGE.end()),
    ))
}

impl AddressPrefix {
    /// Creates the block of all addresses that begin with the first `length` bits of `address`.
    ///
    /// # Errors
    /// [`Invalid`] if the address has fewer bits, or if a bit after the prefix is set.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, Invalid> {
        let network = address.to_canonical();
        // The first 96 bits of an IPv4-mapped IPv6 address are the mapping prefix.
        let length = if network == address { Some(length) } else { length.checked_sub(96) };
        let bits = if network.is_ipv4() { 32 } else { 128 };
        let Some(length) = length.filter(|length| *length <= bits) else {
            let hint = format!("write a length up to {bits}");
            return Err(Invalid::new("", "the prefix is longer than the address", hint));
        };
        let prefix = Self { network: masked(network, length), length };
        if prefix.network == network {
            return Ok(prefix);
        }
        Err(Invalid::new(
            "",
            format!("{network}/{length} has bits set after its prefix"),
            format!("write {prefix}"),
        ))
    }

    /// Whether the block contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.network.is_ipv4() == address.is_ipv4() && masked(address, self.length) == self.network
    }

    /// Whether the block contains all addresses of another one.
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.network)
    }
}

/// The address with all bits after the first `length` bits cleared.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - length).unwrap_or(0)).into()),
        IpAddr::V6(v6) => {
            IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - length).unwrap_or(0)).into())
        }
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

impl FromStr for AddressPrefix {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(address, length)| Some((address.parse().ok()?, length.parse().ok()?)));
        let (address, length) = parts.ok_or_else(|| {
            Invalid::new(
                "",
                format!("'{text}' is not an address prefix"),
                "write an address and a prefix length, such as 10.1.0.0/16 or fd00:1::/32",
            )
        })?;
        Self::new(address, length)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{EndpointState, InstanceId, Location, Region};

    fn prefix(text: &str) -> AddressPrefix {
        text.parse().unwrap()
    }

    fn hosts(types: &[(&str, u32)], prefixes: &[(&str, &str)]) -> Result<Hosts, Invalid> {
        let named = |name: &str| HostType::new(name).unwrap();
        let speeds = types.iter().map(|(name, speed)| (named(name), *speed)).collect();
        Hosts::new(speeds, prefixes.iter().map(|(text, name)| (prefix(text), named(name))).collect())
    }

    pub(crate) fn endpoint(address: &str, host_type: Option<&str>, weight: u32) -> Endpoint {
        let mut location = Location::in_region(Region::new("eu").unwrap());
        location.host_type = host_type.map(|name| HostType::new(name).unwrap());
        Endpoint {
            mtls: false,
            instance: InstanceId::new("a").unwrap(),
            address: address.parse().unwrap(),
            location,
            state: EndpointState::Serving,
            weight,
            lease: None,
            labels: Default::default(),
        }
    }

    #[test]
    fn explicit_host_type_takes_precedence_over_address_prefixes() {
        let hosts = hosts(
            &[("old", 700), ("new", 1400)],
            &[("10.0.0.0/8", "old"), ("10.1.0.0/16", "new"), ("fd00::/8", "new"), ("0.0.0.0/0", "old")],
        )
        .unwrap();
        let power = |address, host_type| hosts.power(&endpoint(address, host_type, 1000));
        assert_eq!(power("10.1.2.3:80", None), 1400);
        assert_eq!(power("10.2.2.3:80", None), 700);
        assert_eq!(power("[fd00::1]:80", None), 1400);
        assert_eq!(power("[::ffff:10.1.2.3]:80", None), 1400, "the same address in its other form");
        assert_eq!(power("192.0.2.1:80", None), 700, "/0 contains every IPv4 address");
        assert_eq!(power("[2001:db8::1]:80", None), 1000, "but no IPv6 address");
        assert_eq!(power("10.1.2.3:80", Some("old")), 700);
        assert_eq!(power("10.1.2.3:80", Some("unheard")), 1000, "a type without a speed is ordinary");
    }

    #[test]
    fn endpoint_weight_and_host_speed_multiply_within_bounds() {
        let hosts = hosts(&[("slow", 100), ("fast", 10_000)], &[]).unwrap();
        let power = |host_type, weight| hosts.power(&endpoint("10.0.0.1:80", Some(host_type), weight));
        assert_eq!(power("slow", 2500), 250);
        assert_eq!(power("slow", 1), 1);
        assert_eq!(power("fast", MAX_WEIGHT), MAX_WEIGHT);
    }

    #[test]
    fn invalid_hosts_error_names_its_field() {
        let field = |hosts: Result<Hosts, Invalid>| hosts.unwrap_err().field;
        assert_eq!(field(hosts(&[("a", 99)], &[])), "types.a.speed");
        assert_eq!(field(hosts(&[("a", 10_001)], &[])), "types.a.speed");
        assert_eq!(field(hosts(&[("a", 1000)], &[("10.0.0.0/8", "b")])), "prefixes[0].hostType");
        let twice = hosts(&[("a", 1000)], &[("10.0.0.0/8", "a"), ("::ffff:10.0.0.0/104", "a")]);
        assert_eq!(field(twice), "prefixes[1].prefix");
    }

    #[test]
    fn host_address_prefix_rejects_bits_after_its_length() {
        for text in ["10.1.0.0/16", "0.0.0.0/0", "10.1.2.3/32", "fd00::/8", "::/0", "::1/128"] {
            assert_eq!(prefix(text).to_string(), text);
        }
        for wrong in ["10.1.0.0", "10.1.0.0/33", "10.1/16", "fd00::/129", "/8", "::ffff:10.0.0.0/95", ""] {
            assert!(wrong.parse::<AddressPrefix>().is_err(), "{wrong}");
        }
        let refusal = "10.1.2.3/16".parse::<AddressPrefix>().unwrap_err();
        assert_eq!(refusal.hint, "write 10.1.0.0/16");
    }
}
