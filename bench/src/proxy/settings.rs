//! Load and duration of each measurement.

use std::time::Duration;

/// Numbers of connections. Over HTTP/1.1, each has one caller.
pub(super) const CONNECTIONS: [usize; 4] = [1, 16, 64, 128];
/// Bytes of each request and response body; 0 means a `GET`.
pub(super) const BODIES: [usize; 5] = [0, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Number of connections and bytes of the body for which the goal in microseconds was set.
pub(super) const FLOOR: (usize, usize) = (32, 5);
/// Maximum size of a small body, and number of connections from which on there are many.
pub(super) const SMALL: usize = 4 << 10;
pub(super) const MANY: usize = 16;
/// Body size for comparing throughput.
pub(super) const USUAL: usize = 1 << 10;
/// Number of HTTP/2 connections, and concurrent calls over all of them.
pub(super) const MULTIPLEXED: (usize, usize) = (4, 64);
/// Duration of one turn of open-loop load.
pub(super) const TURN: Duration = Duration::from_millis(150);

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Number of passes over all settings with closed-loop load. Several, because a machine's speed fluctuates for
    /// seconds at a time, which must not hit only one setting.
    pub(super) passes: usize,
    /// Rounds of a setting in one pass, not counting a warm-up round.
    pub(super) rounds: usize,
    /// Duration for which each side is called in one such round.
    pub(super) slice: Duration,
    /// For ghz: passes, rounds, and calls of a side in each round.
    pub(super) ghz: (usize, usize, u64),
    /// Rounds of open-loop load.
    pub(super) turns: usize,
    pub(super) quick: bool,
}

impl Scale {
    pub(super) fn new(quick: bool) -> Self {
        let ms = Duration::from_millis;
        match quick {
            true => Self { passes: 2, rounds: 4, slice: ms(45), ghz: (1, 3, 3_000), turns: 12, quick },
            false => Self { passes: 10, rounds: 5, slice: ms(60), ghz: (10, 3, 5_000), turns: 100, quick },
        }
    }

    /// Numbers of connections with which a body of this size is measured.
    pub(super) fn connections(self, body: usize) -> &'static [usize] {
        match (body == FLOOR.1, self.quick) {
            (true, true) => &[],
            (true, false) => &[FLOOR.0],
            (false, true) if body != USUAL => &CONNECTIONS[1..2],
            (false, _) => &CONNECTIONS,
        }
    }
}
