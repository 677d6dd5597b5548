use serde::{Deserialize, Serialize};

use super::text::{read, read_duration, write_duration};
use crate::{Invalid, MAX_ROUND_TRIP, Region, RegionInfo, Regions, RoundTrips};

/// Regions and the round trips between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologySpec {
    /// Every region of the fleet.
    pub regions: Vec<RegionSpec>,
    /// Round trips between two regions; the order of the two does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub round_trips: Vec<RoundTripSpec>,
}

/// One region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionSpec {
    /// Its name.
    pub name: String,
    /// The continent; free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub continent: String,
    /// Regions that count as adjacent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<String>,
    /// Whether it is draining.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// The round trip between two regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoundTripSpec {
    /// The two regions.
    pub between: [String; 2],
    /// Such as `35ms`; at most 10 s.
    pub rtt: String,
}

impl TopologySpec {
    /// Validates; round trips may only name declared regions.
    pub fn validate(&self) -> Result<(Regions, RoundTrips), Invalid> {
        let mut regions = Regions::default();
        for (i, spec) in self.regions.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("regions[{i}]"));
            let (region, info) = spec.validate().map_err(at)?;
            if regions.regions.insert(region, info).is_some() {
                let problem = format!("'{}' is declared twice", spec.name);
                return Err(at(Invalid::new("name", problem, "declare every region once")));
            }
        }
        regions.validate()?;
        let mut round_trips = RoundTrips::default();
        for (i, spec) in self.round_trips.iter().enumerate() {
            spec.add(&regions, &mut round_trips).map_err(|e| e.within(format!("roundTrips[{i}]")))?;
        }
        Ok((regions, round_trips))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(regions: &Regions, round_trips: &RoundTrips) -> Self {
        let regions = regions.regions.iter().map(|(region, info)| RegionSpec {
            name: region.to_string(),
            continent: info.continent.clone(),
            neighbours: info.neighbours.iter().map(ToString::to_string).collect(),
            draining: info.draining,
        });
        let round_trips = round_trips.iter().map(|(a, b, rtt)| RoundTripSpec {
            between: [a.to_string(), b.to_string()],
            rtt: write_duration(rtt),
        });
        Self { regions: regions.collect(), round_trips: round_trips.collect() }
    }
}

impl RegionSpec {
    fn validate(&self) -> Result<(Region, RegionInfo), Invalid> {
        let neighbours =
            self.neighbours.iter().enumerate().map(|(i, name)| read(&format!("neighbours[{i}]"), name));
        let info = RegionInfo {
            continent: self.continent.clone(),
            neighbours: neighbours.collect::<Result<_, _>>()?,
            draining: self.draining,
        };
        Ok((read("name", &self.name)?, info))
    }
}

impl RoundTripSpec {
    fn add(&self, regions: &Regions, round_trips: &mut RoundTrips) -> Result<(), Invalid> {
        let mut ends = Vec::with_capacity(2);
        for (i, name) in self.between.iter().enumerate() {
            let field = format!("between[{i}]");
            let region: Region = read(&field, name)?;
            if !regions.regions.contains_key(&region) {
                let problem = format!("'{region}' is not a region of this file");
                return Err(Invalid::new(
                    field,
                    problem,
                    "name a region that is declared here, or declare it",
                ));
            }
            ends.push(region);
        }
        let [a, b] = [&ends[0], &ends[1]];
        if a == b {
            let problem = format!("'{a}' is on both sides");
            return Err(Invalid::new(
                "between",
                problem,
                "name two regions; within one the round trip counts as zero",
            ));
        }
        if round_trips.declared(a, b).is_some() {
            let problem = format!("{a} and {b} have a round trip already");
            return Err(Invalid::new("between", problem, "write one round trip a pair"));
        }
        let rtt = read_duration(&self.rtt).map_err(|e| e.within("rtt"))?;
        if rtt.is_zero() || rtt > MAX_ROUND_TRIP {
            let problem = format!("'{}' is out of range", self.rtt);
            return Err(Invalid::new("rtt", problem, "write 1us to 10s"));
        }
        round_trips.set(a.clone(), b.clone(), rtt);
        Ok(())
    }
}
