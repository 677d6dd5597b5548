use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text::{read, read_option};
use crate::{
    Invalid, Label, Region, RegionShares, Share, Traffic, TrafficMode, TrafficPlanner, TrafficShares,
};

/// Who divides the calls to a service among regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficSpec {
    /// The planner: `rings`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// `active`, or `shadow`, which publishes no tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Shares written by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<SharesSpec>,
}

/// How the calls of one region and class are divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SharesSpec {
    /// The region of the caller.
    pub from: String,
    /// The traffic class; without one, of all calls whose class is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Shares by the region that they go to, such as `70%`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub to: BTreeMap<String, String>,
    /// The share of calls that fail at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

impl TrafficSpec {
    pub(super) fn validate(&self) -> Result<Traffic, Invalid> {
        let planner = match self.planner.as_deref() {
            None => None,
            Some("rings") => Some(TrafficPlanner::Rings),
            Some(other) => {
                return Err(Invalid::new("planner", format!("'{other}' is no planner"), "write 'rings'"));
            }
        };
        let mode = match self.mode.as_deref() {
            None | Some("active") => TrafficMode::Active,
            Some("shadow") => TrafficMode::Shadow,
            Some(other) => {
                let hint = "write 'active' or 'shadow'";
                return Err(Invalid::new("mode", format!("'{other}' is no mode"), hint));
            }
        };
        let mut traffic = Traffic { planner, mode, shares: BTreeMap::new() };
        for (i, spec) in self.shares.iter().enumerate() {
            spec.add(&mut traffic).map_err(|e| e.within(format!("shares[{i}]")))?;
        }
        Ok(traffic)
    }

    pub(super) fn of(traffic: &Traffic) -> Self {
        let shares = traffic.shares.iter().flat_map(|(from, shares)| {
            shares.iter().map(|(class, shares)| SharesSpec::of(from, class, shares))
        });
        Self {
            planner: traffic.planner.map(|TrafficPlanner::Rings| "rings".to_owned()),
            mode: (traffic.mode == TrafficMode::Shadow).then(|| "shadow".to_owned()),
            shares: shares.collect(),
        }
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
