use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use fairmesh_router::Reported;

/// How long a measured round trip is believed, in nanoseconds.
const BELIEVED: u64 = 60_000_000_000;

/// How far away a server is, and what came of asking it for its load (S26). All times are nanoseconds of the clock.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The shortest time of an answer.
    round_trip: AtomicU64,
    /// When the last answer came; 0 before any.
    measured: AtomicU64,
    /// When the last report came that was asked for; 0 before any.
    told: AtomicU64,
    /// Until when the server is left alone.
    respite: AtomicU64,
    under_way: AtomicBool,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            round_trip: AtomicU64::new(u64::MAX),
            measured: AtomicU64::new(0),
            told: AtomicU64::new(0),
            respite: AtomicU64::new(0),
            under_way: AtomicBool::new(false),
        }
    }
}

impl Asked {
    /// The time of a round trip to the server. One that was not measured for long is taken for near, and so asked and measured
    /// again: how long connections took says little, as programs open them when they have most to do.
    pub(crate) fn round_trip(&self, now: u64) -> u64 {
        match self.measured.load(Relaxed) {
            0 => 0,
            at if now.saturating_sub(at) >= BELIEVED => 0,
            _ => self.round_trip.load(Relaxed),
        }
    }

    /// An answer took this long. The shortest counts: what the others took longer is either end's own time, and a busy server
    /// is no further away.
    pub(crate) fn took(&self, time: u64, now: u64) {
        self.round_trip.fetch_min(time, Relaxed);
        self.measured.store(now, Relaxed);
    }

    /// Whether the server may be asked.
    pub(crate) fn is_free(&self, now: u64) -> bool {
        now >= self.respite.load(Relaxed) && !self.under_way.load(Relaxed)
    }

    /// Claims the server, so that nobody else asks it meanwhile; whether that is so.
    pub(crate) fn begin(&self) -> bool {
        !self.under_way.swap(true, Acquire)
    }

    /// The question is over, and the server is left alone until then.
    pub(crate) fn end(&self, respite: u64) {
        self.respite.store(respite, Relaxed);
        self.under_way.store(false, Release);
    }

    /// A report that was asked for is kept as of `now`.
    pub(crate) fn told(&self, now: u64) {
        self.told.store(now, Relaxed);
    }

    /// Whether a report was asked for, rather than part of an answer to a call.
    pub(crate) fn has_told(&self, reported: &Reported) -> bool {
        self.told.load(Relaxed) == reported.at
    }
}
