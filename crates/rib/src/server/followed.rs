//! How many prefixes all watches of a node follow together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::MAX_PREFIXES;

/// The part of the free places that one watch may have.
const PART: usize = 16;
/// The most prefixes of all watches together, at about 0.5 KB each: a single watch gets its own bound.
pub const MAX_FOLLOWED: usize = (PART + 1) * MAX_PREFIXES;

/// What every watch may follow, however many others do: some twenty services.
const LEAST: usize = 64;

/// Counts them, and refuses further ones. Cheap to clone.
///
/// A watch may follow as many as a sixteenth of the places that are free (a dynamic threshold, as switches share their buffers): however
/// many watches take all that they get, places are left for others that follow less, and each gets a few in any case. First come, first served was rejected: sixteen
/// watches would shut out all others.
#[derive(Clone, Debug)]
pub struct FollowedPrefixes(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    most: usize,
    least: usize,
    places: AtomicUsize,
    refused: AtomicU64,
}

/// The place of one followed prefix, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct FollowedPrefix(FollowedPrefixes);

impl Default for FollowedPrefixes {
    fn default() -> Self {
        Self::at_most(MAX_FOLLOWED, LEAST)
    }
}

impl FollowedPrefixes {
    /// With other bounds, on all of them and on what each watch gets in any case.
    pub fn at_most(most: usize, least: usize) -> Self {
        Self(Arc::new(Counts { most, least, places: AtomicUsize::new(0), refused: AtomicU64::new(0) }))
    }

    /// Prefixes followed now.
    pub fn count(&self) -> usize {
        self.0.places.load(Relaxed)
    }

    /// Prefixes refused so far.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// A place for one more prefix of a watch that has this many; `None` where there is none for it.
    pub(crate) fn admit(&self, own: usize) -> Option<FollowedPrefix> {
        let others = self.0.places.fetch_add(1, Relaxed);
        let place = FollowedPrefix(self.clone());
        if own < self.0.least || own < self.0.most.saturating_sub(others).div_ceil(PART) {
            return Some(place);
        }
        self.0.refused.fetch_add(1, Relaxed);
        None
    }
}

impl Drop for FollowedPrefix {
    fn drop(&mut self) {
        self.0.0.places.fetch_sub(1, Relaxed);
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
        let followed = FollowedPrefixes::at_most(17 * 1000, LEAST);
        let mut greedy: Vec<Vec<FollowedPrefix>> = (0..100).map(|_| Vec::new()).collect();
        fill(&followed, &mut greedy[0]);
        assert_eq!(greedy[0].len(), 1000, "one alone gets a part");
        for own in &mut greedy {
            fill(&followed, own);
        }
        assert!(followed.count() < 17_000 + 100 * LEAST && followed.refused() >= 100);
        let mut modest = Vec::new();
        fill(&followed, &mut modest);
        assert!(modest.len() >= LEAST);
        drop((greedy, modest));
        assert_eq!(followed.count(), 0);
    }
}
