use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{EndpointStats, LoadReport, ReceivedReport};

/// How long a measured round trip is believed, in nanoseconds, and over how long the shortest is looked for.
const ROUND_TRIP_WINDOW: u64 = 60_000_000_000;

/// How far away a server is, and what came of asking it for its load (ServiceRouter §3.4.3). All times are nanoseconds of the clock.
#[derive(Debug)]
pub struct PollState {
    /// The shortest time of an answer since `window_start`.
    current_min: AtomicU64,
    /// The shortest in the time before.
    previous_min: AtomicU64,
    window_start: AtomicU64,
    /// When the last answer came; 0 before any.
    last_response: AtomicU64,
    /// When the last report came that was asked for; 0 before any.
    polled_at: AtomicU64,
    /// Until when the server is left alone.
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
    /// The time of a round trip to the server. One that was not measured for long is taken for near, and so asked and measured
    /// again: how long connections took says little, as programs open them when they have most to do.
    pub fn round_trip(&self, now: u64) -> u64 {
        match self.last_response.load(Relaxed) {
            0 => 0,
            at if now.saturating_sub(at) >= ROUND_TRIP_WINDOW => 0,
            _ => self.current_min.load(Relaxed).min(self.previous_min.load(Relaxed)),
        }
    }

    /// An answer took this long; only for whoever has the [`PollGuard`]. The shortest counts: what the others took longer is either
    /// end's own time, and a busy server is no further away. It is looked for anew now and then, since ways change; what it was
    /// until then counts once more, so that one late answer does not make a server seem far.
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

    /// Whether the server may be asked.
    pub fn is_pollable(&self, now: u64) -> bool {
        now >= self.suspended_until.load(Relaxed) && !self.in_flight.load(Relaxed)
    }

    /// Claims the server, so that nobody else asks it meanwhile; `None` where somebody else has.
    pub fn try_acquire(self: &Arc<Self>) -> Option<PollGuard> {
        (!self.in_flight.swap(true, Acquire)).then(|| PollGuard(Arc::clone(self)))
    }

    /// Keeps what the server at `index` answered at `now`.
    pub fn record_report(&self, stats: &EndpointStats, index: u32, load: LoadReport, now: u64) {
        self.polled_at.store(now, Relaxed);
        stats.record_polled_report(index, load, now);
    }

    /// Whether a report was asked for, rather than part of an answer to a call.
    pub fn is_polled_report(&self, report: &ReceivedReport) -> bool {
        self.polled_at.load(Relaxed) == report.at
    }
}

/// The right to ask a server, until it is dropped: also where whoever asks is.
#[derive(Debug)]
pub struct PollGuard(Arc<PollState>);

impl PollGuard {
    /// The question is over, and the server is left alone until then.
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
    fn a_longer_round_trip_replaces_an_expired_minimum() {
        let state = PollState::default();
        let after = |time, now| {
            state.record_round_trip(time, now);
            state.round_trip(now)
        };
        let begun = 100 * SECOND;
        assert_eq!(state.round_trip(begun), 0, "it is taken for eligible");
        assert_eq!(after(500, begun), 500);
        assert_eq!(after(9000, begun + 59 * SECOND), 500);
        assert_eq!(after(9000, begun + 61 * SECOND), 500, "one late answer says nothing yet");
        assert_eq!(after(800, begun + 119 * SECOND), 500);
        assert_eq!(after(9000, begun + 122 * SECOND), 800);
        assert_eq!(state.round_trip(begun + 183 * SECOND), 0, "that was long ago");
        assert_eq!(after(7000, begun + 183 * SECOND), 7000, "and nothing from then counts");
    }

    #[test]
    fn a_dropped_guard_allows_the_next_poll() {
        let state = Arc::new(PollState::default());
        let guard = state.try_acquire().unwrap();
        assert!(state.try_acquire().is_none() && !state.is_pollable(SECOND));
        drop(guard);
        assert!(state.is_pollable(SECOND));
        state.try_acquire().unwrap().finish(2 * SECOND);
        assert!(!state.is_pollable(SECOND) && state.is_pollable(2 * SECOND));
    }
}
