//! The routing table of one service for the callers of one region; the value of one record.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{Invalid, Label, Region, Share, Zone};

/// Maximum number of regions among which the calls of a class are divided.
pub const MAX_TABLE_REGIONS: usize = 64;
/// Maximum number of zones of a region among which calls are divided.
pub const MAX_TABLE_ZONES: usize = 16;
/// Maximum number of traffic classes with their own shares.
pub const MAX_TABLE_CLASSES: usize = 16;
/// Minimum share of a region, in millionths. A smaller share would cost connections for hardly any calls.
pub const SMALLEST_SHARE: u32 = 10_000;

/// How calls from one region to one service are divided among regions. Routers follow the tables of their own region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionTable {
    /// The shares.
    pub shares: TrafficShares,
    /// For calls that stay in the region: shares among the region's zones, by the caller's zone. Callers in zones
    /// that are not listed use the whole region. At most [`MAX_TABLE_ZONES`] zones, each with at most as many shares.
    pub zones: BTreeMap<Zone, ZoneShares>,
    /// By destination region, the endpoints to which a caller keeps connections if all of its calls go there, where the
    /// policy's subset reaches too few; at least 1 each. At most [`MAX_TABLE_REGIONS`] regions.
    pub subsets: BTreeMap<Region, u32>,
    /// The table's author, and its last confirmation.
    pub origin: TableOrigin,
}

/// Number of endpoints of a region to which a caller keeps connections if this share of its calls goes there. `whole` is
/// its subset for all calls. It has at least two, so that a loaded one can be avoided.
pub fn subset_for_share(whole: u32, share: Share) -> u32 {
    let part = u64::from(whole) * u64::from(share.millionths());
    let part = part.div_ceil(Share::ALL.millionths().into()) as u32;
    part.max(2).min(whole)
}

/// The zones used by callers in one zone, with their shares. Each share is at least [`SMALLEST_SHARE`] millionths,
/// and all shares add up to 100 %.
pub type ZoneShares = BTreeMap<Zone, Share>;

/// The author of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableOrigin {
    /// A person, who wrote the shares in a policy. The table applies until it is changed.
    ByHand,
    /// A planner, which confirms the table periodically. Without confirmations the table expires.
    Planned(Confirmation),
}

/// A planner's last confirmation of a table. Each confirmation changes the record, so that watchers notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// Number of the planning round, which increases.
    pub round: u64,
    /// Time of the round, in milliseconds since 1970. For display only.
    pub at_ms: u64,
}

/// Shares by traffic class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficShares {
    /// Shares of calls without a class or with a class that is not listed; `None` lets rings decide.
    pub default: Option<RegionShares>,
    /// Shares of the listed classes; at most [`MAX_TABLE_CLASSES`]. All classes together have at most
    /// [`MAX_TABLE_REGIONS`] regions.
    pub classes: BTreeMap<Label, RegionShares>,
}

/// Shares of one class, which add up to 100 % together with the dropped share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionShares {
    /// Shares by destination region. At most [`MAX_TABLE_REGIONS`] regions with at least [`SMALLEST_SHARE`]
    /// millionths each.
    pub to: BTreeMap<Region, Share>,
    /// Share of calls that fail immediately, so that the other calls can be served.
    pub dropped: Share,
}

/// Extent to which a table is still applied, given its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableForce {
    /// Applied completely: confirmed recently, or written by hand.
    Full,
    /// Not confirmed for a minute: no calls are dropped, and the other shares divide all calls.
    WithoutDrops,
    /// Not confirmed for a quarter of an hour: the table is ignored, and rings decide.
    Lapsed,
}

impl RegionTable {
    /// Age at which dropping ends, since the servers may have capacity again.
    pub const DROPS_LAST: Duration = Duration::from_secs(60);
    /// Age at which the table is no longer applied.
    pub const LASTS: Duration = Duration::from_secs(15 * 60);

    /// A table with these shares alone.
    pub fn new(shares: TrafficShares, origin: TableOrigin) -> Self {
        Self { shares, zones: BTreeMap::new(), subsets: BTreeMap::new(), origin }
    }

