use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use fairmesh_router::Reported;

/// How far away a server is, and what came of asking it for its load (S26). All times are nanoseconds of the clock.
#[derive(Debug)]
pub(crate) struct Asked {
    round_trip: AtomicU64,
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
            told: AtomicU64::new(0),
            respite: AtomicU64::new(0),
            under_way: AtomicBool::new(false),
        }
    }
}

impl Asked {
    /// The time of a round trip to the server, once it is known.
    pub(crate) fn round_trip(&self) -> Option<u64> {
        Some(self.round_trip.load(Relaxed)).filter(|time| *time != u64::MAX)
    }

    /// A connection, or an answer, took this long. The shortest counts: what the others took longer is either end's own time,
    /// and a busy server is no further away.
    pub(crate) fn took(&self, time: u64) {
        self.round_trip.fetch_min(time, Relaxed);
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
