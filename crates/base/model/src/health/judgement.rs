//! Whether verdicts and expired leases are believed, and how calls are shared where they are.
//!
//! Envoy's priority levels with overprovisioning, with the rings of a caller as levels ("Priority levels", "Panic
//! threshold" in its documentation of load balancing). Unlike Envoy, a caller's own successes count against verdicts.

use std::collections::BTreeMap;

use super::{Verdict, VerdictEffect, Verdicts};
use crate::{Endpoint, EndpointState, Hosts, Region};

/// All calls, in thousandths.
pub const ALL_CALLS: u32 = 1000;
/// A ring serves all its calls until less than 1/1.4 of its power, 71 %, is healthy (Envoy: overprovisioning factor).
const OVERPROVISIONING: u64 = 1400;

/// Power of endpoints that should serve, and the part that can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingPower {
    /// Power of endpoints that serve, or whose lease expired.
    pub all: u64,
    /// Power of those that nothing speaks against.
    pub able: u64,
}

impl ServingPower {
    /// The part of its calls that it can carry, in thousandths; 0 without endpoints.
    pub fn carries(&self) -> u32 {
        (self.able * OVERPROVISIONING / self.all.max(1)).min(ALL_CALLS.into()) as u32
    }

    fn add(&mut self, power: u32, effect: VerdictEffect) {
        self.all += u64::from(power);
        self.able += if effect == VerdictEffect::None { u64::from(power) } else { 0 };
    }

    fn is_mostly_unable(&self) -> bool {
        2 * self.able < self.all
    }
}

/// The share of calls of each level by what it [carries](ServingPower::carries), in thousandths: each gets what those
/// before it cannot carry. Where all together cannot carry all calls, by what each carries; without any, the first gets all.
pub fn share_calls(carries: &[u32]) -> Vec<u32> {
    let total: u32 = carries.iter().sum();
    let mut left = ALL_CALLS;
    let take = |carries: &u32| {
        let wanted = match total {
            ..ALL_CALLS => (carries * ALL_CALLS).checked_div(total).unwrap_or(ALL_CALLS),
            _ => *carries,
        };
        let taken = wanted.min(left);
        left -= taken;
        taken
    };
    let mut shares: Vec<u32> = carries.iter().map(take).collect();
    // What rounding leaves.
    if let Some(most) = shares.iter_mut().max_by_key(|share| **share) {
        *most += left;
    }
    shares
}

/// What a caller does about verdicts and expired leases in a region where they speak against more than half of the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It believes them: other regions can carry the calls.
    Believed,
    /// It ignores them: its own calls succeed there, so that the checker is wrong, or the agents died and not the servers.
    Refuted,
    /// It ignores them: no region that it may use can carry the calls (panic).
    Panic,
}

/// How a caller sees the endpoints of a service.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "it has only closures")]
pub struct CallerView<'a> {
    /// The level of endpoints that serve in a region: lower ones come first; `None` if the caller may not call it.
    pub level: &'a dyn Fn(&Region) -> Option<u32>,
    /// Whether the caller's last calls to the endpoint at a position succeeded; `None` if it made none lately.
    pub evidence: &'a dyn Fn(usize) -> Option<bool>,
}

/// The effect of verdicts and expired leases on the endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// By position of the endpoint. A lost endpoint has none where its expired lease is ignored.
    pub effects: Vec<VerdictEffect>,
    /// The regions where more than half of the power is in doubt, sorted.
    pub contested: Vec<(Region, Standing)>,
    /// The share of calls of each level, in thousandths, in the order of levels.
    pub shares: Vec<(u32, u32)>,
}

impl Judgement {
    /// The standing of a region; `None` if at most half of its power is in doubt.
    pub fn standing(&self, region: &Region) -> Option<Standing> {
        self.contested.iter().find(|(contested, _)| contested == region).map(|(_, standing)| *standing)
    }
}

impl Verdicts {
    /// Judges for one caller.
    ///
    /// Up to half of the power of a region, verdicts are believed. Beyond that either the servers fail or the one that
    /// judges them, the region's checker or the agents that renew their leases. Three rules decide, in this order:
    ///
    /// 1. Where the caller's own calls succeed at more than half of the doubted endpoints that it called lately, the
    ///    verdicts of that region are ignored.
    /// 2. Otherwise they are believed while the regions that the caller may use carry all calls together.
    /// 3. Otherwise they are ignored in the regions that get calls: the remaining endpoints could not carry them (panic).
    ///
    /// Rules 1 and 3 apply by region, since each has its own checker, and a faulty one must not be believed because
    /// others are not.
    pub fn judge(&self, endpoints: &[&Endpoint], hosts: &Hosts, view: CallerView<'_>) -> Judgement {
        let effects = self.effects(endpoints);
        // As nearly always, so that nothing is summed up for it.
        if effects.iter().all(|effect| *effect == VerdictEffect::None) {
            return Judgement { effects, ..Judgement::default() };
        }
        let mut judge = Judge { endpoints, hosts, view, effects };
        let doubted = judge.doubted_regions();
        let is_refuted = |region: &&Region| judge.is_refuted(region);
        let refuted: Vec<&Region> = doubted.iter().copied().filter(is_refuted).collect();
        judge.ignore(&refuted);
        let shares = judge.shares();
        let is_short = judge.carried() < ALL_CALLS;
        let panics = |region: &&Region| {
            let level = (view.level)(region);
            let gets_calls = shares.iter().any(|(known, share)| Some(*known) == level && *share > 0);
            is_short && gets_calls && !refuted.contains(region)
        };
        let panicking: Vec<&Region> = doubted.iter().copied().filter(panics).collect();
        judge.ignore(&panicking);
        let standing = |region: &&Region| match () {
            () if refuted.contains(region) => Standing::Refuted,
            () if panicking.contains(region) => Standing::Panic,
            () => Standing::Believed,
        };
        let contested = doubted.iter().map(|region| ((*region).clone(), standing(region))).collect();
        Judgement { effects: judge.effects, contested, shares }
    }

