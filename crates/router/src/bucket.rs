use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::RateLimit;

/// Counts calls against a limit: the generic cell rate algorithm of ITU-T I.371, a token bucket in one number.
///
/// That number is when the bucket would be full again if no call came any more. A call moves it by the time in which one
/// token drips in; where that lies further ahead than a whole burst, the call must wait. A bucket of tokens and the time of
/// its last refill was rejected: the two cannot be changed at once without a lock.
#[derive(Debug)]
pub(crate) struct Bucket {
    limit: RateLimit,
    /// Between two calls in the long run, in nanoseconds.
    interval: u64,
    /// How far ahead the bucket may be used up, in nanoseconds.
    tolerance: u64,
    full_at: AtomicU64,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(limit: RateLimit) -> Self {
        let interval = limit.interval();
        let tolerance = interval.saturating_mul(u64::from(limit.burst.saturating_sub(1)));
        Self { limit, interval, tolerance, full_at: AtomicU64::new(0) }
    }

    /// What it counts against.
    pub(crate) fn limit(&self) -> &RateLimit {
        &self.limit
    }

    /// Lets a call through at `now`, in nanoseconds of any monotonic clock; the error is how long until one may pass.
    pub(crate) fn take(&self, now: u64) -> Result<(), Duration> {
        let mut full_at = self.full_at.load(Relaxed);
        loop {
            let begin = full_at.max(now);
            if let Some(wait) = (begin - now).checked_sub(self.tolerance).filter(|wait| *wait > 0) {
                return Err(Duration::from_nanos(wait));
            }
            let next = begin.saturating_add(self.interval);
            match self.full_at.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }

    /// Gives back what a call took that was not made.
    pub(crate) fn give_back(&self) {
        self.full_at.fetch_sub(self.interval, Relaxed);
    }

    /// How many calls could pass at once.
    pub(crate) fn left(&self, now: u64) -> u64 {
        let ahead = self.full_at.load(Relaxed).saturating_sub(now);
        (self.tolerance + self.interval).saturating_sub(ahead) / self.interval
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn bucket(calls: u32, burst: u32) -> Bucket {
        Bucket::new(RateLimit { calls, per: Duration::from_secs(1), burst })
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
