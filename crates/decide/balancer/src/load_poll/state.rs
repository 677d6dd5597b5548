use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{EndpointStats, LoadReport, ReceivedReport};

/// How long a measured round trip is valid, and the length of the windows over which minima are taken, in nanoseconds.
const ROUND_TRIP_WINDOW: u64 = 60_000_000_000;

/// Round trip and polling state of a server (ServiceRouter §3.4.3). All times are nanoseconds of the clock.
#[derive(Debug)]
pub struct PollState {
    /// Minimum round-trip time since `window_start`.
    current_min: AtomicU64,
    /// Minimum round-trip time of the previous window.
    previous_min: AtomicU64,
    window_start: AtomicU64,
    /// When the last response to a poll arrived; 0 before the first.
    last_response: AtomicU64,
    /// When the last polled report arrived; 0 before the first.
    polled_at: AtomicU64,
    /// When the server may be polled again.
    suspended_until: AtomicU64,
    in_flight: AtomicBool,
}

impl Default for PollState {
    fn default() -> Self {
        Self {
            current_min: AtomicU64::new(u64::MAX),
            previous_min: AtomicU64::new(u64::MAX),
            window_start: AtomicU64::new(0),
            last_response: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            suspended_until: AtomicU64::new(0),
            in_flight: AtomicBool::new(false),
        }
    }
}

impl PollState {
    /// Returns the round-trip time to the server. Without a recent measurement it is 0, so that the server is polled
    /// and measured again. Connect times are no substitute, because programs open connections when they are busiest.
    pub fn round_trip(&self, now: u64) -> u64 {
        match self.last_response.load(Relaxed) {
            0 => 0,
            at if now.saturating_sub(at) >= ROUND_TRIP_WINDOW => 0,
            _ => self.current_min.load(Relaxed).min(self.previous_min.load(Relaxed)),
        }
    }

    /// Records the round-trip time of a poll; only for the holder of the [`PollGuard`]. The minimum is used, because
    /// any excess is processing time, and a busy server is no further away. Minima are taken over windows, since routes
    /// change. The previous window counts too, so that one late response does not make a server seem far.
    pub fn record_round_trip(&self, time: u64, now: u64) {
        if now.saturating_sub(self.window_start.load(Relaxed)) >= ROUND_TRIP_WINDOW {
            let is_recent = now.saturating_sub(self.last_response.load(Relaxed)) < ROUND_TRIP_WINDOW;
            let previous_min = if is_recent { self.current_min.load(Relaxed) } else { u64::MAX };
            self.previous_min.store(previous_min, Relaxed);
            self.current_min.store(time, Relaxed);
            self.window_start.store(now, Relaxed);
        } else {
            self.current_min.fetch_min(time, Relaxed);
        }
        self.last_response.store(now, Relaxed);
    }

    /// Whether the server may be polled.
    pub fn is_pollable(&self, now: u64) -> bool {
        now >= self.suspended_until.load(Relaxed) && !self.in_flight.load(Relaxed)
    }

    /// Acquires the right to poll the server. Returns `None` while another poll is in flight.
    pub fn try_acquire(self: &Arc<Self>) -> Option<PollGuard> {
        (!self.in_flight.swap(true, Acquire)).then(|| PollGuard(Arc::clone(self)))
    }

    /// Records the polled report, which arrived at `now`, of the server at `index`.
    pub fn record_report(&self, stats: &EndpointStats, index: u32, load: LoadReport, now: u64) {
        self.polled_at.store(now, Relaxed);
        stats.record_polled_report(index, load, now);
    }

    /// Whether a report came from a poll rather than the response to a call.
    pub fn is_polled_report(&self, report: &ReceivedReport) -> bool {
        self.polled_at.load(Relaxed) == report.at
    }
}

/// The right to poll a server. Dropping the guard, as a cancelled poll does, releases the right.
#[derive(Debug)]
pub struct PollGuard(Arc<PollState>);

impl PollGuard {
    /// Ends the poll. The server is not polled again before `suspended_until`.
    pub fn finish(self, suspended_until: u64) {
        self.0.suspended_until.store(suspended_until, Relaxed);
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        self.0.in_flight.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn minimum_round_trip_expires_and_is_replaced_by_longer_one() {
        let state = PollState::default();
        let after = |time, now| {
            state.record_round_trip(time, now);
            state.round_trip(now)
        };
        let begun = 100 * SECOND;
        assert_eq!(state.round_trip(begun), 0, "unmeasured counts as near");
        assert_eq!(after(500, begun), 500);
        assert_eq!(after(9000, begun + 59 * SECOND), 500);
        assert_eq!(after(9000, begun + 61 * SECOND), 500, "one late response changes nothing");
        assert_eq!(after(800, begun + 119 * SECOND), 500);
        assert_eq!(after(9000, begun + 122 * SECOND), 800);
        assert_eq!(state.round_trip(begun + 183 * SECOND), 0, "expired");
        assert_eq!(after(7000, begun + 183 * SECOND), 7000, "the expired minimum no longer counts");
    }

    #[test]
    fn dropped_load_poll_guard_allows_next_poll() {
        let state = Arc::new(PollState::default());
        let guard = state.try_acquire().unwrap();
        assert!(state.try_acquire().is_none() && !state.is_pollable(SECOND));
        drop(guard);
        assert!(state.is_pollable(SECOND));
        state.try_acquire().unwrap().finish(2 * SECOND);
        assert!(!state.is_pollable(SECOND) && state.is_pollable(2 * SECOND));
    }
}
