//! Limits frames without progress (CVE-2019-9512, CVE-2019-9515 and similar).
//!
//! A PING, SETTINGS or empty DATA frame costs its sender next to nothing, but must be handled and sometimes
//! acknowledged here. No legitimate peer needs many: each such frame takes a token from a bucket that refills over time
//! and with every frame that carries headers or data.

use tokio::time::Instant;

/// Size of the bucket in tokens. It starts full.
const CAPACITY: u32 = 10_000;
/// Tokens added per second: far more than keep-alive PINGs need.
const REFILL_PER_SECOND: u32 = 100;
/// Tokens added for each frame with headers or data. Peers measure the bandwidth and send WINDOW_UPDATE once every few
/// such frames.
const EARNED: u32 = 10;

#[derive(Debug)]
pub(super) struct FloodLimit {
    tokens: u32,
    refilled: Instant,
}

impl FloodLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: CAPACITY, refilled: now }
    }

    /// Adds tokens for a frame with headers or data, received or sent.
    pub(super) fn credit(&mut self) {
        self.tokens = (self.tokens + EARNED).min(CAPACITY);
    }

    /// Takes a token. Returns `false` if the bucket is empty even after a refill; the clock is read only when it is
    /// empty.
    pub(super) fn charge(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.tokens == 0 {
            let now = now();
            let refill =
                now.saturating_duration_since(self.refilled).as_secs_f64() * f64::from(REFILL_PER_SECOND);
            self.tokens = (refill as u32).min(CAPACITY);
            if self.tokens > 0 {
                self.refilled = now;
            }
        }
        let is_charged = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        is_charged
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn flood_limit_refills_over_time_and_with_progress() {
        let begun = Instant::now();
        let mut tokens = FloodLimit::new(begun);
        let mut spend = |at: Duration| (0..).take_while(|_| tokens.charge(|| begun + at)).count() as u32;
        assert_eq!(spend(Duration::ZERO), CAPACITY);
        assert_eq!(spend(Duration::from_secs(2)), 2 * REFILL_PER_SECOND);
        assert_eq!(spend(Duration::from_secs(2)), 0);
        assert_eq!(spend(Duration::from_secs(3600)), CAPACITY);
        tokens.credit();
        assert_eq!((0..).take_while(|_| tokens.charge(|| begun)).count() as u32, EARNED);
        (0..CAPACITY).for_each(|_| tokens.credit());
        assert_eq!(tokens.tokens, CAPACITY);
    }
}
