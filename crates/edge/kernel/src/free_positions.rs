//! Allocates unused positions of an array.

use std::{collections::VecDeque, time::Duration};

use crate::connection_slots::QUARANTINE;

/// Allocates positions of an array. A released position is reused only after a quarantine, because a preempted
/// program may have read the position and not yet used it. Times are readings of
/// [`program_clock`](crate::program_clock).
#[derive(Debug)]
pub(crate) struct FreePositions {
    /// Free positions with the time of their release, oldest first; time 0 for positions that were never used.
    free: VecDeque<(Duration, u32)>,
}

impl FreePositions {
    /// Starts with all positions free. Positions for which `was_used` is true count as released at `now`.
    pub(crate) fn new(all: impl Iterator<Item = u32>, was_used: impl Fn(u32) -> bool, now: Duration) -> Self {
        let (used, unused): (Vec<_>, Vec<_>) = all.partition(|at| was_used(*at));
        let free = unused.into_iter().map(|at| (Duration::ZERO, at));
        Self { free: free.chain(used.into_iter().map(|at| (now, at))).collect() }
    }

    /// Allocates a position; `None` while all are in use or in quarantine.
    pub(crate) fn take(&mut self, now: Duration) -> Option<u32> {
        // The front is the position that has been free for the longest time.
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
    fn released_map_position_is_reused_after_quarantine() {
        let at = |seconds| Duration::from_secs(100) + Duration::from_secs_f64(seconds);
        let mut free = FreePositions::new(0..3, |at| at == 0, at(0.0));
        assert_eq!([free.take(at(0.1)), free.take(at(0.1)), free.take(at(0.1))], [Some(1), Some(2), None]);
        free.give_back(2, at(0.2));
        assert_eq!([free.take(at(1.0)), free.take(at(1.0))], [Some(0), None], "all others are in use");
        assert_eq!(free.take(at(1.19)), None, "a program may still count in it");
        assert_eq!(free.take(at(1.2)), Some(2));
    }
}
