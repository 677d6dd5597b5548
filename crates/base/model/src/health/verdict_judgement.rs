//! Judges whether verdicts and expired leases are believed, and divides calls among rings accordingly.
//!
//! The rules are Envoy's priority levels with overprovisioning ("Priority levels" and "Panic threshold" in its load
//! balancing documentation). A caller's rings are the levels. Unlike in Envoy, successes of the caller's own calls
//! can refute verdicts.

use std::collections::BTreeMap;

use super::{Verdict, VerdictEffect, Verdicts};
use crate::{Endpoint, EndpointState, Hosts, Region};

/// All calls, in thousandths.
pub const ALL_CALLS: u32 = 1000;
/// Overprovisioning factor in thousandths (Envoy). A ring serves all its calls until less than 1/1.4 of its power (71
/// %) is healthy.
const OVERPROVISIONING: u64 = 1400;

/// Power of a group of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingPower {
    /// Power of all endpoints that serve or have an expired lease.
    pub all: u64,
    /// Power of the endpoints that have neither an adverse verdict nor an expired lease.
    pub able: u64,
}

impl ServingPower {
    /// Share of its calls that the group can serve, in thousandths; 0 if the group is empty.
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

/// Divides calls among levels, in thousandths. `carries` says what each level can serve ([`ServingPower::carries`]).
/// - Each level gets the calls that earlier levels cannot serve.
/// - If all levels together cannot serve all calls, shares are proportional to `carries`.
/// - If no level can serve any call, the first level gets all.
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
    // The largest share gets the rounding remainder.
    if let Some(most) = shares.iter_mut().max_by_key(|share| **share) {
        *most += left;
    }
    shares
}

/// How a caller treats verdicts and expired leases in a region in which these affect more than half of the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Believed: other regions can carry the calls.
    Believed,
    /// Ignored: the caller's own calls succeed there. The checker is wrong, or the agents died but not the servers.
    Refuted,
    /// Ignored: no region that the caller may use can carry the calls (panic).
    Panic,
}

/// A caller's view of a service's endpoints.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "it has only closures")]
pub struct CallerView<'a> {
    /// Preference level of a region's serving endpoints; lower levels come first. `None` if the caller may not call
    /// the region.
    pub level: &'a dyn Fn(&Region) -> Option<u32>,
    /// Whether the caller's recent calls to the endpoint at an index succeeded; `None` without recent calls.
    pub evidence: &'a dyn Fn(usize) -> Option<bool>,
}

/// The effect of verdicts and expired leases on the endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The effect on each endpoint, by index. A lost endpoint has no effect if its expired lease is ignored.
    pub effects: Vec<VerdictEffect>,
    /// Regions in which more than half of the power is in doubt, sorted.
    pub contested: Vec<(Region, Standing)>,
    /// Levels in order, with their shares of calls in thousandths.
    pub shares: Vec<(u32, u32)>,
}

impl Judgement {
    /// How a region's verdicts are treated; `None` if at most half of its power is in doubt.
    pub fn standing(&self, region: &Region) -> Option<Standing> {
        self.contested.iter().find(|(contested, _)| contested == region).map(|(_, standing)| *standing)
    }
}

impl Verdicts {
    /// Judges verdicts and leases for one caller.
    ///
    /// Verdicts on up to half of a region's power are believed. If more is in doubt, either the servers fail, or the
    /// source of the verdicts fails: the region's checker, or the agents that renew leases. Three rules decide, in
    /// this order:
    ///
    /// | 1. If the caller's own recent calls succeeded at more than half of the doubted endpoints that it called, the
    /// |    region's verdicts are ignored.
    /// | 2. Otherwise they are believed while the caller's regions can carry all calls together.
    /// | 3. Otherwise they are ignored in the regions that get calls, because the remaining endpoints could not carry
    /// |    the calls (panic).
    ///
    /// Rules 1 and 3 apply to each region separately. Each region has its own checker, and a faulty checker must not
    /// be believed because others are right.
    pub fn judge(&self, endpoints: &[&Endpoint], hosts: &Hosts, view: CallerView<'_>) -> Judgement {
        let effects = self.effects(endpoints);
        // Fast path for the common case without any effect.
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

    /// Judges from the records alone, for a caller that may use all regions. Operators see this judgement.
    pub fn judge_for_all(&self, endpoints: &[&Endpoint], hosts: &Hosts) -> Judgement {
        let mut regions: Vec<&Region> = endpoints.iter().map(|endpoint| &endpoint.location.region).collect();
        regions.sort_unstable();
        regions.dedup();
        let level = |region: &Region| regions.binary_search(&region).ok().map(|position| position as u32);
        self.judge(endpoints, hosts, CallerView { level: &level, evidence: &|_| None })
    }

    /// The effect on each endpoint that follows from its verdict and its lease.
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
    /// Endpoints that should serve, with their effects. Includes endpoints with expired leases, because only their
    /// agents may have died. Excludes endpoints that stopped or reported themselves lost.
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

    /// Whether the caller's own calls refute the doubts about a region: among the doubted endpoints that the caller
    /// called, more than half succeeded.
    fn is_refuted(&self, region: &Region) -> bool {
        let doubted = self.expected().filter(|(_, endpoint, effect)| {
            endpoint.location.region == *region && *effect != VerdictEffect::None
        });
        let evidence = doubted.filter_map(|(position, ..)| (self.view.evidence)(position));
        let balance: i64 = evidence.map(|succeeds| if succeeds { 1 } else { -1 }).sum();
        balance > 0
    }

    /// Ignores verdicts and expired leases in `regions`. If no serving endpoint is left, lost endpoints stay lost:
    /// they still receive calls, but count as a last resort.
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
