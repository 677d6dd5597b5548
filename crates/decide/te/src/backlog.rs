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
/// Calls that arrived within this time may wait while those that end show what calls cost. Callers give up few of them so soon;
/// servers may work on calls that were given up, and no count shows these.
const SHORT_S: f64 = 0.5;
/// With a greater share of calls that do not end in the same interval, the rest says too little.
const MOST_FAILING: f64 = 0.5;
/// Longer intervals between reports count as this one.
const LONGEST_INTERVAL_MS: u64 = 5_000;

/// A region that was full has calls waiting, and works on them while fewer arrive: its calls seem dearer than they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Backlog {
    /// When the region was full first, of a time that has not ended.
    since_ms: Option<u64>,
    /// The last report that showed a backlog. What was left of it may have ended within the next one.
    last_ms: u64,
    /// The last report.
    at_ms: u64,
    /// Calls that have arrived since the region was full first, and have not ended.
    waiting: f64,
    /// Calls per second that ended in the last report, while few calls wait.
    ended: Option<f64>,
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
            let elapsed_ms = servers.at_ms.saturating_sub(self.at_ms).min(LONGEST_INTERVAL_MS);
            let more = servers.received * servers.failing * elapsed_ms as f64 / 1e3;
            self.waiting = (self.waiting + more).max(0.0);
            self.since_ms.get_or_insert(servers.at_ms);
            self.last_ms = servers.at_ms;
        } else if self.last_ms < self.at_ms {
            (self.since_ms, self.waiting) = (None, 0.0);
        }
        let is_counted = servers.answered > 0.0 && servers.failing <= MOST_FAILING;
        let is_short = is_counted && !ends_calls && self.waiting <= SHORT_S * servers.received;
        self.ended = is_short.then_some(servers.received * (1.0 - servers.failing));
        self.at_ms = servers.at_ms;
    }

    /// Calls per second that the load of the last report is that of, though more may have arrived; `None` while it may be that of
    /// earlier calls.
    pub(crate) fn ended(&self) -> Option<f64> {
        self.ended
    }

    /// Whether the load of the last report may be that of earlier calls.
    pub(crate) fn is_possible(&self) -> bool {
        self.since_ms.is_some_and(|since| self.at_ms.saturating_sub(since) < LONGEST_BACKLOG_MS)
    }
}
