use serde::{Deserialize, Serialize};

use super::value_text::{read, read_duration, read_option, write_duration};
use crate::{Dollars, Egress, Invalid, MAX_ROUND_TRIP, Region, RegionInfo, Regions, RoundTrips};

/// Regions and the round trips between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopologySpec {
    /// All regions of the fleet.
    pub regions: Vec<RegionSpec>,
    /// Round trips between pairs of regions. The order within a pair does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub round_trips: Vec<RoundTripSpec>,
    /// Egress prices: prices of bytes between regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressSpec>,
}

/// One region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionSpec {
    /// The name of the region.
    pub name: String,
    /// The continent; free text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub continent: String,
    /// Regions that count as adjacent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<String>,
    /// Whether the region is draining.
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
    /// The round trip time, such as `35ms`; at most 10 s.
    pub rtt: String,
}

/// Egress prices, and their weight in plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressSpec {
    /// Price of 10⁹ bytes between two regions that have no separate price, such as `$0.02`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Separate prices, each for one direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prices: Vec<EgressPriceSpec>,
    /// Value of one millisecond less latency of one call. If left out, plans ignore egress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars_per_ms: Option<String>,
    /// Maximum egress cost of planned services per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<String>,
}

/// The price of bytes from one region to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressPriceSpec {
    /// The sending region.
    pub from: String,
    /// The receiving region.
    pub to: String,
    /// Price of 10⁹ bytes, such as `$0.08`.
    pub price: String,
}

impl TopologySpec {
    /// Validates the document. Round trips may name only declared regions.
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
        if let Some(egress) = &self.egress {
            regions.egress = egress.validate().map_err(|e| e.within("egress"))?;
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
        let egress = (regions.egress != Egress::default()).then(|| EgressSpec::of(&regions.egress));
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
        Self { regions: regions.collect(), round_trips: round_trips.collect(), egress }
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

impl EgressSpec {
    fn validate(&self) -> Result<Egress, Invalid> {
        let mut egress = Egress {
            price: read_option("price", self.price.as_ref())?.unwrap_or_default(),
            per_ms: read_option("dollarsPerMs", self.dollars_per_ms.as_ref())?,
            cap: read_option("cap", self.cap.as_ref())?,
            ..Egress::default()
        };
        for (i, spec) in self.prices.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("prices[{i}]"));
            let pair = (read("from", &spec.from).map_err(at)?, read("to", &spec.to).map_err(at)?);
            let price = read("price", &spec.price).map_err(at)?;
            if egress.prices.insert(pair, price).is_some() {
                let problem = format!("the price from {} to {} is written twice", spec.from, spec.to);
                return Err(at(Invalid::new("", problem, "write one price for each direction")));
            }
        }
        Ok(egress)
    }

    fn of(egress: &Egress) -> Self {
        let price = |((from, to), price): (&(Region, Region), &Dollars)| EgressPriceSpec {
            from: from.to_string(),
            to: to.to_string(),
            price: price.to_string(),
        };
        Self {
            price: (egress.price != Dollars::default()).then(|| egress.price.to_string()),
            prices: egress.prices.iter().map(price).collect(),
            dollars_per_ms: egress.per_ms.map(|worth| worth.to_string()),
            cap: egress.cap.map(|cap| cap.to_string()),
        }
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
