//! Subsets of callers that reach too few servers of a region: they grow, so that the calls need not leave the region.

use std::collections::BTreeMap;

use fairmesh_model::{Region, RegionTable};
use fairmesh_te::Doubt;

use super::{ServicePlanner, ShiftNote};
use crate::facts::ServiceFacts;

/// Subsets grow to at most this multiple of the policy's: each endpoint more is a connection of each caller.
const MAX_GROWTH: u32 = 16;
/// Time until growth shows in reports: servers average their utilisation over ten seconds.
const GROWTH_SHOWS_MS: u64 = 15_000;
/// Growth goes on while it adds at least this part of the region's capacity. Where it does not, hosts are unequal, or callers
/// follow no tables.
const GROWTH_ADDS: f64 = 0.03;
/// The part that callers reach where a control plane before this one has widened their subsets.
const UNKNOWN_PART: f64 = 0.5;
/// Subsets stay wide for this long after the region was last loaded enough to need them.
const NEEDED_MS: u64 = 10 * 60_000;
/// A region needs them from this part of its first threshold on, by the part of it that callers reached without them.
const NEEDED_LOAD: f64 = 0.75;

/// The subset of callers in one region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WiderSubset {
    /// Endpoints of one caller.
    endpoints: u32,
    /// The part of the region's capacity that callers reached before subsets grew last, and before they grew at all.
    part_before: f64,
    first_part: f64,
    grown_at_ms: u64,
    needed_at_ms: u64,
}

impl ServicePlanner {
    /// Widens subsets in regions where callers reach a part, and forgets wider subsets that are not needed any more.
    pub(super) fn plan_subsets(&mut self, facts: &ServiceFacts, now_ms: u64) {
        let threshold =
            facts.traffic.load_rings().first().map_or(1.0, |ring| f64::from(ring.load.millionths()) / 1e6);
        for (at, region) in self.regions.iter().enumerate() {
            let own = facts.partial_subset(region);
            let load =
                self.known.get(region).and_then(|known| known.servers).map_or(0.0, |servers| servers.load);
            let wider = self.subsets.get(region).copied();
            let wider = wider.filter(|wider| own.is_some_and(|own| own < wider.endpoints));
            let wider = wider.map(|wider| wider.noting_need(load, threshold, now_ms));
            let wider = wider.filter(|wider| now_ms.saturating_sub(wider.needed_at_ms) < NEEDED_MS);
            let grown = own.filter(|_| self.state.doubt(at) == Some(Doubt::Unreached)).and_then(|own| {
                let serving = facts.serving_in(region);
                grow(wider, (own, serving), self.state.reached(at), now_ms)
            });
            if let (Some(grown), Some(own)) = (grown, own) {
                let before = wider.map_or(own, |wider| wider.endpoints);
                let text = growth_text(region, (before, grown.endpoints), facts);
                self.shifts.push_front(ShiftNote { at_ms: now_ms, from: region.clone(), class: None, text });
            }
            match grown.or(wider) {
                Some(wider) => drop(self.subsets.insert(region.clone(), wider)),
                None => drop(self.subsets.remove(region)),
            }
        }
        let regions = &self.regions;
        self.subsets.retain(|region, _| regions.contains(region));
    }

    /// The wider subsets of callers with this table.
    pub(super) fn subsets_of(&self, table: &fairmesh_model::TrafficShares) -> BTreeMap<Region, u32> {
        let called = |region: &Region| table.iter().any(|(_, shares)| shares.to.contains_key(region));
        let wider = self.subsets.iter().filter(|(region, _)| called(region));
        wider.map(|(region, wider)| (region.clone(), wider.endpoints)).collect()
    }

    /// Continues with the subsets of a control plane before this one.
    pub(super) fn resume_subsets<'a>(&mut self, tables: impl Iterator<Item = &'a RegionTable>, now_ms: u64) {
        for (region, endpoints) in tables.flat_map(|table| &table.subsets) {
            let wider = self.subsets.entry(region.clone()).or_insert(WiderSubset {
                endpoints: 0,
                part_before: UNKNOWN_PART,
                first_part: UNKNOWN_PART,
                grown_at_ms: now_ms,
                needed_at_ms: now_ms,
            });
            wider.endpoints = wider.endpoints.max(*endpoints);
        }
    }
}

impl WiderSubset {
    fn noting_need(self, load: f64, threshold: f64, now_ms: u64) -> Self {
        let is_needed = load / self.first_part >= NEEDED_LOAD * threshold;
        Self { needed_at_ms: if is_needed { now_ms } else { self.needed_at_ms }, ..self }
    }
}

/// Doubles a subset; `None` while the last growth does not show, or if it did not help.
fn grow(
    wider: Option<WiderSubset>,
    (own, serving): (u32, u32),
    part: f64,
    now_ms: u64,
) -> Option<WiderSubset> {
    let before = wider.map_or(own, |wider| wider.endpoints);
    let most = own.saturating_mul(MAX_GROWTH).min(serving);
    let may_grow = wider.is_none_or(|wider| {
        let has_shown = now_ms.saturating_sub(wider.grown_at_ms) >= GROWTH_SHOWS_MS;
        has_shown && part >= wider.part_before + GROWTH_ADDS
    });
    let first_part = wider.map_or(part, |wider| wider.first_part);
    let endpoints = before.saturating_mul(2).min(most);
    (may_grow && before < most).then_some(WiderSubset {
        endpoints,
        part_before: part,
        first_part,
        grown_at_ms: now_ms,
        needed_at_ms: now_ms,
    })
}

fn growth_text(region: &Region, (before, after): (u32, u32), facts: &ServiceFacts) -> String {
    let spread = facts.spread_in(region).unwrap_or_default();
    format!(
        "callers use {after} instead of {before} of the {} endpoints of {region}: a tenth of these is above {:.0} % of its CPU, the \
         mean is {:.0} %",
        facts.serving_in(region),
        spread.p90 * 100.0,
        spread.mean * 100.0,
    )
}
