use std::{collections::BTreeMap, time::Duration};

use crate::{Invalid, Region};

/// The regions of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Each region with what is known of it.
    pub regions: BTreeMap<Region, RegionInfo>,
}

/// What is known of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// The continent it lies on, if told; free text.
    pub continent: String,
    /// Regions that count as next to it.
    pub neighbours: Vec<Region>,
    /// Whether it is being emptied: routers elsewhere send it nothing.
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

/// Round-trip times between regions (ServiceRouter §3.4.1). Within a region they are short enough to count as zero.
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

    /// The round trip between two regions: zero within one, `None` where nobody measured.
    pub fn get(&self, a: &Region, b: &Region) -> Option<Duration> {
        if a == b {
            return Some(Duration::ZERO);
        }
        let pair = if a < b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        self.pairs.get(&pair).copied()
    }

    /// Every measured pair.
    pub fn iter(&self) -> impl Iterator<Item = (&Region, &Region, Duration)> {
        self.pairs.iter().map(|((a, b), rtt)| (a, b, *rtt))
    }
}
