use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{
    RateLimit, Scope,
    quota::{ALL_PARTS, UNTOLD_PARTS},
};

/// In place of the part of a limit that was never told.
const UNTOLD: u32 = u32::MAX;
/// After this time a part of a limit is another one, or may be.
const RETOLD: Duration = Duration::from_secs(2);
/// Callers read their clocks before they get here, in any order: by so many nanoseconds what is taken ahead may seem more than it is.
const SLACK: u64 = 100_000_000;

/// Counts calls against a limit: the generic cell rate algorithm of ITU-T I.371, a token bucket in one number.
///
/// That number is when the bucket would be full again if no call came any more. A call moves it by the time in which one
/// token drips in; where that lies further ahead than a whole burst, the call must wait. A bucket of tokens and the time of
/// its last refill was rejected: the two cannot be changed at once without a lock.
///
/// Of a limit that all callers share it lets the part through that is this caller's own.
#[derive(Debug)]
pub struct Bucket {
    limit: RateLimit,
    /// Between two calls in the long run, in nanoseconds.
    interval: AtomicU64,
    /// How far ahead the bucket may be used up, in nanoseconds.
    tolerance: AtomicU64,
    full_at: AtomicU64,
    /// Calls that wanted to pass; counted where all callers share the limit.
    asked: AtomicU64,
    parts: AtomicU32,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(limit: RateLimit) -> Self {
        let bucket = Self {
            limit,
            interval: AtomicU64::default(),
            tolerance: AtomicU64::default(),
            full_at: AtomicU64::default(),
            asked: AtomicU64::default(),
            parts: AtomicU32::new(UNTOLD),
        };
        bucket.adjust(if limit.scope == Scope::Mesh { UNTOLD_PARTS } else { ALL_PARTS });
        bucket
    }

    /// A full one that goes on with the part that another had been told.
    pub(crate) fn after(limit: RateLimit, before: Option<&Self>) -> Self {
        let bucket = Self::new(limit);
        if let Some(parts) = before.and_then(Self::parts).filter(|_| limit.scope == Scope::Mesh) {
            bucket.set_parts(parts);
        }
        bucket
    }

    /// How many calls wanted to pass, let through or not; ever. Counted where all callers share the limit.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// The part of the limit that is this caller's own, in [`ALL_PARTS`]; `None` while it was never told.
    pub fn parts(&self) -> Option<u32> {
        Some(self.parts.load(Relaxed)).filter(|parts| *parts != UNTOLD)
    }

    /// Takes this part of the limit for this caller's own.
    pub fn set_parts(&self, parts: u32) {
        let parts = parts.min(ALL_PARTS);
        self.parts.store(parts, Relaxed);
        self.adjust(parts);
    }

    fn adjust(&self, parts: u32) {
        let (all, parts) = (u128::from(ALL_PARTS), u128::from(parts.max(1)));
        let interval = u128::from(self.limit.interval()) * all / parts;
        let burst = (u128::from(self.limit.burst) * parts / all).max(1);
        let bounded = |nanos: u128| u64::try_from(nanos).unwrap_or(u64::MAX);
        self.interval.store(bounded(interval), Relaxed);
        self.tolerance.store(bounded(interval * (burst - 1)), Relaxed);
    }

    /// What it counts against.
    pub(crate) fn limit(&self) -> &RateLimit {
        &self.limit
    }

    /// Lets a call through at `now`, in nanoseconds of any monotonic clock; the error is how long until one may pass.
    pub(crate) fn take(&self, now: u64) -> Result<(), Duration> {
        if self.limit.scope == Scope::Mesh {
            self.asked.fetch_add(1, Relaxed);
        }
        let (interval, tolerance) = (self.interval.load(Relaxed), self.tolerance.load(Relaxed));
        let mut full_at = self.full_at.load(Relaxed);
        loop {
            // More than is ever taken ahead was taken of a smaller part: it is let go, once.
            let most = now.saturating_add(tolerance).saturating_add(interval);
            if self.limit.scope == Scope::Mesh && full_at > most.saturating_add(SLACK) {
                let _ = self.full_at.compare_exchange(full_at, most, Relaxed, Relaxed);
                full_at = most;
            }
            let begin = full_at.max(now);
            if let Some(wait) = (begin - now).checked_sub(tolerance).filter(|wait| *wait > 0) {
                let wait = Duration::from_nanos(wait);
                return Err(if self.limit.scope == Scope::Mesh { wait.min(RETOLD) } else { wait });
            }
            let next = begin.saturating_add(interval);
            match self.full_at.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }

    /// Gives back what a call took that was not made.
    pub(crate) fn give_back(&self) {
        let interval = self.interval.load(Relaxed);
        // A part that was told meanwhile may make more of it than was taken.
        let _ = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| full_at.checked_sub(interval));
    }

