//! Detects jumps of the wall clock by comparing it with the monotonic clock.

use fairmesh_imbalance::{Minute, Moment};

/// Maximum difference in progress between the two clocks that counts as an adjustment rather than a jump, in
/// milliseconds.
const TOLERANCE_MS: u64 = 2 * 60_000;
/// Time without a jump, in milliseconds, after which the wall clock is trusted: data may be deleted by it,
/// and a jump ahead is accepted. A wrong clock is usually corrected sooner; a jump that lasts is right, for
/// instance after a machine was suspended. Never trusting a jump was rejected: no minute would be closed
/// until a restart.
const STEADY_MS: u64 = 60 * 60_000;

/// Tracks the wall clock.
#[derive(Debug, Default)]
pub(super) struct TrustedClock {
    state: Option<ClockState>,
}

#[derive(Clone, Copy, Debug)]
struct ClockState {
    last: Moment,
    /// Time by which the wall clock is ahead of the trusted time, in milliseconds.
    ahead_ms: u64,
    /// Monotonic time of the last jump.
    steady_since_ms: u64,
}

/// A reading of the trusted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrustedTime {
    /// The current minute by trusted time.
    pub(super) now: Minute,
    /// Whether expired data may be deleted by this time.
    pub(super) steady: bool,
    /// Size of a jump ahead since the last reading, in milliseconds.
    pub(super) jumped_ms: Option<u64>,
}

impl TrustedClock {
    pub(super) fn read(&mut self, at: Moment) -> TrustedTime {
        let fresh = ClockState { last: at, ahead_ms: 0, steady_since_ms: at.elapsed_ms };
        let mut state = self.state.unwrap_or(fresh);
        let passed = at.elapsed_ms.saturating_sub(state.last.elapsed_ms);
        let expected = state.last.clock_ms.saturating_add(passed);
        let (gained, lost) = (at.clock_ms.saturating_sub(expected), expected.saturating_sub(at.clock_ms));
        let jumped = gained > TOLERANCE_MS;
        if jumped {
            state.ahead_ms = state.ahead_ms.saturating_add(gained);
            state.steady_since_ms = at.elapsed_ms;
        } else {
            state.ahead_ms = state.ahead_ms.saturating_sub(lost);
        }
        let steady = at.elapsed_ms.saturating_sub(state.steady_since_ms) >= STEADY_MS;
        if steady {
            state.ahead_ms = 0;
        }
        state.last = at;
        self.state = Some(state);
        let now = Minute::of_ms(at.clock_ms.saturating_sub(state.ahead_ms));
        TrustedTime { now, steady, jumped_ms: jumped.then_some(gained) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const DECADE: u64 = 10 * 366 * 24 * 60;
    const START: u64 = 28_000_000;

    /// Reads the clock `minute` minutes after the start, with a wall clock that is `ahead` minutes ahead.
    fn read(clock: &mut TrustedClock, minute: u64, ahead: u64) -> (u64, bool, bool) {
        let at = Moment { elapsed_ms: minute * MINUTE, clock_ms: (START + minute + ahead) * MINUTE };
        let trusted = clock.read(at);
        (u64::from(trusted.now.0) - START, trusted.steady, trusted.jumped_ms.is_some())
    }

    #[test]
    fn steady_clock_is_trusted_for_deletion_after_one_hour() {
        let mut clock = TrustedClock::default();
        for minute in 0..200 {
            assert_eq!(read(&mut clock, minute, 0), (minute, minute >= 60, false));
        }
    }

    #[test]
    fn corrected_clock_jump_ahead_does_not_change_trusted_time() {
        let mut clock = TrustedClock::default();
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
    fn lasting_clock_jump_ahead_is_trusted_after_one_hour() {
        let mut clock = TrustedClock::default();
        read(&mut clock, 0, 0);
        assert_eq!(read(&mut clock, 1, DECADE), (1, false, true));
        assert_eq!(read(&mut clock, 60, DECADE), (60, false, false));
        assert_eq!(read(&mut clock, 61, DECADE), (61 + DECADE, true, false));
    }

    #[test]
    fn clock_set_back_is_followed_and_small_adjustments_are_not_jumps() {
        let mut clock = TrustedClock::default();
        read(&mut clock, 0, 50);
        assert_eq!(read(&mut clock, 1, 10), (11, false, false));
        assert_eq!(read(&mut clock, 2, 12), (14, false, false));
    }
}
