mod distance;
mod egress_prices;
mod location;

use std::{collections::BTreeMap, time::Duration};

use crate::{Invalid, Region};

pub use distance::{
    DistanceFilter, DistanceRounds, MAX_MEASURED_REGIONS, MAX_ROUND_TRIP, MeasuredDistance,
    MeasuredDistances, is_plausible,
};
pub use egress_prices::{Dollars, Egress, MAX_EGRESS_PRICES};
pub use location::Location;

/// The regions of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Properties by region.
    pub regions: BTreeMap<Region, RegionInfo>,
    /// Egress prices between regions.
    pub egress: Egress,
}

/// Properties of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// The continent, if given; free text.
    pub continent: String,
    /// Regions that count as adjacent.
    pub neighbours: Vec<Region>,
    /// Whether the region is draining. Routers in other regions send no calls to a draining region.
    pub draining: bool,
}

impl Regions {
    /// Checks that every neighbour is a declared region, and that the prices are valid.
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
        self.egress.validate(self)
    }
}

/// Round trip times between regions (ServiceRouter §3.4.1): the declared time, or the measured one if none is
/// declared. The round trip within a region counts as zero.
///
/// The `RoundTrips` record holds the declared times. Each measuring region has a record with its own measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Declared round trips by pair of regions. The alphabetically smaller name comes first.
    pairs: BTreeMap<(Region, Region), Duration>,
    /// Round trips by the region that measured them.
    measured: BTreeMap<Region, MeasuredDistances>,
}

/// The origin of a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DistanceSource {
    /// Declared in the topology, or zero within a region.
    Declared,
    /// Measured by the caller's region.
    Measured,
    /// Measured in the reverse direction, by the other region.
    MeasuredReverse,
}

impl RoundTrips {
    /// Declares the round trip between two different regions.
    pub fn set(&mut self, a: Region, b: Region, rtt: Duration) {
        self.pairs.insert(if a < b { (a, b) } else { (b, a) }, rtt);
    }

    /// Replaces the declared round trips by the record's round trips. Measured round trips stay.
    pub fn set_declared(&mut self, record: Self) {
        self.pairs = record.pairs;
    }

    /// Replaces or removes the distances that a region measured. Returns whether anything changed.
    pub fn set_measured(&mut self, from: Region, distances: Option<MeasuredDistances>) -> bool {
        let before = match &distances {
            Some(distances) => self.measured.insert(from, distances.clone()),
            None => self.measured.remove(&from),
        };
        before != distances
    }

    /// The round trip between two regions: zero within a region, `None` if unknown.
    pub fn get(&self, from: &Region, to: &Region) -> Option<Duration> {
        self.distance(from, to).map(|(round_trip, _)| round_trip)
    }

    /// Round trip and its origin. A declared round trip comes first, then the caller's own measurement, then the
    /// measurement by the other region. Measurements in both directions are equivalent.
    pub fn distance(&self, from: &Region, to: &Region) -> Option<(Duration, DistanceSource)> {
        if from == to {
            return Some((Duration::ZERO, DistanceSource::Declared));
        }
        let measured = |from, to, source| Some((self.measured(from, to)?.round_trip, source));
        let declared = self.declared(from, to).map(|rtt| (rtt, DistanceSource::Declared));
        declared
            .or_else(|| measured(from, to, DistanceSource::Measured))
            .or_else(|| measured(to, from, DistanceSource::MeasuredReverse))
    }

    /// The declared round trip between two different regions; their order does not matter.
    pub fn declared(&self, a: &Region, b: &Region) -> Option<Duration> {
        let pair = if a < b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        self.pairs.get(&pair).copied()
    }

    /// The distance that `from` measured.
    pub fn measured(&self, from: &Region, to: &Region) -> Option<MeasuredDistance> {
        self.measured.get(from)?.to.get(to).copied()
    }

    /// All regions that measured or were measured. A region may be repeated.
    pub fn measured_regions(&self) -> impl Iterator<Item = &Region> {
        self.measured.iter().flat_map(|(from, distances)| std::iter::once(from).chain(distances.to.keys()))
    }

    /// Regions that have reported measurements.
    pub fn measuring_regions(&self) -> impl Iterator<Item = &Region> {
        self.measured.keys()
    }

    /// All declared pairs with their round trips.
    pub fn iter(&self) -> impl Iterator<Item = (&Region, &Region, Duration)> {
        self.pairs.iter().map(|((a, b), rtt)| (a, b, *rtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(name: &str) -> Region {
        Region::new(name).unwrap()
    }

    fn measured(to: &str, ms: u64) -> Option<MeasuredDistances> {
        let distance = MeasuredDistance { round_trip: Duration::from_millis(ms), measured_at_ms: 1 };
        Some(MeasuredDistances { to: BTreeMap::from([(region(to), distance)]) })
    }

    #[test]
    fn declared_round_trip_takes_precedence_over_measured_ones() {
        let [eu, us] = ["eu", "us"].map(region);
        let ms = Duration::from_millis;
        let mut trips = RoundTrips::default();
        assert_eq!(trips.distance(&eu, &us), None);
        trips.set_measured(us.clone(), measured("eu", 22));
        assert_eq!(trips.distance(&eu, &us), Some((ms(22), DistanceSource::MeasuredReverse)));
        assert!(trips.set_measured(eu.clone(), measured("us", 21)));
        assert!(!trips.set_measured(eu.clone(), measured("us", 21)), "nothing changed");
        assert_eq!(trips.distance(&eu, &us), Some((ms(21), DistanceSource::Measured)));
        assert_eq!(trips.distance(&us, &eu), Some((ms(22), DistanceSource::Measured)));
        let mut declared = RoundTrips::default();
        declared.set(us.clone(), eu.clone(), ms(80));
        trips.set_declared(declared);
        assert_eq!(trips.distance(&eu, &us), Some((ms(80), DistanceSource::Declared)));
        trips.set_declared(RoundTrips::default());
        assert!(trips.set_measured(eu.clone(), None));
        assert_eq!(trips.get(&eu, &us), Some(ms(22)));
        assert_eq!(trips.get(&eu, &eu), Some(Duration::ZERO));
    }
}
