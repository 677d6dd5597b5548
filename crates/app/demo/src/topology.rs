//! Topology of the demo: three regions, their round trips, and their servers.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// A region of the demo. Its programs call from a loopback address that only this region uses, by which the relay
/// identifies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DemoRegion {
    /// Name of the region.
    pub name: &'static str,
    octet: u8,
}

/// The regions; the control plane runs in the first.
pub(super) const REGIONS: [DemoRegion; 3] = [
    DemoRegion { name: "eu", octet: 1 },
    DemoRegion { name: "us", octet: 2 },
    DemoRegion { name: "ap", octet: 3 },
];

/// Round-trip times in milliseconds, in the order of [`REGIONS`].
const ROUND_TRIPS_MS: [[u64; 3]; 3] = [[0, 20, 60], [20, 0, 50], [60, 50, 0]];

impl DemoRegion {
    /// The region with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        REGIONS.into_iter().find(|place| place.name == name)
    }

    /// The address that programs of this region call from.
    pub(super) fn address(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(127, 0, self.octet, 1))
    }

    fn of(address: IpAddr) -> Option<Self> {
        REGIONS.into_iter().find(|place| place.address() == address)
    }

    fn index(self) -> usize {
        usize::from(self.octet) - 1
    }

    /// The round trip to another region.
    pub(super) fn round_trip(self, other: Self) -> Duration {
        Duration::from_millis(ROUND_TRIPS_MS[self.index()][other.index()])
    }

    /// One-way delay from a caller at `address` to this region; zero if the address belongs to no region.
    pub(super) fn one_way_from(self, address: IpAddr) -> Duration {
        Self::of(address).map_or(Duration::ZERO, |caller| self.round_trip(caller) / 2)
    }
}

/// The documents applied before anything starts.
pub(super) const DECLARATIONS: &str = include_str!("shop.yaml");

/// Number of servers of a service in each region, in the order of [`REGIONS`].
pub(super) const SERVERS: [(&str, [u32; 3]); 4] = [
    ("catalog", [2, 2, 2]),
    ("cart", [2, 2, 2]),
    ("checkout", [2, 1, 1]),
    // No payment server in ap: its checkouts pay in another region.
    ("payment", [2, 2, 0]),
];

/// Instances of the fleet's own services, as service, region and instance ID.
pub(super) fn instances() -> impl Iterator<Item = (&'static str, DemoRegion, String)> {
    SERVERS.into_iter().flat_map(|(service, counts)| {
        REGIONS.into_iter().zip(counts).flat_map(move |(place, count)| {
            (0..count).map(move |n| (service, place, format!("{service}-{}-{n}", place.name)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_topology_round_trips_are_symmetric() {
        for a in REGIONS {
            for b in REGIONS {
                assert_eq!(a.round_trip(b), b.round_trip(a));
                assert_eq!(b.one_way_from(a.address()), a.round_trip(b) / 2);
            }
        }
    }
}