    /// The table's force, given the time since its last confirmation. A table that drops nothing has all of its force until it
    /// lapses, so planners may confirm it less often.
    pub fn force(&self, age: Duration) -> TableForce {
        match self.origin {
            TableOrigin::ByHand => TableForce::Full,
            TableOrigin::Planned(_) if age < self.full_until() => TableForce::Full,
            TableOrigin::Planned(_) if age < Self::LASTS => TableForce::WithoutDrops,
            TableOrigin::Planned(_) => TableForce::Lapsed,
        }
    }

    /// The age at which an unconfirmed table first loses something.
    fn full_until(&self) -> Duration {
        if self.shares.drops() { Self::DROPS_LAST } else { Self::LASTS }
    }

    /// The next age at which [`Self::force`] changes; `None` if it never changes again.
    pub fn weakens_at(&self, age: Duration) -> Option<Duration> {
        match self.force(age) {
            _ if self.origin == TableOrigin::ByHand => None,
            TableForce::Full => Some(self.full_until()),
            TableForce::WithoutDrops => Some(Self::LASTS),
            TableForce::Lapsed => None,
        }
    }

    /// Checks that shares and sizes are within their limits.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.shares.validate()?;
        if self.zones.len() > MAX_TABLE_ZONES {
            let hint = format!("write at most {MAX_TABLE_ZONES}");
            return Err(Invalid::new("zones", "are too many", hint));
        }
        if self.subsets.len() > MAX_TABLE_REGIONS || self.subsets.values().any(|endpoints| *endpoints == 0) {
            let hint = format!("write at most {MAX_TABLE_REGIONS} regions, with 1 endpoint or more each");
            return Err(Invalid::new("subsets", "are too many, or one is 0", hint));
        }
        let mut zones = self.zones.iter();
        zones.try_for_each(|(zone, to)| validate_zone(to).map_err(|e| e.within(format!("zones.{zone}"))))
    }
}

fn validate_zone(to: &ZoneShares) -> Result<(), Invalid> {
    let total: u64 = to.values().map(|share| u64::from(share.millionths())).sum();
    let smallest = to.values().map(|share| share.millionths()).min().unwrap_or_default();
    match total == u64::from(Share::ALL.millionths())
        && smallest >= SMALLEST_SHARE
        && to.len() <= MAX_TABLE_ZONES
    {
        true => Ok(()),
        false => {
            let problem = "is not divided into shares of at least 1% that are 100% together";
            Err(Invalid::new("", problem, format!("write 1 to {MAX_TABLE_ZONES} zones")))
        }
    }
}

impl TrafficShares {
    /// The shares of each class, beginning with calls without a class.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&Label>, &RegionShares)> {
        let default = self.default.iter().map(|shares| (None, shares));
        default.chain(self.classes.iter().map(|(class, shares)| (Some(class), shares)))
    }

    /// Whether calls of any class are dropped.
    pub fn drops(&self) -> bool {
        self.iter().any(|(_, shares)| shares.dropped > Share::NONE)
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.classes.len() > MAX_TABLE_CLASSES {
            let hint = format!("write at most {MAX_TABLE_CLASSES}");
            return Err(Invalid::new("", "have too many classes", hint));
        }
        if self.iter().next().is_none() {
            return Err(Invalid::new("", "are empty", "write the shares of at least one class"));
        }
        let regions: BTreeSet<&Region> = self.iter().flat_map(|(_, shares)| shares.to.keys()).collect();
        if regions.len() > MAX_TABLE_REGIONS {
            let hint = format!("name at most {MAX_TABLE_REGIONS} in all classes together");
            return Err(Invalid::new("", "have too many regions", hint));
        }
        self.iter().try_for_each(|(class, shares)| match class {
            None => shares.validate(),
            Some(class) => shares.validate().map_err(|e| e.within(class)),
        })
    }
}

