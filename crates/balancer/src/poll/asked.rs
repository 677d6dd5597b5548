use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{LoadReport, Reported, Slots};

/// How long a measured round trip is believed, in nanoseconds, and over how long the shortest is looked for.
const BELIEVED: u64 = 60_000_000_000;

/// How far away a server is, and what came of asking it for its load (ServiceRouter §3.4.3). All times are nanoseconds of the clock.
#[derive(Debug)]
pub struct Asked {
    /// The shortest time of an answer since `since`.
    shortest: AtomicU64,
    /// The shortest in the time before.
    before: AtomicU64,
    since: AtomicU64,
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
            shortest: AtomicU64::new(u64::MAX),
            before: AtomicU64::new(u64::MAX),
            since: AtomicU64::new(0),
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
    pub fn round_trip(&self, now: u64) -> u64 {
        match self.measured.load(Relaxed) {
            0 => 0,
            at if now.saturating_sub(at) >= BELIEVED => 0,
            _ => self.shortest.load(Relaxed).min(self.before.load(Relaxed)),
        }
    }

    /// An answer took this long; only for whoever has the [`Claim`]. The shortest counts: what the others took longer is either
    /// end's own time, and a busy server is no further away. It is looked for anew now and then, since ways change; what it was
    /// until then counts once more, so that one late answer does not make a server seem far.
    pub fn took(&self, time: u64, now: u64) {
        if now.saturating_sub(self.since.load(Relaxed)) >= BELIEVED {
            let was_heard = now.saturating_sub(self.measured.load(Relaxed)) < BELIEVED;
            let before = if was_heard { self.shortest.load(Relaxed) } else { u64::MAX };
            self.before.store(before, Relaxed);
            self.shortest.store(time, Relaxed);
            self.since.store(now, Relaxed);
        } else {
            self.shortest.fetch_min(time, Relaxed);
        }
        self.measured.store(now, Relaxed);
    }

    /// Whether the server may be asked.
    pub fn is_free(&self, now: u64) -> bool {
        now >= self.respite.load(Relaxed) && !self.under_way.load(Relaxed)
    }

    /// Claims the server, so that nobody else asks it meanwhile; `None` where somebody else has.
    pub fn claim(self: &Arc<Self>) -> Option<Claim> {
        (!self.under_way.swap(true, Acquire)).then(|| Claim(Arc::clone(self)))
    }

    /// Keeps what the server at `index` answered at `now`.
    pub fn told(&self, slots: &Slots, index: u32, load: LoadReport, now: u64) {
        self.told.store(now, Relaxed);
        slots.report_asked(index, load, now);
    }

    /// Whether a report was asked for, rather than part of an answer to a call.
    pub fn has_told(&self, reported: &Reported) -> bool {
        self.told.load(Relaxed) == reported.at
    }
}

/// The right to ask a server, until it is dropped: also where whoever asks is.
#[derive(Debug)]
pub struct Claim(Arc<Asked>);

impl Claim {
    /// The question is over, and the server is left alone until then.
    pub fn end(self, respite: u64) {
        self.0.respite.store(respite, Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.under_way.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_way_to_a_server_may_become_longer() {
        let asked = Asked::default();
        let after = |time, now| {
            asked.took(time, now);
            asked.round_trip(now)
        };
        let begun = 100 * SECOND;
        assert_eq!(asked.round_trip(begun), 0, "it is taken for near");
        assert_eq!(after(500, begun), 500);
        assert_eq!(after(9000, begun + 59 * SECOND), 500);
        assert_eq!(after(9000, begun + 61 * SECOND), 500, "one late answer says nothing yet");
        assert_eq!(after(800, begun + 119 * SECOND), 500);
        assert_eq!(after(9000, begun + 122 * SECOND), 800);
        assert_eq!(asked.round_trip(begun + 183 * SECOND), 0, "that was long ago");
        assert_eq!(after(7000, begun + 183 * SECOND), 7000, "and nothing from then counts");
    }

    #[test]
    fn a_claim_ends_with_whoever_has_it() {
        let asked = Arc::new(Asked::default());
        let claim = asked.claim().unwrap();
        assert!(asked.claim().is_none() && !asked.is_free(SECOND));
        drop(claim);
        assert!(asked.is_free(SECOND));
        asked.claim().unwrap().end(2 * SECOND);
        assert!(!asked.is_free(SECOND) && asked.is_free(2 * SECOND));
    }
}
