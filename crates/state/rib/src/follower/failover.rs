//! Decides when to leave a stale upstream, because another address may lead to a current one.
//!
//! A stale upstream is followed for a while, because it may fail over itself, and because it serves prefixes that are
//! new here. If every upstream is stale, for example while the source is down, cycling through them costs each
//! follower a connection per switch. Each stay is therefore longer than the previous one. Probing the other addresses
//! was rejected: a probe costs as much as a connection.

use std::time::Duration;

use tokio::time::Instant;

use super::Backoff;

/// Minimum stay with a stale upstream.
const MIN_STAY: Duration = Duration::from_secs(3);
/// Backoff for the random part of a stay. It doubles with each stale upstream that was left, and spreads a fleet's
/// departures over time.
const STAY_BACKOFF: Backoff = Backoff { first: Duration::from_secs(3), longest: Duration::from_secs(300) };

/// Schedule for leaving stale upstreams. Callers pass `now` and any random number.
#[derive(Debug, Default)]
pub(super) struct Failover {
    /// Number of consecutive stale upstreams that were left.
    left: u32,
    /// When to leave the upstream; `None` while it is current.
    until: Option<Instant>,
}

impl Failover {
    /// Records that another upstream is followed.
    pub(super) fn connected(&mut self) {
        self.until = None;
    }

    /// Records the age that the upstream reports for everything it sends.
    pub(super) fn age_update(&mut self, age: Duration, now: Instant, random: u64) {
        if age.is_zero() {
            *self = Self::default();
        } else if self.until.is_none() {
            self.until = Some(now + MIN_STAY + STAY_BACKOFF.delay(self.left.saturating_add(1), random));
        }
    }

    /// Records the age that the upstream reports for some new subscriptions; other subscriptions may be older.
    pub(super) fn subscription_age(&mut self, age: Duration, now: Instant, random: u64) {
        if !age.is_zero() || self.until.is_none() {
            self.age_update(age, now, random);
        }
    }

    /// Returns when to leave the upstream.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Records that the upstream was left.
    pub(super) fn left(&mut self) {
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

    /// Returns the longest of many random stays with a stale upstream.
    fn longest(left: u32) -> Duration {
        let now = Instant::now();
        let stay = |random| {
            let mut failover = Failover { left, until: None };
            failover.age_update(AGE, now, random);
            failover.due().unwrap() - now
        };
        let stays: Vec<_> = (0..1000).map(|i| stay(mix64(i))).collect();
        assert!(stays.iter().all(|stay| *stay >= MIN_STAY));
        stays.into_iter().max().unwrap()
    }

    #[test]
    fn time_at_stale_upstream_grows_with_each_failover_up_to_maximum() {
        let about = |stay: Duration, bound: u64| {
            let bound = Duration::from_secs(bound);
            assert!(stay <= MIN_STAY + bound && stay > bound * 9 / 10, "{stay:?}");
        };
        about(longest(0), 3);
        about(longest(1), 6);
        about(longest(60), 300);
    }

    #[test]
    fn follower_stays_at_upstream_that_becomes_current_again() {
        let (mut failover, now) = (Failover::default(), Instant::now());
        failover.subscription_age(AGE, now, ANY);
        let due = failover.due();
        assert!(due.is_some());
        failover.age_update(2 * AGE, now + AGE, 2 * ANY);
        failover.subscription_age(Duration::ZERO, now + AGE, ANY);
        assert_eq!(failover.due(), due, "what else is held still ages");
        failover.age_update(Duration::ZERO, now, ANY);
        assert_eq!((failover.due(), failover.left), (None, 0));
    }

    #[test]
    fn only_upstream_with_current_data_resets_failover_backoff() {
        let (mut failover, now) = (Failover::default(), Instant::now());
        for left in 1..4 {
            failover.connected();
            failover.subscription_age(AGE, now, ANY);
            failover.left();
            assert_eq!((failover.left, failover.due()), (left, None));
        }
        failover.connected();
        failover.subscription_age(Duration::ZERO, now, ANY);
        assert_eq!(failover.left, 0);
    }
}
