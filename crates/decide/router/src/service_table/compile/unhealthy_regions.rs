//! Adjusts a region table's shares to unhealthy regions.

use std::{borrow::Cow, collections::BTreeMap};

use fairmesh_model::{
    ALL_CALLS, EndpointState, MAX_TABLE_REGIONS, Region, RegionShares, ServingPower, Share, TableOrigin,
    TrafficShares,
};

use super::Compiler;
use crate::locality::PreferenceClass;

/// Power by region, for the regions that calls may use.
type RegionPowers<'a> = BTreeMap<&'a Region, ServingPower>;

impl<'a> Compiler<'a> {
    /// The shares of the caller's table, adjusted to the capacity of the regions.
    ///
    /// A mostly unhealthy region keeps the calls it can carry. The rest goes to the table's other regions that can
    /// carry all their calls. If there are none, a planner's table divides the rest among all regions by power, like
    /// the calls of a lost region. With a table written by hand, rings decide, so the nearest regions get the rest. A
    /// region without any healthy endpoint keeps its share, because the pick finds it lost.
    pub(super) fn table_shares(&self) -> Option<Cow<'a, TrafficShares>> {
        let shares = &self.input.table?.table.shares;
        let powers = self.region_powers();
        if powers.values().all(|power| matches!(power.carries(), 0 | ALL_CALLS)) {
            return Some(Cow::Borrowed(shares));
        }
        let spread = |shares: &RegionShares| self.spread(shares, &powers);
        Some(Cow::Owned(TrafficShares {
            default: shares.default.as_ref().map(spread),
            classes: shares.classes.iter().map(|(class, shares)| (class.clone(), spread(shares))).collect(),
        }))
    }

    /// The power of the regions that rings and drains let tables use.
    fn region_powers(&self) -> RegionPowers<'a> {
        let mut powers = RegionPowers::new();
        // Endpoints without an entry in `effects` are refused.
        for (position, endpoint) in self.endpoints[..self.effects.len()].iter().copied().enumerate() {
            if endpoint.state == EndpointState::Serving || endpoint.is_expired() {
                let power = u64::from(self.powers[position]);
                let here = powers.entry(&endpoint.location.region).or_default();
                here.all += power;
                here.able += if self.class(position) == Some(PreferenceClass::Serving) { power } else { 0 };
            }
        }
        powers.retain(|region, _| self.may_go_to(region));
        powers
    }

    fn spread(&self, shares: &RegionShares, powers: &RegionPowers<'_>) -> RegionShares {
        let carries = |region: &Region| powers.get(region).map_or(0, ServingPower::carries);
        let kept = |(region, share): (&Region, &Share)| match carries(region) {
            0 => share.millionths(),
            carries => (u64::from(share.millionths()) * u64::from(carries) / u64::from(ALL_CALLS)) as u32,
        };
        let mut spread: BTreeMap<&Region, u32> =
            shares.to.iter().map(|(region, share)| (region, kept((region, share)))).collect();
        let left: u32 =
            shares.to.values().map(|share| share.millionths()).sum::<u32>() - spread.values().sum::<u32>();
        let able = shares.to.iter().filter(|(region, _)| carries(region) == ALL_CALLS);
        let mut takers: Vec<(&Region, u64)> =
            able.map(|(region, share)| (region, share.millionths().into())).collect();
        if takers.is_empty() {
            takers = self.takers_beyond(powers);
            takers.truncate(MAX_TABLE_REGIONS - shares.to.len().min(MAX_TABLE_REGIONS));
        }
        let total: u64 = takers.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            return shares.clone();
        }
        for (region, weight) in takers {
            *spread.entry(region).or_default() += (u64::from(left) * weight / total) as u32;
        }
        let share = |millionths| Share::of_millionths(millionths).unwrap_or(Share::ALL);
        let to = spread.into_iter().map(|(region, millionths)| (region.clone(), share(millionths)));
        RegionShares { to: to.collect(), dropped: shares.dropped }
    }

    /// The regions that can carry all their calls, with their power; with a table written by hand, only the nearest of them.
    fn takers_beyond<'r>(&self, powers: &RegionPowers<'r>) -> Vec<(&'r Region, u64)> {
        let is_by_hand = self.input.table.is_some_and(|input| input.table.origin == TableOrigin::ByHand);
        let rank =
            |region: &Region| self.locality.rank(PreferenceClass::Serving, self.locality.distance(region));
        let able = || powers.iter().filter(|(_, power)| power.carries() == ALL_CALLS);
        let nearest = able().filter_map(|(region, _)| rank(region)).min();
        let kept = able().filter(|(region, _)| !is_by_hand || rank(region) == nearest);
        kept.map(|(region, power)| (*region, power.able)).collect()
    }
}
