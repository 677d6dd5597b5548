//! Exponential backoff with jitter, so that the servers of a fleet do not retry in step.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Exponential backoff with full jitter: each pause is random below a bound that doubles from 50 ms to 5 s.
#[derive(Debug)]
pub(crate) struct Backoff {
    bound: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { bound: SHORTEST }
    }
}

impl Backoff {
    /// Returns the pause before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = self.bound;
        self.bound = (bound * 2).min(LONGEST);
        // At least a tenth of the bound, so that a failing step never spins.
        bound / 10 + bound * 9 / 10 / 1000 * thousandths()
    }
}

/// Returns a random time within a tenth of `about`.
pub(crate) fn jittered(about: Duration) -> Duration {
    about * 9 / 10 + about / 5000 * thousandths()
}

/// Returns a random number from 0 to 999. The hash seeds of the standard library are random enough to spread attempts.
fn thousandths() -> u32 {
    (RandomState::new().hash_one(()) % 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_backoff_grows_to_its_maximum_and_stays_below() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= SHORTEST / 10 && pauses[0] <= SHORTEST);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST));
        let about = Duration::from_secs(3);
        assert!((0..100).map(|_| jittered(about)).all(|t| t >= about * 9 / 10 && t <= about * 11 / 10));
    }
}
