//! Load and duration of each measurement.

use std::time::Duration;

/// Connections, which are callers over HTTP/1.1.
pub(super) const CONNECTIONS: [usize; 4] = [1, 16, 64, 128];
/// Bytes of bodies, the same there and back; without any it is a `GET`.
pub(super) const BODIES: [usize; 5] = [0, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Connections and bytes of the body where the goal for microseconds was set.
pub(super) const FLOOR: (usize, usize) = (32, 5);
/// Up to which size a body counts as small, and at which connections as many.
pub(super) const SMALL: usize = 4 << 10;
pub(super) const MANY: usize = 16;
/// The body that throughput is compared with.
pub(super) const USUAL: usize = 1 << 10;
/// Connections of HTTP/2, and how many call at a time over all of them.
pub(super) const MULTIPLEXED: (usize, usize) = (4, 64);
/// One turn of open-loop load.
pub(super) const TURN: Duration = Duration::from_millis(150);

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// How often closed-loop load goes through all settings: a machine has moods that last for seconds, and no setting is to have
    /// one to itself.
    pub(super) passes: usize,
    /// Rounds of a setting in one pass, besides one to warm up.
    pub(super) rounds: usize,
    /// How long each side is called in one of those.
    pub(super) slice: Duration,
    /// The same of ghz: passes, rounds, and its calls of a side in each.
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

    /// With which numbers of connections a body of this size is measured.
    pub(super) fn connections(self, body: usize) -> &'static [usize] {
        match (body == FLOOR.1, self.quick) {
            (true, true) => &[],
            (true, false) => &[FLOOR.0],
            (false, true) if body != USUAL => &CONNECTIONS[1..2],
            (false, _) => &CONNECTIONS,
        }
    }
}
