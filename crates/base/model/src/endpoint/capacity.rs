//! Capacity of a service by location: the summed power of its endpoints (Uber, zone weights and host-aware
//! balancing). Ten instances of power 1200 count as twelve.
//!
//! Capacity belongs to the model rather than to the router, since it follows from records alone. `explain` and
//! `describe` show it, and region shares are computed from it.

use std::collections::BTreeMap;

use crate::{Endpoint, EndpointState, Hosts, InstanceId, Location, Region, Zone};

/// Capacity of a service in one location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of serving endpoints.
    pub endpoints: u64,
    /// Total power of these endpoints, in thousandths of an ordinary instance on an ordinary host.
    pub power: u64,
}

/// Capacity of a service in all locations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacities {
    /// Capacity of all locations together.
    pub total: Capacity,
    /// Capacity by region.
    pub regions: BTreeMap<Region, Capacity>,
    /// Capacity by region and zone; the zone is `None` for endpoints without one.
    pub zones: BTreeMap<(Region, Option<Zone>), Capacity>,
}

impl Capacity {
    /// This capacity as a fraction of `whole`, in thousandths, rounded to the nearest thousandth; 0 if `whole` is
    /// zero.
    pub fn thousandths_of(self, whole: Self) -> u32 {
        let whole_power = u128::from(whole.power.max(1));
        let part = (u128::from(self.power) * 1000 + whole_power / 2) / whole_power;
        u32::try_from(part).unwrap_or(u32::MAX)
    }

    fn add(&mut self, power: u32) {
        self.endpoints += 1;
        self.power += u64::from(power);
    }
}

impl Capacities {
    /// Sums the power of serving endpoints. An instance that is moving may have two records, but counts once.
    pub fn of<'a>(endpoints: impl IntoIterator<Item = &'a Endpoint>, hosts: &Hosts) -> Self {
        let mut once = std::collections::BTreeSet::<&InstanceId>::new();
        let mut capacities = Self::default();
        for endpoint in endpoints {
            if endpoint.state == EndpointState::Serving && once.insert(&endpoint.instance) {
                capacities.add(&endpoint.location, hosts.power(endpoint));
            }
        }
        capacities
    }

    /// Adds a serving endpoint.
    pub fn add(&mut self, Location { region, zone, .. }: &Location, power: u32) {
        self.total.add(power);
        self.regions.entry(region.clone()).or_default().add(power);
        self.zones.entry((region.clone(), zone.clone())).or_default().add(power);
    }

    /// The zones of a region.
    pub fn zones_of<'a>(&'a self, region: &'a Region) -> impl Iterator<Item = (Option<&'a Zone>, Capacity)> {
        let here = self.zones.iter().filter(move |((of, _), _)| of == region);
        here.map(|((_, zone), capacity)| (zone.as_ref(), *capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostType;

    fn endpoint(id: &str, place: (&str, &str), host_type: &str, weight: u32) -> Endpoint {
        let mut location = Location::in_region(Region::new(place.0).unwrap());
        location.zone = Some(Zone::new(place.1).unwrap());
        location.host_type = Some(HostType::new(host_type).unwrap());
        Endpoint {
            mtls: false,
            instance: InstanceId::new(id).unwrap(),
            address: "10.0.0.1:80".parse().unwrap(),
            location,
            state: EndpointState::Serving,
            weight,
            lease: None,
            labels: Default::default(),
        }
    }

    #[test]
    fn capacity_of_ten_instances_on_fast_hosts_counts_as_twelve() {
        let fast = HostType::new("fast").unwrap();
        let hosts = Hosts::new([(fast, 1200)].into(), Vec::new()).unwrap();
        let mut endpoints: Vec<_> =
            (0..10).map(|i| endpoint(&format!("f{i}"), ("eu", "a"), "fast", 1000)).collect();
        endpoints.extend((0..4).map(|i| endpoint(&format!("u{i}"), ("us", "b"), "usual", 1000)));
        endpoints.extend((0..4).map(|i| endpoint(&format!("h{i}"), ("us", "c"), "usual", 500)));
        let mut gone = endpoint("gone", ("us", "c"), "usual", 1000);
        gone.state = EndpointState::Draining;
        endpoints.push(gone);
        endpoints.push(endpoint("u0", ("asia", "b"), "usual", 1000));
        let capacities = Capacities::of(&endpoints, &hosts);
        assert_eq!(capacities.total, Capacity { endpoints: 18, power: 18_000 });
        let share = |region: &str| capacities.regions[region].thousandths_of(capacities.total);
        assert_eq!((share("eu"), share("us")), (667, 333));
        assert_eq!(capacities.regions.len(), 2, "a moving instance counts in its first record");
        let us = Region::new("us").unwrap();
        let zones: Vec<_> =
            capacities.zones_of(&us).map(|(zone, c)| (zone.unwrap().as_str(), c.power)).collect();
        assert_eq!(zones, [("b", 4000), ("c", 2000)]);
    }

    #[test]
    fn share_of_zero_total_capacity_is_zero() {
        assert_eq!(Capacity::default().thousandths_of(Capacity::default()), 0);
    }
}
