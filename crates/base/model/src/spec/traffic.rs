use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    policy::{NONE, read_ring},
    value_text::{read, read_option},
};
use crate::{
    Invalid, Label, LoadMetric, LoadRing, Region, RegionShares, Share, Traffic, TrafficMode, TrafficPlanner,
    TrafficShares,
};

/// How calls to a service are divided among regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSpec {
    /// The planner: `rings`, `optimizer`, or `none` to override the defaults of tenant and mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// The planner's mode: `active`; `shadow`, which publishes no tables; or `hold`, which changes no tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Fixed shares, written by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<SharesSpec>,
    /// Rings of the planner, each with the load up to which it is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<LoadRingSpec>,
    /// Classes that are less important than all other calls. The planner moves and drops these classes first,
    /// beginning with the last of the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The measure of server load; CPU by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadSpec>,
}

/// A ring with a load threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadRingSpec {
    /// The regions of the ring: a round trip such as `35ms`, or `region`, `neighbours`, `continent`, `any`.
    pub within: String,
    /// The utilisation at which the next ring opens, such as `75%`.
    pub load: String,
}

/// A server metric used as load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadSpec {
    /// The metric's name in load reports.
    pub metric: String,
    /// The metric's value at a full server.
    pub full_scale: u32,
}

/// How the calls of one class from one region are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SharesSpec {
    /// The callers' region.
    pub from: String,
    /// The traffic class. If left out, the shares apply to all calls whose class is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Shares by destination region, such as `70%`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub to: BTreeMap<String, String>,
    /// The share of calls that fail immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

impl TrafficSpec {
    /// The form of `planner: none`.
    pub(super) fn without_planner() -> Self {
        Self { planner: Some(NONE.to_owned()), ..Self::default() }
    }

    /// Validates the division; `None` for `planner: none`.
    pub(super) fn validate(&self) -> Result<Option<Traffic>, Invalid> {
        if self.planner.as_deref() == Some(NONE) {
            let hint = "write 'planner: none' alone, or leave the planner out for shares";
            let problem = || Invalid::new("", "has fields beside 'planner: none'", hint);
            return if *self == Self::without_planner() { Ok(None) } else { Err(problem()) };
        }
        let planner = match self.planner.as_deref() {
            None => None,
            Some("rings") => Some(TrafficPlanner::Rings),
            Some("optimizer") => Some(TrafficPlanner::Optimizer),
            Some(other) => {
                let hint = "write 'rings', 'optimizer' or 'none'";
                return Err(Invalid::new("planner", format!("'{other}' is no planner"), hint));
            }
        };
        let mode = match self.mode.as_deref() {
            None | Some("active") => TrafficMode::Active,
            Some("shadow") => TrafficMode::Shadow,
            Some("hold") => TrafficMode::Hold,
            Some(other) => {
                let hint = "write 'active', 'shadow' or 'hold'";
                return Err(Invalid::new("mode", format!("'{other}' is no mode"), hint));
            }
        };
        let rings = self.rings.iter().enumerate();
        let rings = rings.map(|(i, ring)| ring.validate().map_err(|e| e.within(format!("rings[{i}]"))));
        let classes = self.classes.iter().map(|class| read("classes", class));
        let load = self.load.as_ref();
        let load = load.map(|LoadSpec { metric, full_scale }| LoadMetric {
            name: metric.clone(),
            full_scale: *full_scale,
        });
        let mut traffic = Traffic {
            planner,
            mode,
            shares: BTreeMap::new(),
            rings: rings.collect::<Result<_, Invalid>>()?,
            classes: classes.collect::<Result<_, Invalid>>()?,
            load,
        };
        for (i, spec) in self.shares.iter().enumerate() {
            spec.add(&mut traffic).map_err(|e| e.within(format!("shares[{i}]")))?;
        }
        Ok(Some(traffic))
    }

    pub(super) fn of(traffic: &Traffic) -> Self {
        let shares = traffic.shares.iter().flat_map(|(from, shares)| {
            shares.iter().map(|(class, shares)| SharesSpec::of(from, class, shares))
        });
        let mode = match traffic.mode {
            TrafficMode::Active => None,
            TrafficMode::Shadow => Some("shadow"),
            TrafficMode::Hold => Some("hold"),
        };
        Self {
            planner: traffic.planner.map(|planner| planner.name().to_owned()),
            mode: mode.map(str::to_owned),
            shares: shares.collect(),
            rings: traffic.rings.iter().map(LoadRingSpec::of).collect(),
            classes: traffic.classes.iter().map(ToString::to_string).collect(),
            load: traffic
                .load
                .as_ref()
                .map(|load| LoadSpec { metric: load.name.clone(), full_scale: load.full_scale }),
        }
    }
}

impl LoadRingSpec {
    fn validate(&self) -> Result<LoadRing, Invalid> {
        let ring = read_ring(&self.within).map_err(|e| e.within("within"))?;
        let load = self.load.parse();
        let refused =
            |_| Invalid::new("load", format!("'{}' is no threshold", self.load), "write 10% to 100%");
        Ok(LoadRing { ring, load: load.map_err(refused)? })
    }

    fn of(ring: &LoadRing) -> Self {
        Self { within: ring.ring.to_string(), load: ring.load.to_string() }
    }
}

impl SharesSpec {
    fn add(&self, traffic: &mut Traffic) -> Result<(), Invalid> {
        let from: Region = read("from", &self.from)?;
        let class: Option<Label> = read_option("class", self.class.as_ref())?;
        let share = |(region, share): (&String, &String)| {
            let at = |e: Invalid| e.within(format!("to.{region}"));
            Ok((region.parse::<Region>().map_err(at)?, share.parse::<Share>().map_err(at)?))
        };
        let to = self.to.iter().map(share).collect::<Result<BTreeMap<_, _>, Invalid>>()?;
        let dropped = match &self.dropped {
            Some(text) => read("dropped", text)?,
            None => Share::NONE,
        };
        let shares = RegionShares { to, dropped };
        let of_region: &mut TrafficShares = traffic.shares.entry(from).or_default();
        let before = match class {
            None => of_region.default.replace(shares),
            Some(class) => of_region.classes.insert(class, shares),
        };
        match before {
            None => Ok(()),
            Some(_) => {
                let hint = "write each region once, and once for each class";
                Err(Invalid::new("from", "repeats a region and class", hint))
            }
        }
    }

    fn of(from: &Region, class: Option<&Label>, shares: &RegionShares) -> Self {
        let to = shares.to.iter().map(|(region, share)| (region.to_string(), share.to_string()));
        Self {
            from: from.to_string(),
            class: class.map(ToString::to_string),
            to: to.collect(),
            dropped: (shares.dropped != Share::NONE).then(|| shares.dropped.to_string()),
        }
    }
}
