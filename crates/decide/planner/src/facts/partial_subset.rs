//! Callers whose subset is a part of a region's endpoints.

use fairmesh_model::{Region, Share, subset_for_share};

use super::ServiceFacts;

/// Smaller regions are taken for evenly loaded while the policy's subset has all of their endpoints: a tenth of their servers is
/// less than one, and single servers differ by noise.
const MIN_SERVERS: u32 = 10;

/// The subset of callers in one region among the endpoints of one region.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PartialSubset {
    /// The region of the callers.
    pub(crate) from: Region,
    /// The share of their calls that goes to the endpoints, by which routers scale the subset.
    share: Share,
    /// The serving endpoints.
    pub(crate) serving: u32,
}

impl PartialSubset {
    /// Number of endpoints to which one caller keeps connections. `whole` is its subset for all calls.
    pub(crate) fn endpoints(&self, whole: u32) -> u32 {
        subset_for_share(whole, self.share).min(self.serving)
    }

    /// Whether a caller with this subset for all calls keeps connections to some endpoints only.
    pub(crate) fn is_partial(&self, whole: u32) -> bool {
        self.endpoints(whole) < self.serving
    }
}

impl ServiceFacts {
    /// The callers that by the policy keep connections to some endpoints of a region only. If callers in several regions
    /// do so, those that send it the most calls. `None` if all callers keep connections to all endpoints, or the region has fewer
    /// than ten and they would keep connections to all if all their calls went there.
    pub(crate) fn partial_subset(&self, region: &Region) -> Option<PartialSubset> {
        let own = self.own_subset()?;
        let serving = self.serving_in(region);
        let by_source = self.reports.calls.chunk_by(|(path, _), (next, _)| path.from == next.from);
        let sources = by_source.filter_map(|calls| {
            let to_region = calls.iter().filter(|(path, _)| path.to.as_ref() == Some(region));
            let attempts: u64 = to_region.map(|(_, rates)| rates.attempts).sum();
            let from = &calls.first()?.0.from;
            let share = self.share_of(from, region).filter(|_| attempts > 0)?;
            Some((attempts, PartialSubset { from: from.clone(), share, serving }))
        });
        let is_large = own < serving || serving >= MIN_SERVERS;
        let partial = sources.filter(|(_, source)| is_large && source.is_partial(own));
        partial.max_by_key(|(attempts, _)| *attempts).map(|(_, source)| source)
    }

    /// The greatest share of calls of a class that the table of callers in `from` sends to a region, as routers determine
    /// subsets. Without a table, each region in use gets all calls.
    fn share_of(&self, from: &Region, region: &Region) -> Option<Share> {
        let Some(stored) = self.tables.get(from) else { return Some(Share::ALL) };
        let shares = stored.table.shares.iter().filter_map(|(_, shares)| shares.to.get(region));
        shares.max().copied()
    }
}
