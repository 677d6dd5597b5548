use std::collections::BTreeMap;

use fairmesh_model::{EndpointState, Force, Locality, Region, ReplicaState, Ring};

use crate::{Facts, Reach};

/// The regions as one caller sees them: which rings they lie in, and so in which order it turns to their endpoints.
///
/// The order is one number, the rank; the lowest rank that has a candidate is used (ServiceRouter §3.4.1). Ranks ascend by class, then
/// regions that are not being emptied before those that are, then by ring.
#[derive(Debug)]
pub(crate) struct Horizon {
    home: Region,
    rings: Vec<Ring>,
    /// By name.
    regions: Box<[(Region, Reach)]>,
}

/// Whether an endpoint should be called, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// It serves.
    Serving,
    /// It serves, and gives up its copy of the shard.
    Stopping,
    /// It serves, and active checks say that it is not well.
    Unhealthy,
    /// It should not be called and may still answer.
    LastResort,
}

impl Class {
    /// The class of an endpoint of which active checks speak with this force, or `None` of one that may not be called at
    /// all.
    pub(crate) fn of(state: EndpointState, force: Force) -> Option<Self> {
        match state {
            EndpointState::Starting => None,
            EndpointState::Serving => Some(match force {
                Force::None => Self::Serving,
                Force::Penalty => Self::Unhealthy,
                Force::Exclusion => Self::LastResort,
            }),
            // One class: preferring the few that drain to the many that were lost at once would overrun those.
            EndpointState::Draining | EndpointState::Lost => Some(Self::LastResort),
        }
    }

    /// The class of a copy at an endpoint of this class, or `None` of one that may not be called at all.
    pub(crate) fn of_copy(endpoint: Self, copy: ReplicaState) -> Option<Self> {
        let class = match copy {
            ReplicaState::Starting => return None,
            ReplicaState::Serving => Self::Serving,
            ReplicaState::Stopping => Self::Stopping,
        };
        Some(endpoint.max(class))
    }
}

impl Horizon {
    /// The reach of a region without endpoints, which nobody asks for.
    pub(crate) const NOWHERE: Reach = Reach { ring: None, round_trip: None, draining: false };

    pub(crate) fn new(facts: &Facts<'_>) -> Self {
        let Locality { rings, local_only } = &facts.policy.locality;
        let rings = if rings.is_empty() { Locality::default_rings() } else { rings.clone() };
        let mut regions = BTreeMap::new();
        for endpoint in facts.endpoints {
            let region = &endpoint.location.region;
            if !regions.contains_key(region) {
                regions.insert(region.clone(), reach(facts, &rings, *local_only, region));
            }
        }
        // A tree takes as much for one region as for ten, and most services have one.
        Self { home: facts.location.region.clone(), rings, regions: regions.into_iter().collect() }
    }

    /// Every region that has an endpoint.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (&Region, &Reach)> {
        self.regions.iter().map(|(region, reach)| (region, reach))
    }

    /// The caller's own region.
    pub(crate) fn home(&self) -> &Region {
        &self.home
    }

    /// The reach of a region that has an endpoint.
    pub(crate) fn reach(&self, region: &Region) -> &Reach {
        let found = self.regions.binary_search_by(|(known, _)| known.cmp(region));
        found.map_or(&Self::NOWHERE, |at| &self.regions[at].1)
    }

    /// Where endpoints of this class and reach come in the order, or `None` when the policy does not let the caller go.
    pub(crate) fn rank(&self, class: Class, reach: &Reach) -> Option<u32> {
        let rings = self.rings.len() as u32;
        let drained = if reach.draining { rings } else { 0 };
        reach.ring.map(|ring| class as u32 * 2 * rings + drained + u32::from(ring))
    }

    /// The first rank of what should rather not be called.
    pub(crate) fn last_resort(&self) -> u32 {
        2 * self.rings.len() as u32
    }

    /// The rank in words.
    pub(crate) fn describe(&self, rank: u32) -> String {
        let rings = self.rings.len() as u32;
        let ring = rank % rings;
        let bound = match self.rings[ring as usize].within {
            Some(within) => format!("ring {ring} (within {within:?})"),
            None => format!("ring {ring} (any distance)"),
        };
        let drained = if rank % (2 * rings) >= rings { " of draining regions" } else { "" };
        let class = match rank / (2 * rings) {
            0 => "",
            1 => ", only copies that stop",
            2 => ", only endpoints that active checks found unhealthy",
            _ => ", only draining, lost or surely unhealthy endpoints, as a last resort",
        };
        format!("{bound}{drained}{class}")
    }
}

fn reach(facts: &Facts<'_>, rings: &[Ring], local_only: bool, region: &Region) -> Reach {
    let own = *region == facts.location.region;
    let round_trip = facts.round_trips.get(&facts.location.region, region);
    let ring = match round_trip {
        _ if local_only && !own => None,
        Some(rtt) => rings.iter().position(|ring| ring.within.is_none_or(|within| rtt <= within)),
        // Nobody measured it yet, which is no reason to fail a call that finds nothing nearer.
        None => Some(rings.len() - 1),
    };
    Reach {
        ring: ring.map(|ring| u16::try_from(ring).unwrap_or(u16::MAX)),
        round_trip,
        // Callers inside a region that is being emptied go on using it: they leave with it.
        draining: !own && facts.regions.regions.get(region).is_some_and(|info| info.draining),
    }
}
