use std::{collections::BTreeMap, time::Duration};

use crate::{Invalid, Region};

/// The regions of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Properties by region.
    pub regions: BTreeMap<Region, RegionInfo>,
}

/// Properties of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// The continent, if given; free text.
    pub continent: String,
    /// Regions that count as adjacent.
    pub neighbours: Vec<Region>,
    /// Whether it is draining: routers in other regions send it no calls.
    pub draining: bool,
}

impl Regions {
    /// Checks that every neighbour is itself a region.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (region, info) in &self.regions {
            for neighbour in &info.neighbours {
                if neighbour == region || !self.regions.contains_key(neighbour) {
                    return Err(Invalid::new(
                        format!("regions.{region}.neighbours"),
                        format!("'{neighbour}' is not another region of this file"),
                        "name a region that is declared here, or declare it",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Round-trip times between regions (ServiceRouter §3.4.1). Within a region they count as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Round trip by unordered pair; the smaller name first.
    pairs: BTreeMap<(Region, Region), Duration>,
}

impl RoundTrips {
    /// Records the round trip between two different regions.
    pub fn set(&mut self, a: Region, b: Region, rtt: Duration) {
        self.pairs.insert(if a < b { (a, b) } else { (b, a) }, rtt);
    }

    /// The round trip between two regions: zero within one, `None` if it is unknown.
    pub fn get(&self, a: &Region, b: &Region) -> Option<Duration> {
        if a == b {
            return Some(Duration::ZERO);
        }
        let pair = if a < b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        self.pairs.get(&pair).copied()
    }

    /// Every known pair.
    pub fn iter(&self) -> impl Iterator<Item = (&Region, &Region, Duration)> {
        self.pairs.iter().map(|((a, b), rtt)| (a, b, *rtt))
    }
}
