//! How far the clock is believed, by another one that never jumps.

use fairmesh_imbalance::{Minute, Moment};

/// How much the clock may gain between two readings without having jumped, in milliseconds: adjustments are smaller.
const TOLERANCE_MS: u64 = 2 * 60_000;
/// How long the clock must go on steadily, in milliseconds, before anything is deleted by what it says, and before a
/// jump ahead is believed. A clock that is wrong is mostly put back sooner; one that stays is right, such as after a
/// machine was asleep. Never believing it was rejected: nothing would be closed until a restart.
const STEADY_MS: u64 = 60 * 60_000;

/// A clock that is watched.
#[derive(Debug, Default)]
pub(super) struct Clock {
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    last: Moment,
    /// How far the clock is ahead of what is believed, in milliseconds.
    ahead_ms: u64,
    /// Since when the clock has gone on steadily, by the one that never jumps.
    steady_since_ms: u64,
}

/// What to go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Believed {
    /// The minute up to which time has passed.
    pub(super) now: Minute,
    /// Whether that is sure enough to delete by.
    pub(super) steady: bool,
    /// How far the clock has just jumped ahead, in milliseconds.
    pub(super) jumped_ms: Option<u64>,
}

impl Clock {
    pub(super) fn read(&mut self, at: Moment) -> Believed {
        let fresh = Known { last: at, ahead_ms: 0, steady_since_ms: at.elapsed_ms };
        let mut known = self.known.unwrap_or(fresh);
        let passed = at.elapsed_ms.saturating_sub(known.last.elapsed_ms);
        let expected = known.last.clock_ms.saturating_add(passed);
        let (gained, lost) = (at.clock_ms.saturating_sub(expected), expected.saturating_sub(at.clock_ms));
        let jumped = gained > TOLERANCE_MS;
        if jumped {
            known.ahead_ms = known.ahead_ms.saturating_add(gained);
            known.steady_since_ms = at.elapsed_ms;
        } else {
            known.ahead_ms = known.ahead_ms.saturating_sub(lost);
        }
        let steady = at.elapsed_ms.saturating_sub(known.steady_since_ms) >= STEADY_MS;
        if steady {
            known.ahead_ms = 0;
        }
        known.last = at;
        self.known = Some(known);
        let now = Minute::of_ms(at.clock_ms.saturating_sub(known.ahead_ms));
        Believed { now, steady, jumped_ms: jumped.then_some(gained) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const DECADE: u64 = 10 * 366 * 24 * 60;
    const START: u64 = 28_000_000;

    /// Reads at this minute since the start, by a clock that is ahead by so many minutes.
    fn read(clock: &mut Clock, minute: u64, ahead: u64) -> (u64, bool, bool) {
        let at = Moment { elapsed_ms: minute * MINUTE, clock_ms: (START + minute + ahead) * MINUTE };
        let believed = clock.read(at);
        (u64::from(believed.now.0) - START, believed.steady, believed.jumped_ms.is_some())
    }

    #[test]
    fn time_that_goes_on_is_believed_and_deleted_by_after_an_hour() {
        let mut clock = Clock::default();
        for minute in 0..200 {
            assert_eq!(read(&mut clock, minute, 0), (minute, minute >= 60, false));
        }
    }

    #[test]
    fn a_jump_ahead_that_is_taken_back_moves_and_deletes_nothing() {
        let mut clock = Clock::default();
        for minute in 0..100 {
            read(&mut clock, minute, 0);
        }
        assert_eq!(read(&mut clock, 100, DECADE), (100, false, true));
        for minute in 101..130 {
            assert_eq!(read(&mut clock, minute, DECADE), (minute, false, false));
        }
        assert_eq!(read(&mut clock, 130, 0), (130, false, false));
        assert_eq!(read(&mut clock, 161, 0), (161, true, false), "steady again");
    }

    #[test]
    fn a_jump_ahead_that_stays_is_believed_after_an_hour() {
        let mut clock = Clock::default();
        read(&mut clock, 0, 0);
        assert_eq!(read(&mut clock, 1, DECADE), (1, false, true));
        assert_eq!(read(&mut clock, 60, DECADE), (60, false, false));
        assert_eq!(read(&mut clock, 61, DECADE), (61 + DECADE, true, false));
    }

    #[test]
    fn a_clock_that_is_put_back_is_followed_and_small_adjustments_are_none() {
        let mut clock = Clock::default();
        read(&mut clock, 0, 50);
        assert_eq!(read(&mut clock, 1, 10), (11, false, false));
        assert_eq!(read(&mut clock, 2, 12), (14, false, false));
    }
}
