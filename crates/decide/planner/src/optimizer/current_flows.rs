use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{CallNode, Region, TrafficReport};

/// The time in which a count loses half of its weight, as in the call graph.
const HALF_LIFE_MS: f64 = 20_000.0;
/// The most pairs of regions of all nodes; calls between further ones are left out.
const MAX_FLOWS: usize = 65_536;
/// Counts below this are forgotten.
const LEAST: f64 = 1e-3;

/// How the calls of each node are divided among regions at present, with any planner or none. Decayed counts. Bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    counts: BTreeMap<CallNode, BTreeMap<(Region, Region), f64>>,
    /// Number of all counts.
    len: usize,
    observed_at_ms: Option<u64>,
}

impl Flows {
    /// Counts attempts of a sum of reports.
    pub(super) fn observe(&mut self, sum: &TrafficReport, now_ms: u64) {
        let elapsed = self.observed_at_ms.replace(now_ms).map_or(0, |at| now_ms.saturating_sub(at));
        let factor = (-(elapsed as f64) / HALF_LIFE_MS).exp2();
        for counts in self.counts.values_mut() {
            counts.values_mut().for_each(|count| *count *= factor);
            counts.retain(|_, count| *count >= LEAST);
        }
        self.counts.retain(|_, counts| !counts.is_empty());
        self.len = self.counts.values().map(BTreeMap::len).sum();
        for (path, rates) in &sum.calls {
            let Some(to) = &path.to else { continue };
            let node = CallNode { service: path.service.clone(), class: path.class.clone() };
            let pair = (path.from.clone(), to.clone());
            let is_known = self.counts.get(&node).is_some_and(|counts| counts.contains_key(&pair));
            if is_known || self.len < MAX_FLOWS {
                self.len += usize::from(!is_known);
                *self.counts.entry(node).or_default().entry(pair).or_default() += rates.attempts as f64;
            }
        }
    }

    /// Shares by destination of the calls of a node from a region; none without calls.
    pub(super) fn shares(&self, node: &CallNode, from: &Region) -> BTreeMap<&Region, f64> {
        let of_region = self.of(node).filter(|(source, ..)| *source == from);
        let counts: BTreeMap<&Region, f64> = of_region.map(|(_, to, count)| (to, count)).collect();
        let total: f64 = counts.values().sum();
        counts.into_iter().map(|(to, count)| (to, count / total)).collect()
    }

    /// The regions that serve calls of a node.
    pub(super) fn destinations(&self, node: &CallNode) -> BTreeSet<&Region> {
        self.of(node).map(|(_, to, _)| to).collect()
    }

    fn of(&self, node: &CallNode) -> impl Iterator<Item = (&Region, &Region, f64)> {
        let counts = self.counts.get(node).into_iter().flatten();
        counts.map(|((from, to), count)| (from, to, *count))
    }
}