    /// How many calls could pass at once.
    pub(crate) fn left(&self, now: u64) -> u64 {
        let ahead = self.full_at.load(Relaxed).saturating_sub(now);
        let interval = self.interval.load(Relaxed);
        self.tolerance.load(Relaxed).saturating_add(interval).saturating_sub(ahead) / interval.max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn bucket(calls: u32, burst: u32) -> Bucket {
        Bucket::new(RateLimit { calls, per: Duration::from_secs(1), burst, scope: Scope::Caller })
    }

    #[test]
    fn of_a_limit_that_all_share_a_part_passes_and_what_was_asked_for_is_counted() {
        let limit = RateLimit { calls: 100, per: Duration::from_secs(1), burst: 20, scope: Scope::Mesh };
        let bucket = Bucket::new(limit);
        assert_eq!((bucket.parts(), passed(&bucket, SECOND)), (None, 2), "a tenth while it was never told");
        bucket.set_parts(ALL_PARTS / 4);
        assert_eq!((bucket.parts(), passed(&bucket, 9 * SECOND)), (Some(ALL_PARTS / 4), 5));
        let second = (1..=100).map(|i| passed(&bucket, 9 * SECOND + i * SECOND / 100)).sum::<u32>();
        assert_eq!(second, 25);
        assert_eq!(bucket.asked(), 3 + 6 + 25 + 100, "those that did not pass included");
        let next = Bucket::after(RateLimit { calls: 200, ..limit }, Some(&bucket));
        assert_eq!((next.parts(), passed(&next, SECOND)), (Some(ALL_PARTS / 4), 5));
        bucket.set_parts(0);
        assert_eq!(passed(&bucket, 20 * SECOND), 1);
        assert_eq!(passed(&bucket, 2_000 * SECOND), 0, "next to nothing");
        assert_eq!(bucket.take(2_000 * SECOND), Err(RETOLD));
        bucket.set_parts(ALL_PARTS / 4);
        assert_eq!(passed(&bucket, 2_001 * SECOND), 0);
        assert_eq!(passed(&bucket, 2_002 * SECOND), 5, "what was held back before is not held back for ever");
    }

    fn passed(bucket: &Bucket, now: u64) -> u32 {
        (0..10_000).take_while(|_| bucket.take(now).is_ok()).count().try_into().unwrap()
    }

    #[test]
    fn a_burst_passes_and_then_as_many_as_drip_in() {
        let bucket = bucket(10, 5);
        assert_eq!((bucket.left(SECOND), passed(&bucket, SECOND)), (5, 5));
        assert_eq!(bucket.take(SECOND), Err(Duration::from_millis(100)));
        assert_eq!((bucket.left(SECOND + 99_000_000), passed(&bucket, SECOND + 99_000_000)), (0, 0));
        assert_eq!(passed(&bucket, SECOND + 300_000_000), 3);
        assert_eq!(passed(&bucket, 100 * SECOND), 5, "no more than a burst is saved up");
        bucket.give_back();
        assert_eq!(passed(&bucket, 100 * SECOND), 1);
    }

    proptest! {
        #[test]
        fn clocks_that_are_read_out_of_order_let_no_more_pass(
            mesh in any::<bool>(), calls in 1..2000_u32, burst in 1..50_u32,
            times in proptest::collection::vec((0..20_000_000_u64, 0..SLACK), 1..300),
        ) {
            let scope = if mesh { Scope::Mesh } else { Scope::Caller };
            let bucket = Bucket::new(RateLimit { calls, per: Duration::from_secs(1), burst, scope });
            bucket.set_parts(ALL_PARTS);
            let (mut now, mut passed) = (SECOND, Vec::new());
            for (gap, late) in times {
                now += gap;
                if bucket.take(now - late).is_ok() {
                    passed.push(now);
                }
            }
            for (i, first) in passed.iter().enumerate() {
                for (j, last) in passed.iter().enumerate().skip(i) {
                    // Clocks that were read before speak for a span that began before.
                    let span = last - first + SLACK;
                    let most = u64::from(burst) + span / RateLimit::interval(bucket.limit());
                    prop_assert!((j - i + 1) as u64 <= most, "{} in {} ns", j - i + 1, span);
                }
            }
        }

        #[test]
        fn whenever_calls_come_no_span_of_time_passes_more_than_burst_and_rate(
            calls in 1..2000_u32, burst in 1..50_u32, gaps in proptest::collection::vec(0..20_000_000_u64, 1..300),
        ) {
            let bucket = bucket(calls, burst);
            let (mut now, mut passed) = (SECOND, Vec::new());
            for gap in gaps {
                now += gap;
                match bucket.take(now) {
                    Ok(()) => passed.push(now),
                    Err(wait) => prop_assert!(bucket.left(now) == 0 && !wait.is_zero()),
                }
            }
            for (i, first) in passed.iter().enumerate() {
                for (j, last) in passed.iter().enumerate().skip(i) {
                    let most = u64::from(burst) + (last - first) / RateLimit::interval(bucket.limit());
                    prop_assert!((j - i + 1) as u64 <= most, "{} in {} ns", j - i + 1, last - first);
                }
            }
        }
    }
}
