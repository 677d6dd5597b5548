//! Positions of an array that nothing uses.

use std::{collections::VecDeque, time::Duration};

use crate::slots::QUARANTINE;

/// Positions that are given out again once no program can still use them for what they held before: a program may be preempted between
/// reading a position and using it. Times are those of [`program_clock`](crate::program_clock).
#[derive(Debug)]
pub(crate) struct FreePositions {
    /// Since when they are free, in order; 0 for those that were never used.
    free: VecDeque<(Duration, u32)>,
}

impl FreePositions {
    /// Of these positions, some were used by an earlier proxy, until `now`.
    pub(crate) fn new(all: impl Iterator<Item = u32>, was_used: impl Fn(u32) -> bool, now: Duration) -> Self {
        let (used, unused): (Vec<_>, Vec<_>) = all.partition(|at| was_used(*at));
        let free = unused.into_iter().map(|at| (Duration::ZERO, at));
        Self { free: free.chain(used.into_iter().map(|at| (now, at))).collect() }
    }

    /// `None` while all are in use, or have been until a moment ago.
    pub(crate) fn take(&mut self, now: Duration) -> Option<u32> {
        // The first one has been free for the longest.
        let (since, _) = self.free.front()?;
        let is_unused = since.is_zero() || now.saturating_sub(*since) >= QUARANTINE;
        if is_unused { self.free.pop_front().map(|(_, at)| at) } else { None }
    }

    pub(crate) fn give_back(&mut self, at: u32, now: Duration) {
        self.free.push_back((now, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_given_out_again_only_after_its_quarantine() {
        let at = |seconds| Duration::from_secs(100) + Duration::from_secs_f64(seconds);
        let mut free = FreePositions::new(0..3, |at| at == 0, at(0.0));
        assert_eq!([free.take(at(0.1)), free.take(at(0.1)), free.take(at(0.1))], [Some(1), Some(2), None]);
        free.give_back(2, at(0.2));
        assert_eq!([free.take(at(1.0)), free.take(at(1.0))], [Some(0), None], "all others are in use");
        assert_eq!(free.take(at(1.19)), None, "a program may still count in it");
        assert_eq!(free.take(at(1.2)), Some(2));
    }
}
