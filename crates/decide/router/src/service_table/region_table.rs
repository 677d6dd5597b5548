use std::fmt::Display;

use fairmesh_balancer::{CandidateSet, rendezvous::Rank};
use fairmesh_model::{
    Label, Region, Share, Zone,
    arith::{Generator, mix_pair},
};

use super::{Hashed, Tier, zones::CompiledZones};

/// Salt that makes the region draws of a call independent of other uses of the seed: the bytes of `region`.
const DRAW_SALT: u64 = 0x7265_6769_6f6e;

/// The compiled table for the caller's region: the regions that share calls, with their endpoints.
///
/// Draining regions and regions forbidden by the policy are left out; the others take over their calls.
#[derive(Debug)]
pub(super) struct CompiledTable {
    /// Shares of calls without a class, or with a class that is not listed.
    pub(super) default: Option<ClassShares>,
    /// Shares by class, sorted.
    pub(super) classes: Box<[(Label, ClassShares)]>,
    /// Regions in the order of names, at most [`MAX_TABLE_REGIONS`](fairmesh_model::MAX_TABLE_REGIONS).
    pub(super) regions: Box<[TableRegion]>,
    /// Position of each endpoint's region by endpoint index, or [`Self::NO_REGION`]; empty unless the service is
    /// sharded.
    pub(super) region_of: Box<[u8]>,
    /// The endpoints that share this client's calls.
    pub(super) members: Box<[u32]>,
    /// The zones of the caller's region, if they share calls.
    pub(super) zones: Option<Box<CompiledZones>>,
    /// Destinations of calls whose region cannot serve. Only for tables of a planner.
    pub(super) spare: Option<Box<SpareRegions>>,
    /// Author and force of the table, for explanations.
    pub(super) origin: &'static str,
}

/// All regions that serve and that the policy permits, as destinations for the calls of a region that cannot serve.
///
/// Rings would send all of these calls to the nearest neighbour, which would be overloaded until the planner reacts.
/// After a crash that takes ten seconds, because leases have to expire. If the calls are divided by power instead, the
/// load of every other region rises by the same factor.
#[derive(Debug)]
pub(super) struct SpareRegions {
    /// Each region's position and its part of the total power.
    pub(super) shares: Box<[(u8, u32)]>,
    /// Regions in the order of names, at most [`MAX_TABLE_REGIONS`](fairmesh_model::MAX_TABLE_REGIONS).
    pub(super) regions: Box<[TableRegion]>,
}

/// A region in a table.
#[derive(Debug)]
pub(super) struct TableRegion {
    pub(super) name: Region,
    /// Hash of the region's name.
    pub(super) hash: u64,
    /// Rank of the region's serving endpoints; `u32::MAX` without endpoints.
    pub(super) rank: u32,
    pub(super) endpoints: RegionEndpoints,
}

/// The serving endpoints of a region.
#[derive(Debug)]
pub(super) enum RegionEndpoints {
    /// This client's subset of the region.
    Replicated(Tier<CandidateSet>),
    /// All serving endpoints of the region.
    Hashed(Tier<Hashed>),
    /// The shard map lists the endpoints.
    Sharded,
}

/// The shares of one class.
#[derive(Debug)]
pub(super) struct ClassShares {
    /// Share of dropped calls, in millionths of all calls.
    pub(super) dropped: Share,
    /// Each region's position and share in millionths, ordered by position.
    pub(super) regions: Box<[(u8, u32)]>,
}

/// The random draws of one call from its region table. They are identical for all attempts of the call.
pub(super) struct CallDraws(Generator);

impl CompiledTable {
    /// Marks endpoints outside the regions of the table.
    pub(super) const NO_REGION: u8 = u8::MAX;

    /// Returns the shares for calls of a class; `None` leaves the calls to the rings.
    #[inline]
    pub(super) fn shares(&self, class: Option<&Label>) -> Option<&ClassShares> {
        let own = class.filter(|_| !self.classes.is_empty()).and_then(|class| {
            let found = self.classes.binary_search_by(|(known, _)| known.cmp(class)).ok()?;
            Some(&self.classes[found].1)
        });
        own.or(self.default.as_ref())
    }

    /// Returns the position of an endpoint's region; `None` if the table does not contain the region.
    #[inline]
    pub(super) fn region_of(&self, index: u32) -> Option<u8> {
        self.region_of.get(index as usize).copied().filter(|region| *region != Self::NO_REGION)
    }

    /// Returns the key's first choice among the regions, by weighted rendezvous hashing: a changed share moves as few
    /// keys as possible.
    pub(super) fn region_of_key(&self, shares: &ClassShares, key: u64) -> Option<u8> {
        let ranked = shares
            .regions
            .iter()
            .map(|&(region, share)| (Rank::new(key, self.regions[usize::from(region)].hash, share), region));
        ranked.min().map(|(_, region)| region)
    }
}

