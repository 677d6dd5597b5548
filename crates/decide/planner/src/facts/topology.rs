use std::collections::BTreeMap;

use fairmesh_model::{Hosts, Region, RegionDrain, Regions, RoundTrips};

/// What a region that a topology declares as draining keeps: its own callers, and no others.
const KEEPS_OWN: f64 = 1.0 - 1e-6;

/// Regions and their distances.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopologyFacts {
    /// Grows whenever any of the facts changes.
    pub version: u64,
    /// Declared regions.
    pub regions: Regions,
    /// Declared and measured round trips.
    pub round_trips: RoundTrips,
    /// Types of hosts, and their speeds.
    pub hosts: Hosts,
    /// Drains of whole regions.
    pub drains: BTreeMap<Region, StoredDrain>,
}

/// A drain as it stands in the routing information base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredDrain {
    /// The drain.
    pub drain: RegionDrain,
    /// The revision that wrote it.
    pub revision: u64,
}

impl TopologyFacts {
    /// The share of its own calls that a region may keep; below 1 it gets none of others.
    pub fn keep(&self, region: &Region) -> f64 {
        let drains = self.regions.regions.get(region).is_some_and(|info| info.draining);
        let declared = if drains { KEEPS_OWN } else { 1.0 };
        let drained = self.drains.get(region).map(|stored| f64::from(stored.drain.keep.millionths()) / 1e6);
        drained.map_or(declared, |keep| keep.min(declared))
    }
}
