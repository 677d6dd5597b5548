//! Shares of calls by region, and drains of regions: `RegionTable` and the planner's part of `Policy` in `records.proto`.

use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{
    Confirmation, Invalid, Label, LoadMetric, LoadRing, Region, RegionDrain, RegionShares, RegionTable,
    Share, TableOrigin, Traffic, TrafficMode, TrafficPlanner, TrafficShares, Zone, ZoneShares,
};

use super::{policy::rings, read_enum, required};
use crate::v1::{
    self,
    traffic::{Mode, Planner},
};

impl From<RegionDrain> for v1::RegionDrain {
    fn from(drain: RegionDrain) -> Self {
        Self {
            keep: drain.keep.millionths(),
            returns: drain.returns,
            over_ms: u64::try_from(drain.over.as_millis()).unwrap_or(u64::MAX),
            began_at_ms: drain.began_at_ms,
        }
    }
}

impl TryFrom<v1::RegionDrain> for RegionDrain {
    type Error = Invalid;

    fn try_from(message: v1::RegionDrain) -> Result<Self, Invalid> {
        let drain = Self {
            keep: Share::of_millionths(message.keep).map_err(|e| e.within("keep"))?,
            returns: message.returns,
            over: Duration::from_millis(message.over_ms),
            began_at_ms: message.began_at_ms,
        };
        drain.validate()?;
        Ok(drain)
    }
}

impl From<Traffic> for v1::Traffic {
    fn from(traffic: Traffic) -> Self {
        let planner = match traffic.planner {
            None => Planner::None,
            Some(TrafficPlanner::Rings) => Planner::Rings,
            Some(TrafficPlanner::Optimizer) => Planner::Optimizer,
        };
        let mode = match traffic.mode {
            TrafficMode::Active => Mode::Active,
            TrafficMode::Shadow => Mode::Shadow,
            TrafficMode::Hold => Mode::Hold,
        };
        let ring = |LoadRing { ring, load }: &LoadRing| v1::LoadRing {
            ring: Some(rings::message(ring)),
            load: load.millionths(),
        };
        let source = |(from, shares): (Region, TrafficShares)| v1::SourceShares {
            from: from.into(),
            shares: write_shares(shares),
        };
        Self {
            planner: planner.into(),
            mode: mode.into(),
            shares: traffic.shares.into_iter().map(source).collect(),
            rings: traffic.rings.iter().map(ring).collect(),
            classes: traffic.classes.into_iter().map(String::from).collect(),
            load: traffic.load.map(|LoadMetric { name, full_scale }| v1::LoadMetric { name, full_scale }),
        }
    }
}

impl TryFrom<v1::Traffic> for Traffic {
    type Error = Invalid;

    fn try_from(message: v1::Traffic) -> Result<Self, Invalid> {
        let planner = match read_enum("planner", message.planner)? {
            Planner::None => None,
            Planner::Rings => Some(TrafficPlanner::Rings),
            Planner::Optimizer => Some(TrafficPlanner::Optimizer),
        };
        let mode = match read_enum("mode", message.mode)? {
            Mode::Active => TrafficMode::Active,
            Mode::Shadow => TrafficMode::Shadow,
            Mode::Hold => TrafficMode::Hold,
        };
        let rings = message.rings.into_iter().enumerate();
        let rings = rings.map(|(i, ring)| read_load_ring(&ring).map_err(|e| e.within(format!("rings[{i}]"))));
        let classes = message.classes.into_iter().map(Label::new);
        let mut shares = BTreeMap::new();
        for (i, source) in message.shares.into_iter().enumerate() {
            let at = |e: Invalid| e.within(format!("shares[{i}]"));
            let from = Region::try_from(source.from).map_err(|e| at(e.within("from")))?;
            let of_region = read_shares(source.shares).map_err(at)?;
            if shares.insert(from, of_region).is_some() {
                return Err(at(Invalid::new("from", "is repeated", "give every region once")));
            }
        }
        // Validated together with the policy.
        Ok(Self {
            planner,
            mode,
            shares,
            rings: rings.collect::<Result<_, Invalid>>()?,
            classes: classes.collect::<Result<_, Invalid>>().map_err(|e| e.within("classes"))?,
            load: message.load.map(|load| LoadMetric { name: load.name, full_scale: load.full_scale }),
        })
    }
}

fn read_load_ring(message: &v1::LoadRing) -> Result<LoadRing, Invalid> {
    let ring = required("ring", message.ring.as_ref())?;
    let load = Share::of_millionths(message.load).map_err(|e| e.within("load"))?;
    Ok(LoadRing { ring: rings::read_ring(ring)?, load })
}

