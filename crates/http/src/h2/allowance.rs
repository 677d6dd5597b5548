//! Frames that ask for nothing (CVE-2019-9512, -9515 and the like).
//!
//! A ping, a setting or an empty piece of a body costs who sends it next to nothing, and has to be looked at and sometimes
//! answered here. No program needs many: each is paid for, out of an allowance that comes back with time and with each frame
//! that carries something.

use tokio::time::Instant;

/// What a connection begins with, and the most that it ever has.
const ALLOWANCE: u32 = 10_000;
/// What comes back in a second: far more than programs need that ask whether the other side is there.
const REFILL: u32 = 100;
/// What a frame with a head or a body in it brings: programs measure their way, and make room for more, with every few
/// that they get.
const WORTH: u32 = 10;

#[derive(Debug)]
pub(super) struct Allowance {
    left: u32,
    refilled: Instant,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: ALLOWANCE, refilled: now }
    }

    /// A frame that carries something came or went.
    pub(super) fn earn(&mut self) {
        self.left = (self.left + WORTH).min(ALLOWANCE);
    }

    /// Whether there was anything left to pay with. The clock is read only when there is not.
    pub(super) fn pay(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.left == 0 {
            let now = now();
            let came_back = now.saturating_duration_since(self.refilled).as_secs_f64() * f64::from(REFILL);
            self.left = (came_back as u32).min(ALLOWANCE);
            if self.left > 0 {
                self.refilled = now;
            }
        }
        let paid = self.left > 0;
        self.left = self.left.saturating_sub(1);
        paid
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_comes_back_with_time_and_with_what_is_carried() {
        let begun = Instant::now();
        let mut left = Allowance::new(begun);
        let mut spend = |at: Duration| (0..).take_while(|_| left.pay(|| begun + at)).count() as u32;
        assert_eq!(spend(Duration::ZERO), ALLOWANCE);
        assert_eq!(spend(Duration::from_secs(2)), 2 * REFILL);
        assert_eq!(spend(Duration::from_secs(2)), 0);
        assert_eq!(spend(Duration::from_secs(3600)), ALLOWANCE);
        left.earn();
        assert_eq!((0..).take_while(|_| left.pay(|| begun)).count() as u32, WORTH);
        (0..ALLOWANCE).for_each(|_| left.earn());
        assert_eq!(left.left, ALLOWANCE);
    }
}
