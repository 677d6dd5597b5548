use fairmesh_model::{Hosts, Location, MeasuredDistances, Region, Regions, RoundTrips, ServiceName};
use fairmesh_wire::transport::Transport;

use crate::call::Clock;

/// The topology and the caller's place in it. All services are compiled with these inputs.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) regions: Regions,
    pub(super) round_trips: RoundTrips,
    pub(super) hosts: Hosts,
    /// Location of the caller, once known.
    pub(super) location: Option<Location>,
    pub(super) client_id: String,
    /// Hash of `client_id`.
    pub(super) client: u64,
    /// The caller's own service; `None` if the caller is not a service.
    pub(super) caller: Option<ServiceName>,
    /// How the caller connects. The transport may know a trust domain before its roots arrive as records.
    pub(super) transport: Transport,
    /// Whether the records contain the roots of a trust domain.
    pub(super) has_trust_domain: bool,
    /// Clock of the caller's picks, by which the caller's own evidence is dated.
    pub(super) clock: Clock,
    /// Whether the caller authorizes the calls of its own callers.
    pub(super) authorizes_callers: bool,
}

impl Topology {
    /// Whether endpoints must speak mutual TLS, unless the policy of their service permits plaintext. If this process
    /// has an identity, a process of the mesh cannot weaken this by hiding the roots from it.
    pub(super) fn requires_mtls(&self) -> bool {
        self.has_trust_domain || self.transport.secures_mesh()
    }

    pub(super) fn location_or_unknown(&self) -> Location {
        self.location.clone().unwrap_or_else(|| {
            // "nowhere" is a well-formed region name. As no round trip to it is known, all regions are equally far.
            Location::in_region(Region::new("nowhere").unwrap_or_else(|_| unreachable!("a valid name")))
        })
    }

    /// Replaces the distances measured by a region, or removes them. Returns whether a distance of this caller changed.
    pub(super) fn set_measured(&mut self, from: &Region, distances: Option<MeasuredDistances>) -> bool {
        let home = self.location_or_unknown().region;
        let to_home = |trips: &RoundTrips| trips.measured(from, &home).map(|distance| distance.round_trip);
        let before = to_home(&self.round_trips);
        let changed = self.round_trips.set_measured(from.clone(), distances);
        changed && (home == *from || to_home(&self.round_trips) != before)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use fairmesh_model::MeasuredDistance;

    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    #[test]
    fn only_changed_distances_from_callers_region_recompile_services() {
        let location = Some(Location::in_region(region("eu")));
        let (regions, round_trips, hosts) = Default::default();
        let mut topology = Topology {
            regions,
            round_trips,
            hosts,
            location,
            client_id: String::new(),
            client: 0,
            caller: None,
            transport: Transport::default(),
            has_trust_domain: false,
            clock: Clock::start(),
            authorizes_callers: false,
        };
        let to = |pairs: &[(&str, u64)]| {
            let pair = |(name, ms): &(&str, u64)| {
                let round_trip = Duration::from_millis(*ms);
                (region(name), MeasuredDistance { round_trip, measured_at_ms: *ms })
            };
            Some(MeasuredDistances { to: pairs.iter().map(pair).collect::<BTreeMap<_, _>>() })
        };
        let [eu, us] = ["eu", "us"].map(region);
        assert!(topology.set_measured(&eu, to(&[("us", 20)])));
        assert!(!topology.set_measured(&eu, to(&[("us", 20)])), "the same");
        assert!(!topology.set_measured(&us, to(&[("ap", 50)])), "of others");
        assert!(topology.set_measured(&us, to(&[("ap", 50), ("eu", 21)])), "the reverse direction");
        assert!(!topology.set_measured(&us, to(&[("ap", 70), ("eu", 21)])));
        assert!(topology.set_measured(&us, None));
    }
}