impl From<RegionTable> for v1::RegionTable {
    fn from(table: RegionTable) -> Self {
        let confirmed = match table.origin {
            TableOrigin::ByHand => None,
            TableOrigin::Planned(Confirmation { round, at_ms }) => Some(v1::Confirmation { round, at_ms }),
        };
        let zone = |(from, to): (Zone, ZoneShares)| v1::ZoneShares {
            from: from.into(),
            to: to
                .into_iter()
                .map(|(zone, share)| v1::ZoneShare { zone: zone.into(), share: share.millionths() })
                .collect(),
        };
        let zones = table.zones.into_iter().map(zone).collect();
        let subsets =
            table.subsets.into_iter().map(|(region, endpoints)| (region.into(), endpoints)).collect();
        Self { shares: write_shares(table.shares), zones, confirmed, subsets }
    }
}

impl TryFrom<v1::RegionTable> for RegionTable {
    type Error = Invalid;

    fn try_from(message: v1::RegionTable) -> Result<Self, Invalid> {
        let origin = match message.confirmed {
            None => TableOrigin::ByHand,
            Some(v1::Confirmation { round, at_ms }) => TableOrigin::Planned(Confirmation { round, at_ms }),
        };
        let zones = read_zones(message.zones)?;
        let subset = |(region, endpoints)| Ok((Region::try_from(region)?, endpoints));
        let subsets = message.subsets.into_iter().map(subset).collect::<Result<_, Invalid>>();
        let subsets = subsets.map_err(|e| e.within("subsets"))?;
        let table = Self { shares: read_shares(message.shares)?, zones, subsets, origin };
        table.validate()?;
        Ok(table)
    }
}

fn read_zones(message: Vec<v1::ZoneShares>) -> Result<BTreeMap<Zone, ZoneShares>, Invalid> {
    let mut zones = BTreeMap::new();
    for (i, v1::ZoneShares { from, to }) in message.into_iter().enumerate() {
        let at = |e: Invalid| e.within(format!("zones[{i}]"));
        let share = |v1::ZoneShare { zone, share }| {
            Ok((Zone::try_from(zone)?, Share::of_millionths(share).map_err(|e| e.within("share"))?))
        };
        let to = to.into_iter().map(share).collect::<Result<ZoneShares, Invalid>>().map_err(at)?;
        zones.insert(Zone::try_from(from).map_err(|e| at(e.within("from")))?, to);
    }
    Ok(zones)
}

/// Converts shares by class to messages.
pub fn write_shares(shares: TrafficShares) -> Vec<v1::RegionShares> {
    let one = |(class, shares): (String, RegionShares)| v1::RegionShares {
        class,
        to: shares
            .to
            .into_iter()
            .map(|(region, share)| v1::RegionShare { region: region.into(), share: share.millionths() })
            .collect(),
        dropped: shares.dropped.millionths(),
    };
    let default = shares.default.map(|shares| (String::new(), shares));
    let classes = shares.classes.into_iter().map(|(class, shares)| (class.into(), shares));
    default.into_iter().chain(classes).map(one).collect()
}

/// Parses shares by class.
pub fn read_shares(message: Vec<v1::RegionShares>) -> Result<TrafficShares, Invalid> {
    let mut shares = TrafficShares::default();
    for (i, v1::RegionShares { class, to, dropped }) in message.into_iter().enumerate() {
        let at = |e: Invalid| e.within(format!("shares[{i}]"));
        let one = read_class(to, dropped).map_err(at)?;
        let before = match class.as_str() {
            "" => shares.default.replace(one),
            class => shares.classes.insert(Label::new(class).map_err(|e| at(e.within("class")))?, one),
        };
        if before.is_some() {
            return Err(at(Invalid::new("class", "is repeated", "give every class once")));
        }
    }
    Ok(shares)
}

fn read_class(message: Vec<v1::RegionShare>, dropped: u32) -> Result<RegionShares, Invalid> {
    let mut to = BTreeMap::new();
    for (i, v1::RegionShare { region, share }) in message.into_iter().enumerate() {
        let at = |e: Invalid| e.within(format!("to[{i}]"));
        let region = Region::try_from(region).map_err(|e| at(e.within("region")))?;
        let share = Share::of_millionths(share).map_err(|e| at(e.within("share")))?;
        if to.insert(region, share).is_some() {
            return Err(at(Invalid::new("region", "is repeated", "give every region once")));
        }
    }
    Ok(RegionShares { to, dropped: Share::of_millionths(dropped).map_err(|e| e.within("dropped"))? })
}