impl SpareRegions {
    /// Returns the new region of a call whose region, `lost`, cannot serve it: determined by the call's key if it has
    /// one, otherwise drawn.
    pub(super) fn draw(
        &self,
        lost: &Region,
        key: Option<u64>,
        draws: &mut CallDraws,
    ) -> Option<&TableRegion> {
        let other = |position: u8| self.regions[usize::from(position)].name != *lost;
        let region = match key {
            None => draws.position(&self.shares, other),
            Some(key) => {
                let others = self.shares.iter().filter(|(position, _)| other(*position));
                let ranked = others.map(|&(position, share)| {
                    (Rank::new(key, self.regions[usize::from(position)].hash, share), position)
                });
                ranked.min().map(|(_, position)| position)
            }
        };
        region.map(|position| &self.regions[usize::from(position)])
    }
}

impl CallDraws {
    #[inline]
    pub(super) fn new(call_seed: u64) -> Self {
        Self(Generator::new(mix_pair(call_seed, DRAW_SALT)))
    }

    /// Whether the call is dropped. Drawn first, and from the seed even if a key determines the region; otherwise calls
    /// with the same keys would always fail.
    #[inline]
    pub(super) fn is_dropped(&mut self, shares: &ClassShares) -> bool {
        let all = u64::from(Share::ALL.millionths());
        self.0.below(all) < u64::from(shares.dropped.millionths())
    }

    /// Returns the call's region, drawn among the `eligible` ones by their shares; `None` if there are none.
    #[inline]
    pub(super) fn region(&mut self, shares: &ClassShares, eligible: impl Fn(u8) -> bool) -> Option<u8> {
        self.position(&shares.regions, eligible)
    }

    /// Returns one of the eligible positions, drawn by their shares; `None` if there are none.
    #[inline]
    pub(super) fn position(&mut self, shares: &[(u8, u32)], eligible: impl Fn(u8) -> bool) -> Option<u8> {
        let eligible = || shares.iter().filter(|(position, _)| eligible(*position));
        let total = eligible().map(|&(_, share)| u64::from(share)).sum();
        let point = self.0.below(total);
        // Finds the last position that begins at or before the point. An early exit would be unpredictable for the
        // processor.
        let (mut begins, mut chosen) = (0, None);
        for &(position, share) in eligible() {
            chosen = if begins <= point { Some(position) } else { chosen };
            begins += u64::from(share);
        }
        chosen
    }
}

impl CompiledTable {
    /// Describes the table: `planned; calls of class bulk: eu 70%, us 20%, dropped 10%; those that stay, of callers in
    /// zone a: a 75%, b 25%`.
    pub(super) fn describe(
        &self,
        class: Option<&Label>,
        shares: &ClassShares,
        zone: Option<&Zone>,
    ) -> String {
        let ClassShares { dropped, regions } = shares;
        let mut parts = words(regions, |region| &self.regions[region].name);
        if *dropped != Share::NONE {
            parts.push(format!("dropped {dropped}"));
        }
        let of = match class.filter(|class| self.has_class(class)) {
            Some(class) => format!("calls of class {class}"),
            None => "calls without a class of its own".to_owned(),
        };
        let parts = if parts.is_empty() { "no region may be used".to_owned() } else { parts.join(", ") };
        let stays = self.zones.as_ref().zip(zone).map_or_else(String::new, |(zones, zone)| {
            let parts = words(&zones.shares, |position| &zones.zones[position].0);
            format!("; those that stay, of callers in zone {zone}: {}", parts.join(", "))
        });
        format!("{}; {of}: {parts}{stays}", self.origin)
    }

    /// Describes why rings decide instead.
    pub(super) fn describe_absence(&self, class: Option<&Label>) -> String {
        match class {
            Some(class) => format!("{}; it has no shares for class {class}: rings decide", self.origin),
            None => format!("{}; it has no shares for calls without a class: rings decide", self.origin),
        }
    }

    fn has_class(&self, class: &Label) -> bool {
        self.classes.binary_search_by(|(known, _)| known.cmp(class)).is_ok()
    }
}

/// Describes each share, such as `eu 70%`, by the names of positions.
fn words<'a, N: Display + 'a>(shares: &[(u8, u32)], name: impl Fn(usize) -> &'a N) -> Vec<String> {
    let word = |&(position, share): &(u8, u32)| {
        // The value is a part of a validated share.
        let share = Share::of_millionths(share).unwrap_or(Share::ALL);
        format!("{} {share}", name(usize::from(position)))
    };
    shares.iter().map(word).collect()
}
