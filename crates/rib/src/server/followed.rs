//! The bound on the prefixes that all watches of a node follow together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::MAX_PREFIXES;

/// One watch may follow this part of the prefixes that are still free.
const DIVISOR: usize = 16;
/// Maximum of prefixes of all watches, at about 0.5 KB each. A single watch can reach its own maximum.
pub const MAX_FOLLOWED: usize = (DIVISOR + 1) * MAX_PREFIXES;

/// Prefixes that every watch may follow, regardless of the others: about twenty services.
const MIN_PER_WATCH: usize = 64;

/// Counts followed prefixes, and refuses more than the maximum. Cheap to clone.
///
/// A watch may follow up to a sixteenth of the free prefixes (a dynamic threshold, as in shared switch buffers), and a few in any
/// case: so however many watches take their share, some is left for watches that follow less. First come, first served was
/// rejected: sixteen watches would exclude all others.
#[derive(Clone, Debug)]
pub struct FollowedPrefixes(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    max: usize,
    min_per_watch: usize,
    followed: AtomicUsize,
    refused: AtomicU64,
}

/// One followed prefix, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct FollowedPrefix(FollowedPrefixes);

impl Default for FollowedPrefixes {
    fn default() -> Self {
        Self::at_most(MAX_FOLLOWED, MIN_PER_WATCH)
    }
}

impl FollowedPrefixes {
    /// Other bounds: the maximum of all watches, and the prefixes that each watch may follow in any case.
    pub fn at_most(max: usize, min_per_watch: usize) -> Self {
        Self(Arc::new(Counts {
            max,
            min_per_watch,
            followed: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Number of followed prefixes.
    pub fn count(&self) -> usize {
        self.0.followed.load(Relaxed)
    }

    /// Number of refused prefixes.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// Admits one more prefix of a watch that follows `own`; `None` if that is refused.
    pub(crate) fn admit(&self, own: usize) -> Option<FollowedPrefix> {
        let others = self.0.followed.fetch_add(1, Relaxed);
        let prefix = FollowedPrefix(self.clone());
        if own < self.0.min_per_watch || own < self.0.max.saturating_sub(others).div_ceil(DIVISOR) {
            return Some(prefix);
        }
        self.0.refused.fetch_add(1, Relaxed);
        None
    }
}

impl Drop for FollowedPrefix {
    fn drop(&mut self) {
        self.0.0.followed.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many as it gets.
    fn fill(followed: &FollowedPrefixes, own: &mut Vec<FollowedPrefix>) {
        while let Some(place) = followed.admit(own.len()) {
            own.push(place);
        }
    }

    #[test]
    fn watches_that_take_all_they_get_leave_places_to_others() {
        let followed = FollowedPrefixes::at_most(17 * 1000, MIN_PER_WATCH);
        let mut greedy: Vec<Vec<FollowedPrefix>> = (0..100).map(|_| Vec::new()).collect();
        fill(&followed, &mut greedy[0]);
        assert_eq!(greedy[0].len(), 1000, "one alone gets a part");
        for own in &mut greedy {
            fill(&followed, own);
        }
        assert!(followed.count() < 17_000 + 100 * MIN_PER_WATCH && followed.refused() >= 100);
        let mut modest = Vec::new();
        fill(&followed, &mut modest);
        assert!(modest.len() >= MIN_PER_WATCH);
        drop((greedy, modest));
        assert_eq!(followed.count(), 0);
    }
}
