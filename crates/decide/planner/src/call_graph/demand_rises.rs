//! Demand that rises faster than a mean of the last seconds.

use std::collections::BTreeMap;

use fairmesh_model::Region;

use super::CallGraph;

/// Standard deviations of a count of calls that are no chance.
const NO_CHANCE: f64 = 4.0;
/// The part of a region's calls that a rise adds at least, for a plan to be made for it at once: small services exceed chance every minute.
const NOTABLE: f64 = 0.1;

/// Calls per second of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    all: f64,
    added: f64,
}

/// Decayed counts by region, and their decayed seconds.
type Counts<'a> = (&'a BTreeMap<Region, f64>, f64);

impl CallGraph {
    /// Takes over rates of the last sum alone that are higher than chance explains: a mean of seconds says half of a rise for as long as
    /// its half-life, and plans made meanwhile fill pools. Falls are left to the mean, since a plan for too many calls does no harm. Returns
    /// whether the calls of any region rose notably.
    pub(crate) fn adopt_rises(&mut self, last: &Self) -> bool {
        let mut regions = BTreeMap::new();
        for (node, sums) in &mut self.nodes {
            if let Some(newest) = last.nodes.get(node) {
                let newest = (&newest.demand, newest.seconds);
                adopt((&mut sums.demand, sums.seconds), newest, &mut regions);
            }
        }
        for (edge, sums) in &mut self.edges {
            if let Some(newest) = last.edges.get(edge) {
                adopt((&mut sums.from, sums.seconds), (&newest.from, newest.seconds), &mut regions);
            }
        }
        regions.values().any(|calls| calls.added > NOTABLE * calls.all)
    }
}

fn adopt(
    (counts, seconds): (&mut BTreeMap<Region, f64>, f64),
    (newest, of): Counts<'_>,
    regions: &mut BTreeMap<Region, Calls>,
) {
    for (region, calls) in newest.iter().filter(|_| seconds > 0.0 && of > 0.0) {
        let count = counts.entry(region.clone()).or_default();
        let sum = regions.entry(region.clone()).or_default();
        let expected = *count / seconds * of;
        sum.all += calls / of;
        // A Poisson count has its mean as variance.
        if *calls > expected + NO_CHANCE * expected.max(1.0).sqrt() {
            *count = calls / of * seconds;
            sum.added += (calls - expected) / of;
        }
    }
}
