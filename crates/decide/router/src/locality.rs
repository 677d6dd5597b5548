use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{EndpointState, Locality, Region, Regions, ReplicaState, Ring, VerdictEffect, Zone};

use crate::{CompileInput, RegionDistance};

/// The regions from the view of one caller: their rings, and the order in which their endpoints are used.
///
/// The order is expressed as a single number, the rank. The lowest rank with a candidate is used (ServiceRouter
/// §3.4.1). Ranks ascend by preference class first; within a class, draining regions come after others; then ranks
/// ascend by ring.
#[derive(Debug)]
pub(crate) struct RegionRanks {
    home: Region,
    /// Whether the caller's own region is draining, for explanations. Callers inside a draining region keep using it.
    is_home_draining: bool,
    /// The caller's zone, if calls prefer it.
    zone: Option<Zone>,
    rings: Vec<Ring>,
    /// Regions with their distances, sorted by name.
    regions: Box<[(Region, RegionDistance)]>,
}

/// Preference for an endpoint, from highest to lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PreferenceClass {
    /// The endpoint serves.
    Serving,
    /// The endpoint serves, but its copy of the shard is being moved away.
    Stopping,
    /// The endpoint serves, but active health checks report it as probably unhealthy.
    Unhealthy,
    /// Calls should avoid the endpoint, but it may still respond.
    LastResort,
}

impl PreferenceClass {
    /// Returns the class of an endpoint from its state and the effect of verdicts and expired leases; `None` if it may
    /// not be called at all.
    pub(crate) fn of(state: EndpointState, effect: VerdictEffect) -> Option<Self> {
        match state {
            EndpointState::Starting => None,
            EndpointState::Serving | EndpointState::Lost => Some(match effect {
                VerdictEffect::None => Self::Serving,
                VerdictEffect::Penalty => Self::Unhealthy,
                VerdictEffect::Exclusion => Self::LastResort,
            }),
            // Draining endpoints share the class of lost ones. After many are lost at once, preferring the few draining
            // ones would overload them.
            EndpointState::Draining => Some(Self::LastResort),
        }
    }

    /// Returns the class of a shard copy at an endpoint of class `endpoint`; `None` if the copy may not be called at
    /// all.
    pub(crate) fn of_copy(endpoint: Self, copy: ReplicaState) -> Option<Self> {
        let class = match copy {
            ReplicaState::Starting => return None,
            ReplicaState::Serving => Self::Serving,
            ReplicaState::Stopping => Self::Stopping,
        };
        Some(endpoint.max(class))
    }
}

impl RegionRanks {
    /// Distance of a region without endpoints; never used for calls.
    pub(crate) const UNREACHABLE: RegionDistance =
        RegionDistance { ring: None, round_trip: None, source: None, draining: false };

    pub(crate) fn new(input: &CompileInput<'_>) -> Self {
        let Locality { rings, zone_first, local_only } = &input.policy.locality;
        let rings = if rings.is_empty() { Locality::default_rings() } else { rings.clone() };
        let mut regions = BTreeMap::new();
        for endpoint in input.endpoints {
            let region = &endpoint.location.region;
            if !regions.contains_key(region) {
                regions.insert(region.clone(), distance(input, &rings, *local_only, region));
            }
        }
        // A `BTreeMap` takes as much memory for one region as for ten, and most services have one.
        let zone = input.location.zone.clone().filter(|_| *zone_first);
        let home = input.location.region.clone();
        let is_home_draining = input.regions.regions.get(&home).is_some_and(|info| info.draining);
        Self { home, is_home_draining, zone, rings, regions: regions.into_iter().collect() }
    }

