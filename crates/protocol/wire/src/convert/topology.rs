//! Regions, the distances between them, and prices of egress: `Regions`, `RoundTrips` and `Egress` of `records.proto`.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{
    Dollars, Egress, Invalid, MeasuredDistance, MeasuredDistances, Region, RegionInfo, Regions, RoundTrips,
};

use super::policy::micros;
use crate::v1;

impl From<Regions> for v1::Regions {
    fn from(regions: Regions) -> Self {
        let message = |(region, info): (Region, RegionInfo)| {
            let neighbours = info.neighbours.into_iter().map(Into::into).collect();
            let info = v1::RegionInfo { continent: info.continent, neighbours, draining: info.draining };
            (region.into(), info)
        };
        let has_egress = regions.egress != Egress::default();
        Self {
            egress: has_egress.then(|| regions.egress.into()),
            regions: regions.regions.into_iter().map(message).collect(),
        }
    }
}

impl TryFrom<v1::Regions> for Regions {
    type Error = Invalid;

    fn try_from(message: v1::Regions) -> Result<Self, Invalid> {
        let mut regions = BTreeMap::new();
        for (name, info) in message.regions {
            let at = |e: Invalid| e.within(format!("regions.{name}"));
            let neighbours = info.neighbours.into_iter().map(Region::try_from).collect::<Result<_, _>>();
            let neighbours = neighbours.map_err(|e| at(e.within("neighbours")))?;
            let info = RegionInfo { continent: info.continent, neighbours, draining: info.draining };
            regions.insert(Region::new(&name).map_err(at)?, info);
        }
        let egress = message.egress.map(Egress::try_from).transpose().map_err(|e| e.within("egress"))?;
        let regions = Self { regions, egress: egress.unwrap_or_default() };
        regions.validate()?;
        Ok(regions)
    }
}

impl From<Egress> for v1::Egress {
    fn from(egress: Egress) -> Self {
        let price = |((from, to), price): ((Region, Region), Dollars)| v1::EgressPrice {
            from: from.into(),
            to: to.into(),
            price: price.picodollars(),
        };
        Self {
            price: egress.price.picodollars(),
            prices: egress.prices.into_iter().map(price).collect(),
            per_ms: egress.per_ms.map(Dollars::picodollars),
            cap: egress.cap.map(Dollars::picodollars),
        }
    }
}

impl TryFrom<v1::Egress> for Egress {
    type Error = Invalid;

    fn try_from(message: v1::Egress) -> Result<Self, Invalid> {
        let mut prices = BTreeMap::new();
        for (i, price) in message.prices.into_iter().enumerate() {
            let at = |e: Invalid| e.within(format!("prices[{i}]"));
            let from = Region::try_from(price.from).map_err(|e| at(e.within("from")))?;
            let to = Region::try_from(price.to).map_err(|e| at(e.within("to")))?;
            if prices.insert((from, to), Dollars::of_picodollars(price.price)).is_some() {
                return Err(at(Invalid::new("", "repeats a pair of regions", "give every pair once")));
            }
        }
        Ok(Self {
            price: Dollars::of_picodollars(message.price),
            prices,
            per_ms: message.per_ms.map(Dollars::of_picodollars),
            cap: message.cap.map(Dollars::of_picodollars),
        })
    }
}

impl From<RoundTrips> for v1::RoundTrips {
    fn from(round_trips: RoundTrips) -> Self {
        let pair = |(a, b, rtt): (&Region, &Region, Duration)| v1::RoundTrip {
            a: a.clone().into(),
            b: b.clone().into(),
            rtt_us: micros(rtt),
        };
        Self { pairs: round_trips.iter().map(pair).collect() }
    }
}

impl TryFrom<v1::RoundTrips> for RoundTrips {
    type Error = Invalid;

    fn try_from(message: v1::RoundTrips) -> Result<Self, Invalid> {
        let mut round_trips = Self::default();
        for (i, pair) in message.pairs.into_iter().enumerate() {
            let at = |e: Invalid| e.within(format!("pairs[{i}]"));
            let a = Region::try_from(pair.a).map_err(|e| at(e.within("a")))?;
            let b = Region::try_from(pair.b).map_err(|e| at(e.within("b")))?;
            if a == b || round_trips.declared(&a, &b).is_some() {
                let problem = format!("{a} and {b} are the same region, or a repeated pair");
                return Err(at(Invalid::new("", problem, "give every pair of different regions once")));
            }
            round_trips.set(a, b, Duration::from_micros(pair.rtt_us));
        }
        Ok(round_trips)
    }
}

impl From<MeasuredDistances> for v1::MeasuredDistances {
    fn from(distances: MeasuredDistances) -> Self {
        let one = |(region, distance): (Region, MeasuredDistance)| v1::MeasuredDistance {
            region: region.into(),
            rtt_us: micros(distance.round_trip),
            measured_at_ms: distance.measured_at_ms,
        };
        Self { to: distances.to.into_iter().map(one).collect() }
    }
}

impl TryFrom<v1::MeasuredDistances> for MeasuredDistances {
    type Error = Invalid;

    fn try_from(message: v1::MeasuredDistances) -> Result<Self, Invalid> {
        let mut distances = Self::default();
        for (i, v1::MeasuredDistance { region, rtt_us, measured_at_ms }) in message.to.into_iter().enumerate()
        {
            let at = |e: Invalid| e.within(format!("to[{i}]"));
            let region = Region::try_from(region).map_err(|e| at(e.within("region")))?;
            let distance = MeasuredDistance { round_trip: Duration::from_micros(rtt_us), measured_at_ms };
            if distances.to.insert(region, distance).is_some() {
                return Err(at(Invalid::new("region", "is repeated", "give every region once")));
            }
        }
        distances.validate()?;
        Ok(distances)
    }
}
