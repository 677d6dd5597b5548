//! Subsets of callers that reach too few servers of a region: they grow, so that the calls need not leave the region.

use std::collections::BTreeMap;

use fairmesh_model::{Region, RegionTable, TrafficMode};
use fairmesh_te::Doubt;

use super::{ServicePlanner, ShiftNote};
use crate::facts::{PartialSubset, ServiceFacts};

/// Subsets grow to at most this multiple of the policy's: each endpoint more is a connection of each caller.
const MAX_GROWTH: u32 = 16;
/// Time until growth shows in reports: servers average their utilisation over ten seconds.
const GROWTH_SHOWS_MS: u64 = 15_000;
/// Growth goes on while it adds at least this part of the region's capacity. Where it does not, hosts are unequal, or callers
/// follow no tables.
const GROWTH_ADDS: f64 = 0.03;
/// The part of the region's capacity that callers are taken to have reached before they grew, if a control plane before this one
/// has widened their subsets. It is low, so that wide subsets stay while they may be needed.
const UNKNOWN_FIRST_PART: f64 = 0.5;
/// Subsets stay wide for this long after the region was last loaded enough to need them.
const NEEDED_MS: u64 = 10 * 60_000;
/// Wide subsets are needed while the region would be at this part of its first threshold or more, if callers reached as little
/// of it as before.
const NEEDED_LOAD: f64 = 0.75;

/// The subset of callers in one region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WiderSubset {
    /// Endpoints of a caller that sends all calls to the region.
    endpoints: u32,
    /// The least part of the region's capacity that callers reached while subsets grew last. `None` once the region was evenly
    /// loaded, or if a control plane before this one has grown them.
    part_before: Option<f64>,
    /// The part that callers reached before subsets grew at all.
    first_part: f64,
    grown_at_ms: u64,
    needed_at_ms: u64,
}

impl ServicePlanner {
    /// Widens subsets in regions where callers reach a part, and forgets wider subsets that are not needed any more.
    pub(super) fn plan_subsets(&mut self, facts: &ServiceFacts, now_ms: u64) {
        let threshold =
            facts.traffic.load_rings().first().map_or(1.0, |ring| f64::from(ring.load.millionths()) / 1e6);
        let own = facts.own_subset();
        for (at, region) in self.regions.iter().enumerate() {
            let (part, is_uneven) = (self.state.reached(at), self.state.doubt(at) == Some(Doubt::Unreached));
            let wider = self.subsets.get(region).copied();
            if wider.is_none() && !is_uneven {
                continue;
            }
            let load =
                self.known.get(region).and_then(|known| known.servers).map_or(0.0, |servers| servers.load);
            let wider = wider.filter(|wider| own.is_some_and(|own| own < wider.endpoints));
            let wider =
                wider.map(|wider| wider.noting_need(load, threshold, now_ms).noting_part(part, now_ms));
            let wider = wider.filter(|wider| now_ms.saturating_sub(wider.needed_at_ms) < NEEDED_MS);
            let partial = facts.partial_subset(region).filter(|_| is_uneven).zip(own);
            let grown = partial.as_ref().and_then(|(partial, own)| {
                let grown = grow(wider, (*own, partial), part, now_ms)?;
                let before = wider.map_or(*own, |wider| wider.endpoints);
                let text = growth_text(region, partial, (before, grown.endpoints), facts);
                let from = partial.from.clone();
                self.shifts.push_front(ShiftNote { at_ms: now_ms, from, class: None, text });
                Some(grown)
            });
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
                part_before: None,
                first_part: UNKNOWN_FIRST_PART,
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

    /// Notes the part that callers reach. A region that is reached as a whole may become uneven by other callers later. They need
    /// wider subsets, whatever the last growth added. A part that still falls when subsets grow is none that the growth has made.
    fn noting_part(self, part: f64, now_ms: u64) -> Self {
        let before = self.part_before.filter(|_| part < 1.0);
        let part_before = before.map(|before| if self.has_shown(now_ms) { before } else { before.min(part) });
        Self { part_before, ..self }
    }

    /// Whether reports show what the last growth has changed.
    fn has_shown(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.grown_at_ms) >= GROWTH_SHOWS_MS
    }
}

/// Doubles a subset until callers have more endpoints; `None` while the last growth does not show, or if it did not help. A part
/// that has fallen since is of other callers, as one that has grown is of more endpoints.
fn grow(
    wider: Option<WiderSubset>,
    (own, partial): (u32, &PartialSubset),
    part: f64,
    now_ms: u64,
) -> Option<WiderSubset> {
    let before = wider.map_or(own, |wider| wider.endpoints);
    let most = own.saturating_mul(MAX_GROWTH);
    let may_grow = wider.is_none_or(|wider| {
        wider.has_shown(now_ms) && wider.part_before.is_none_or(|before| (part - before).abs() >= GROWTH_ADDS)
    });
    let mut doubled = std::iter::successors(Some(before), |endpoints| {
        (*endpoints < most).then(|| endpoints.saturating_mul(2).min(most))
    });
    let endpoints = doubled.find(|endpoints| partial.endpoints(*endpoints) > partial.endpoints(before))?;
    let first_part = wider.map_or(part, |wider| wider.first_part);
    may_grow.then_some(WiderSubset {
        endpoints,
        part_before: Some(part),
        first_part,
        grown_at_ms: now_ms,
        needed_at_ms: now_ms,
    })
}

/// What operators are told of a growth. A planner that only observes writes no tables, so that no caller follows it.
fn growth_text(
    region: &Region,
    partial: &PartialSubset,
    (before, after): (u32, u32),
    facts: &ServiceFacts,
) -> String {
    let spread = facts.spread_in(region).unwrap_or_default();
    let would = if facts.traffic.mode == TrafficMode::Active { "" } else { "would " };
    format!(
        "callers {would}use {} instead of {} of the {} endpoints of {region}: a tenth of these is above {:.0} % of its CPU, the mean \
         is {:.0} %",
        partial.endpoints(after),
        partial.endpoints(before),
        partial.serving,
        spread.p90 * 100.0,
        spread.mean * 100.0,
    )
}
