//! Whether servers work on calls that arrived earlier.

use crate::{observation::ServerReport, observation_check::FULL};

/// A region may be full below this utilisation only by its thresholds.
const LEAST_FULL: f64 = 0.85;
/// A load above this is no share of CPU, but that of a metric without an upper bound, which says by itself how full servers are.
const MOST_FULL: f64 = 1.05;
/// Calls of a backlog end, answered or timed out, within this time. A region that is full for longer is so by what calls cost.
const LONGEST_BACKLOG_MS: u64 = 30_000;
/// Responses that are more than the calls that arrived, by this part of them and this many per second, end calls of earlier.
const MORE_ANSWERED: f64 = 1.1;
const MIN_ANSWERED: f64 = 5.0;

/// A region that was full has calls waiting, and works on them while fewer arrive: its calls seem dearer than they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Backlog {
    /// When the region was full first, of a time that has not ended.
    since_ms: Option<u64>,
    /// The last report that showed a backlog. What was left of it may have ended within the next one.
    last_ms: u64,
    /// The last report.
    at_ms: u64,
}

impl Backlog {
    /// Takes a report; regions are full from this load on.
    pub(crate) fn observe(&mut self, servers: &ServerReport, ceiling: f64) {
        if servers.at_ms <= self.at_ms {
            return;
        }
        let is_full = (ceiling.clamp(LEAST_FULL, FULL)..=MOST_FULL).contains(&servers.load);
        let ends_calls = servers.answered > servers.received * MORE_ANSWERED + MIN_ANSWERED;
        if is_full || ends_calls {
            self.since_ms.get_or_insert(servers.at_ms);
            self.last_ms = servers.at_ms;
        } else if self.last_ms < self.at_ms {
            self.since_ms = None;
        }
        self.at_ms = servers.at_ms;
    }

    /// Whether the load of the last report may be that of earlier calls.
    pub(crate) fn is_possible(&self) -> bool {
        self.since_ms.is_some_and(|since| self.at_ms.saturating_sub(since) < LONGEST_BACKLOG_MS)
    }
}