    /// All regions with an endpoint.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (&Region, &RegionDistance)> {
        self.regions.iter().map(|(region, distance)| (region, distance))
    }

    /// The caller's own region.
    pub(crate) fn home(&self) -> &Region {
        &self.home
    }

    /// Whether the caller's own region is draining.
    pub(crate) fn is_home_draining(&self) -> bool {
        self.is_home_draining
    }

    /// The caller's own zone, if calls prefer it.
    pub(crate) fn zone(&self) -> Option<&Zone> {
        self.zone.as_ref()
    }

    /// The distance of a region with an endpoint.
    pub(crate) fn distance(&self, region: &Region) -> &RegionDistance {
        let found = self.regions.binary_search_by(|(known, _)| known.cmp(region));
        found.map_or(&Self::UNREACHABLE, |at| &self.regions[at].1)
    }

    /// Returns the rank of endpoints with this class and distance; `None` if the policy does not let the caller use the
    /// region.
    pub(crate) fn rank(&self, class: PreferenceClass, distance: &RegionDistance) -> Option<u32> {
        let rings = self.rings.len() as u32;
        let drained = if distance.draining { rings } else { 0 };
        distance.ring.map(|ring| class as u32 * 2 * rings + drained + u32::from(ring))
    }

    /// The lowest rank of endpoints that calls should avoid.
    pub(crate) fn last_resort(&self) -> u32 {
        2 * self.rings.len() as u32
    }

    /// Describes a rank for explanations.
    pub(crate) fn describe(&self, rank: u32) -> String {
        let rings = self.rings.len() as u32;
        let ring = rank % rings;
        let bound = match self.rings[ring as usize] {
            Ring::Within(within) => format!("ring {ring} (within {within:?})"),
            Ring::Region => format!("ring {ring} (the caller's region)"),
            Ring::Neighbours => format!("ring {ring} (neighbours)"),
            Ring::Continent => format!("ring {ring} (the caller's continent)"),
            Ring::Any => format!("ring {ring} (any distance)"),
        };
        let drained = if rank % (2 * rings) >= rings { " of draining regions" } else { "" };
        let class = match rank / (2 * rings) {
            0 => "",
            1 => ", only copies that stop",
            2 => ", only endpoints that active checks found unhealthy",
            _ => ", only draining, lost or certainly unhealthy endpoints, as a last resort",
        };
        format!("{bound}{drained}{class}")
    }
}

fn distance(input: &CompileInput<'_>, rings: &[Ring], local_only: bool, region: &Region) -> RegionDistance {
    let own = *region == input.location.region;
    let (round_trip, source) = input.round_trips.distance(&input.location.region, region).unzip();
    let ring = match round_trip {
        _ if local_only && !own => None,
        _ if own => Some(0),
        _ => {
            let pair = (&input.location.region, region);
            let included = rings.iter().position(|ring| includes(ring, input.regions, pair, round_trip));
            // An unknown distance counts as the farthest, so that a call without nearer candidates does not fail.
            let unknown = round_trip.is_none() && matches!(rings.last(), Some(Ring::Within(_)));
            included.or_else(|| unknown.then(|| rings.len() - 1))
        }
    };
    RegionDistance {
        ring: ring.map(|ring| u16::try_from(ring).unwrap_or(u16::MAX)),
        round_trip,
        source,
        // Callers inside a draining region keep using it, because they move away together with it.
        draining: !own && input.regions.regions.get(region).is_some_and(|info| info.draining),
    }
}

/// Whether a caller's ring includes another region at this round trip.
fn includes(
    ring: &Ring,
    regions: &Regions,
    (home, other): (&Region, &Region),
    rtt: Option<Duration>,
) -> bool {
    let info = |region| regions.regions.get(region);
    match ring {
        Ring::Region => false,
        Ring::Within(bound) => rtt.is_some_and(|rtt| rtt <= *bound),
        Ring::Neighbours => info(home).is_some_and(|home| home.neighbours.contains(other)),
        Ring::Continent => match (info(home), info(other)) {
            (Some(home), Some(other)) => !home.continent.is_empty() && home.continent == other.continent,
            _ => false,
        },
        Ring::Any => true,
    }
}
