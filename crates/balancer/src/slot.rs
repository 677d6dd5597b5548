use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How one try ended, as far as the choice of the next endpoint cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It answered, and the answer says nothing against it.
    Ok,
    /// It answered with a failure of its own (such as HTTP 5xx), or broke off.
    Failed,
    /// No connection, or no answer in time.
    Unreachable,
    /// The try ended without saying anything about the endpoint, such as a caller that went away.
    Unknown,
}

/// What this client knows of one endpoint by its own calls.
///
/// Counts are relaxed atomics: each is right by itself, and a pick that reads one a moment late is as good a guess. Four
/// slots share a cache line on purpose: a client calls many services, and its cache is worth more than the odd clash.
#[derive(Debug, Default)]
pub struct Slot {
    outstanding: AtomicU32,
    failures: AtomicU32,
    penalised_until: AtomicU64,
}

impl Slot {
    /// Calls begun and not finished.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.outstanding.load(Relaxed)
    }

    /// Failures in a row.
    #[inline]
    pub fn failures(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    /// When the penalty for recent failures ends, in nanoseconds of the caller's clock; 0 means that there is none.
    #[inline]
    pub fn penalised_until(&self) -> u64 {
        self.penalised_until.load(Relaxed)
    }

    /// Counts a call that begins.
    #[inline]
    pub fn begin(&self) {
        self.outstanding.fetch_add(1, Relaxed);
    }

    /// Counts a call that ends at `now` and learns from its outcome.
    #[inline]
    pub fn finish(&self, outcome: Outcome, now: u64) {
        // Not a plain subtraction: a caller that ends one call twice must not make the endpoint look endlessly busy.
        let _ = self.outstanding.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
        match outcome {
            Outcome::Ok => self.forgive(),
            Outcome::Unknown => {}
            Outcome::Failed | Outcome::Unreachable => self.blame(outcome, now),
        }
    }

    #[inline]
    fn forgive(&self) {
        // Read first, so that the common case writes nothing.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.penalised_until.store(0, Relaxed);
        }
    }

    #[cold]
    fn blame(&self, outcome: Outcome, now: u64) {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        let penalty = penalty(outcome, failures);
        if penalty != 0 {
            self.penalised_until.fetch_max(now.saturating_add(penalty), Relaxed);
        }
    }

    /// Makes the slot as new, for another instance.
    pub(crate) fn clear(&self) {
        self.failures.store(0, Relaxed);
        self.penalised_until.store(0, Relaxed);
    }
}

/// For how many nanoseconds an endpoint is disfavoured after its `failures`-th failure in a row (A16).
///
/// From the first where it could not be reached, from the third where it answered (one bad request is no verdict):
/// 100 ms, doubled with each further failure up to 12.8 s.
pub fn penalty(outcome: Outcome, failures: u32) -> u64 {
    let tolerated = match outcome {
        Outcome::Ok | Outcome::Unknown => return 0,
        Outcome::Failed => 2,
        Outcome::Unreachable => 0,
    };
    match failures.saturating_sub(tolerated) {
        0 => 0,
        counted => 100_000_000 << (counted - 1).min(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outstanding_never_drops_below_zero() {
        let slot = Slot::default();
        slot.begin();
        slot.finish(Outcome::Ok, 0);
        slot.finish(Outcome::Ok, 0);
        assert_eq!(slot.outstanding(), 0);
    }

    #[test]
    fn an_unreachable_endpoint_is_penalised_at_once_and_longer_each_time() {
        let slot = Slot::default();
        let mut ends = Vec::new();
        for _ in 0..10 {
            slot.begin();
            slot.finish(Outcome::Unreachable, 1000);
            ends.push(slot.penalised_until());
        }
        assert_eq!(ends[0], 100_001_000);
        assert!(ends.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(ends[9], 12_800_001_000);
    }

    #[test]
    fn failed_answers_count_from_the_third_in_a_row() {
        let slot = Slot::default();
        let fail = || slot.finish(Outcome::Failed, 1000);
        fail();
        fail();
        slot.finish(Outcome::Ok, 1000);
        fail();
        fail();
        slot.finish(Outcome::Unknown, 1000);
        assert_eq!((slot.failures(), slot.penalised_until()), (2, 0));
        fail();
        assert_eq!(slot.penalised_until(), 100_001_000);
        slot.finish(Outcome::Ok, 1000);
        assert_eq!((slot.failures(), slot.penalised_until()), (0, 0));
    }
}
