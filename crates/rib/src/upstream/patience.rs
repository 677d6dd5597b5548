//! When to leave an upstream that is itself out of touch: another address may lead to one that is not.
//!
//! It is followed all the same for a while, for it may move to another upstream itself, and it serves prefixes that are new
//! here. Where nobody is in touch, as when the source is away, going round costs everybody a connection each time: so each
//! stay is longer than the one before. A probe of the other addresses was rejected: it is as much of a connection.

use std::time::Duration;

use tokio::time::Instant;

use super::Backoff;

/// How long an upstream is followed at least that is out of touch.
const LEAST: Duration = Duration::from_secs(3);
/// How much longer, at random, so that a fleet does not leave at one moment; the bound doubles with each that was left.
const MORE: Backoff = Backoff { first: Duration::from_secs(3), longest: Duration::from_secs(300) };

/// How long to stay. Callers pass `now` and any number.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// How many were left in a row.
    left: u32,
    /// When to leave; `None` while what comes does not age.
    until: Option<Instant>,
}

impl Patience {
    /// Another upstream is followed.
    pub(super) fn connected(&mut self) {
        self.until = None;
    }

    /// The upstream says how old everything is that it sends.
    pub(super) fn contact(&mut self, age: Duration, now: Instant, random: u64) {
        if age.is_zero() {
            *self = Self::default();
        } else if self.until.is_none() {
            self.until = Some(now + LEAST + MORE.delay(self.left.saturating_add(1), random));
        }
    }

    /// It says how old the first is that it sends of some prefixes; others may be older.
    pub(super) fn entered(&mut self, age: Duration, now: Instant, random: u64) {
        if !age.is_zero() || self.until.is_none() {
            self.contact(age, now, random);
        }
    }

    /// When to leave.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// It was left.
    pub(super) fn leave(&mut self) {
        self.left = self.left.saturating_add(1);
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::arith::mix64;

    use super::*;

    const AGE: Duration = Duration::from_secs(1);
    const ANY: u64 = 7_919_000_017;

    /// The longest stay with one that is out of touch, of many.
    fn longest(left: u32) -> Duration {
        let now = Instant::now();
        let stay = |random| {
            let mut patience = Patience { left, until: None };
            patience.contact(AGE, now, random);
            patience.due().unwrap() - now
        };
        let stays: Vec<_> = (0..1000).map(|i| stay(mix64(i))).collect();
        assert!(stays.iter().all(|stay| *stay >= LEAST));
        stays.into_iter().max().unwrap()
    }

    #[test]
    fn stays_grow_with_every_upstream_that_is_out_of_touch_up_to_a_bound() {
        let about = |stay: Duration, bound: u64| {
            let bound = Duration::from_secs(bound);
            assert!(stay <= LEAST + bound && stay > bound * 9 / 10, "{stay:?}");
        };
        about(longest(0), 3);
        about(longest(1), 6);
        about(longest(60), 300);
    }

    #[test]
    fn who_is_in_touch_again_is_not_left() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        patience.entered(AGE, now, ANY);
        let due = patience.due();
        assert!(due.is_some());
        patience.contact(2 * AGE, now + AGE, 2 * ANY);
        patience.entered(Duration::ZERO, now + AGE, ANY);
        assert_eq!(patience.due(), due, "what else is held still ages");
        patience.contact(Duration::ZERO, now, ANY);
        assert_eq!((patience.due(), patience.left), (None, 0));
    }

    #[test]
    fn only_one_that_is_in_touch_ends_the_row() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        for left in 1..4 {
            patience.connected();
            patience.entered(AGE, now, ANY);
            patience.leave();
            assert_eq!((patience.left, patience.due()), (left, None));
        }
        patience.connected();
        patience.entered(Duration::ZERO, now, ANY);
        assert_eq!(patience.left, 0);
    }
}