impl RegionShares {
    fn validate(&self) -> Result<(), Invalid> {
        if self.to.len() > MAX_TABLE_REGIONS {
            let hint = format!("write at most {MAX_TABLE_REGIONS}");
            return Err(Invalid::new("to", "has too many regions", hint));
        }
        if let Some((region, share)) = self.to.iter().find(|(_, share)| share.millionths() < SMALLEST_SHARE) {
            let hint = "write at least 1%, or leave the region out";
            return Err(Invalid::new(format!("to.{region}"), format!("{share} is too small"), hint));
        }
        let shares = self.to.values().chain([&self.dropped]);
        // At most 65 values of at most a million each.
        let sum: u32 = shares.map(|share| share.millionths()).sum();
        match Share::of_millionths(sum) {
            Ok(Share::ALL) => Ok(()),
            Ok(sum) => Err(Invalid::new("", format!("the shares are {sum} together"), SUM_HINT)),
            Err(_) => Err(Invalid::new("", "the shares are more than 100% together", SUM_HINT)),
        }
    }
}

const SUM_HINT: &str = "let the shares of regions and 'dropped' be 100% together";

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(to: &[(&str, &str)], dropped: &str) -> RegionShares {
        let to = to.iter().map(|(region, share)| (Region::new(*region).unwrap(), share.parse().unwrap()));
        RegionShares { to: to.collect(), dropped: dropped.parse().unwrap() }
    }

    #[test]
    fn region_table_shares_must_add_up_to_all_calls_and_not_be_tiny() {
        for right in [
            shares(&[("eu", "70%"), ("us", "30%")], "0%"),
            shares(&[("eu", "99%"), ("us", "1%")], "0%"),
            shares(&[("eu", "99.99%")], "0.01%"),
            shares(&[], "100%"),
        ] {
            assert_eq!(right.validate(), Ok(()));
        }
        for (wrong, problem) in [
            (shares(&[("eu", "70%"), ("us", "29.9999%")], "0%"), "99.9999% together"),
            (shares(&[("eu", "70%"), ("us", "30%")], "1%"), "more than 100%"),
            (shares(&[("eu", "99.1%"), ("us", "0.9%")], "0%"), "0.9% is too small"),
            (shares(&[], "0%"), "0% together"),
        ] {
            let refusal = wrong.validate().unwrap_err().to_string();
            assert!(refusal.contains(problem), "{refusal}");
        }
    }

    #[test]
    fn unconfirmed_region_table_stops_dropping_and_then_lapses() {
        let with = |origin| {
            let shares =
                TrafficShares { default: Some(shares(&[("eu", "90%")], "10%")), ..Default::default() };
            RegionTable::new(shares, origin)
        };
        let planned = with(TableOrigin::Planned(Confirmation { round: 1, at_ms: 2 }));
        let seconds = Duration::from_secs;
        for (age, force, next) in [
            (0, TableForce::Full, Some(60)),
            (59, TableForce::Full, Some(60)),
            (60, TableForce::WithoutDrops, Some(900)),
            (899, TableForce::WithoutDrops, Some(900)),
            (900, TableForce::Lapsed, None),
        ] {
            assert_eq!(planned.force(seconds(age)), force, "{age} s");
            assert_eq!(planned.weakens_at(seconds(age)), next.map(seconds), "{age} s");
        }
        let calm = TrafficShares { default: Some(shares(&[("eu", "100%")], "0%")), ..Default::default() };
        let calm = RegionTable { shares: calm, ..planned };
        for (age, force, next) in [
            (60, TableForce::Full, Some(900)),
            (899, TableForce::Full, Some(900)),
            (900, TableForce::Lapsed, None),
        ] {
            assert_eq!(calm.force(seconds(age)), force, "{age} s without drops");
            assert_eq!(calm.weakens_at(seconds(age)), next.map(seconds), "{age} s without drops");
        }
        let by_hand = with(TableOrigin::ByHand);
        assert_eq!(
            (by_hand.force(seconds(1 << 40)), by_hand.weakens_at(seconds(0))),
            (TableForce::Full, None)
        );
    }

    #[test]
    fn region_table_with_too_many_classes_is_refused() {
        let all = shares(&[("eu", "100%")], "0%");
        let class = |n| (Label::new(format!("class-{n}")).unwrap(), all.clone());
        let of = |classes| TrafficShares { default: None, classes: (0..classes).map(class).collect() };
        assert!(of(0).validate().is_err(), "no shares at all");
        assert_eq!(of(MAX_TABLE_CLASSES).validate(), Ok(()));
        assert!(of(MAX_TABLE_CLASSES + 1).validate().is_err());
    }
}