    /// The same for callers of any region that use all others, by the records alone: for operators.
    pub fn judge_for_all(&self, endpoints: &[&Endpoint], hosts: &Hosts) -> Judgement {
        let mut regions: Vec<&Region> = endpoints.iter().map(|endpoint| &endpoint.location.region).collect();
        regions.sort_unstable();
        regions.dedup();
        let level = |region: &Region| regions.binary_search(&region).ok().map(|position| position as u32);
        self.judge(endpoints, hosts, CallerView { level: &level, evidence: &|_| None })
    }

    /// What the records say of each endpoint.
    fn effects(&self, endpoints: &[&Endpoint]) -> Vec<VerdictEffect> {
        let effect = |endpoint: &&Endpoint| match endpoint.state {
            EndpointState::Lost => VerdictEffect::Exclusion,
            _ => self.on(endpoint).map_or(VerdictEffect::None, Verdict::effect),
        };
        endpoints.iter().map(effect).collect()
    }
}

struct Judge<'a> {
    endpoints: &'a [&'a Endpoint],
    hosts: &'a Hosts,
    view: CallerView<'a>,
    effects: Vec<VerdictEffect>,
}

impl<'a> Judge<'a> {
    /// The endpoints that should serve, with what speaks against them: those that serve, and those whose leases expired,
    /// since the agents that renew them may have died instead. One that stopped, or reported itself as lost, is not missed.
    fn expected(&self) -> impl Iterator<Item = (usize, &'a Endpoint, VerdictEffect)> {
        let all = self.endpoints.iter().enumerate().zip(&self.effects);
        let all = all.map(|((position, endpoint), effect)| (position, *endpoint, *effect));
        all.filter(|(_, endpoint, _)| endpoint.state == EndpointState::Serving || endpoint.is_expired())
    }

    fn power_by<K: Ord>(&self, key: impl Fn(&'a Region) -> Option<K>) -> BTreeMap<K, ServingPower> {
        let mut powers = BTreeMap::<K, ServingPower>::new();
        for (_, endpoint, effect) in self.expected() {
            if let Some(key) = key(&endpoint.location.region) {
                powers.entry(key).or_default().add(self.hosts.power(endpoint), effect);
            }
        }
        powers
    }

    fn doubted_regions(&self) -> Vec<&'a Region> {
        let powers = self.power_by(|region| (self.view.level)(region).map(|_| region));
        powers.into_iter().filter(|(_, power)| power.is_mostly_unable()).map(|(region, _)| region).collect()
    }

    fn carried(&self) -> u32 {
        self.power_by(|region| (self.view.level)(region)).values().map(ServingPower::carries).sum()
    }

    fn shares(&self) -> Vec<(u32, u32)> {
        let powers = self.power_by(|region| (self.view.level)(region));
        let carries: Vec<u32> = powers.values().map(ServingPower::carries).collect();
        powers.into_keys().zip(share_calls(&carries)).collect()
    }

    /// Whether the caller's own calls succeed at most of the doubted endpoints of a region that it called.
    fn is_refuted(&self, region: &Region) -> bool {
        let doubted = self.expected().filter(|(_, endpoint, effect)| {
            endpoint.location.region == *region && *effect != VerdictEffect::None
        });
        let evidence = doubted.filter_map(|(position, ..)| (self.view.evidence)(position));
        let balance: i64 = evidence.map(|succeeds| if succeeds { 1 } else { -1 }).sum();
        balance > 0
    }

    /// Ignores what the records say of the endpoints in these regions. Where no endpoint is left that serves, lost ones
    /// stay lost: they are called all the same, and counted as a last resort.
    fn ignore(&mut self, regions: &[&Region]) {
        let is_allowed = |endpoint: &Endpoint| (self.view.level)(&endpoint.location.region).is_some();
        let serves = |endpoint: &Endpoint| endpoint.state == EndpointState::Serving;
        let any_serves = self.expected().any(|(_, endpoint, _)| serves(endpoint) && is_allowed(endpoint));
        let ignored: Vec<usize> = self
            .expected()
            .filter(|(_, endpoint, _)| regions.contains(&&endpoint.location.region))
            .filter(|(_, endpoint, _)| any_serves || serves(endpoint))
            .map(|(position, ..)| position)
            .collect();
        ignored.into_iter().for_each(|position| self.effects[position] = VerdictEffect::None);
    }
}

#[cfg(test)]
mod tests;
