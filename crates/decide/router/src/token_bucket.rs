use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{
    RateLimit, Scope,
    rate_limit_quota::{ALL_PARTS, DEFAULT_PARTS},
};

/// Value of `parts` before the first grant.
const NOT_GRANTED: u32 = u32::MAX;
/// Time after which a grant may be replaced. A caller that waits for the limit therefore retries after this time at
/// the latest.
const GRANT_LIFETIME: Duration = Duration::from_secs(2);
/// Tolerated excess of the debt over its limit, in nanoseconds. It is needed because callers read their clocks
/// earlier and may arrive in any order.
const CLOCK_SKEW: u64 = 100_000_000;

/// A rate limiter that uses the generic cell rate algorithm (ITU-T I.371): a token bucket in one number.
///
/// The number is the time at which the bucket will be full again if no further calls are made. A call advances it by
/// the interval of one token. If it is then further ahead than a whole burst, the call has to wait. Storing tokens and
/// the time of the last refill was rejected, since two values cannot be changed atomically without a lock.
///
/// For a mesh-wide limit, the bucket enforces the part granted to this caller.
#[derive(Debug)]
pub struct TokenBucket {
    limit: RateLimit,
    /// Time between two calls at the sustained rate, in nanoseconds.
    interval: AtomicU64,
    /// Maximum lead of `full_at` over now, in nanoseconds.
    tolerance: AtomicU64,
    full_at: AtomicU64,
    /// Number of calls requested, whether admitted or rejected. Counted only for mesh-wide limits.
    requested: AtomicU64,
    parts: AtomicU32,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(crate) fn new(limit: RateLimit) -> Self {
        let bucket = Self {
            limit,
            interval: AtomicU64::default(),
            tolerance: AtomicU64::default(),
            full_at: AtomicU64::default(),
            requested: AtomicU64::default(),
            parts: AtomicU32::new(NOT_GRANTED),
        };
        bucket.adjust(if limit.scope == Scope::Mesh { DEFAULT_PARTS } else { ALL_PARTS });
        bucket
    }

    /// Creates a full bucket that keeps the granted part of its predecessor.
    pub(crate) fn succeeding(limit: RateLimit, before: Option<&Self>) -> Self {
        let bucket = Self::new(limit);
        if let Some(parts) = before.and_then(Self::parts).filter(|_| limit.scope == Scope::Mesh) {
            bucket.set_parts(parts);
        }
        bucket
    }

    /// Number of calls requested since the bucket was created, whether admitted or rejected. Counted only for
    /// mesh-wide limits.
    pub fn requested(&self) -> u64 {
        self.requested.load(Relaxed)
    }

    /// The part of the limit granted to this caller, in [`ALL_PARTS`]; `None` before the first grant.
    pub fn parts(&self) -> Option<u32> {
        Some(self.parts.load(Relaxed)).filter(|parts| *parts != NOT_GRANTED)
    }

    /// Sets the part of the limit granted to this caller.
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

    /// The configured limit.
    pub(crate) fn limit(&self) -> &RateLimit {
        &self.limit
    }

    /// Admits a call at `now`, in nanoseconds of any monotonic clock. The error is the time until a call may pass.
    pub(crate) fn try_acquire(&self, now: u64) -> Result<(), Duration> {
        if self.limit.scope == Scope::Mesh {
            self.requested.fetch_add(1, Relaxed);
        }
        let (interval, tolerance) = (self.interval.load(Relaxed), self.tolerance.load(Relaxed));
        let mut full_at = self.full_at.load(Relaxed);
        loop {
            // The debt arose under a smaller part and exceeds what the present part allows. It is forgiven once.
            let most = now.saturating_add(tolerance).saturating_add(interval);
            if self.limit.scope == Scope::Mesh && full_at > most.saturating_add(CLOCK_SKEW) {
                let _ = self.full_at.compare_exchange(full_at, most, Relaxed, Relaxed);
                full_at = most;
            }
            let begin = full_at.max(now);
            if let Some(wait) = (begin - now).checked_sub(tolerance).filter(|wait| *wait > 0) {
                let wait = Duration::from_nanos(wait);
                return Err(if self.limit.scope == Scope::Mesh { wait.min(GRANT_LIFETIME) } else { wait });
            }
            let next = begin.saturating_add(interval);
            match self.full_at.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }

    /// Refunds the token of a call that was not made.
    pub(crate) fn refund(&self) {
        let interval = self.interval.load(Relaxed);
        // If a larger part was granted since, the refund is less than the original cost.
        let _ = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| full_at.checked_sub(interval));
    }

    /// The number of calls that would pass at once.
    pub(crate) fn available(&self, now: u64) -> u64 {
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

    fn bucket(calls: u32, burst: u32) -> TokenBucket {
        TokenBucket::new(RateLimit { calls, per: Duration::from_secs(1), burst, scope: Scope::Caller })
    }

    #[test]
    fn mesh_wide_rate_limit_admits_granted_part_and_counts_all_requests() {
        let limit = RateLimit { calls: 100, per: Duration::from_secs(1), burst: 20, scope: Scope::Mesh };
        let bucket = TokenBucket::new(limit);
        assert_eq!((bucket.parts(), passed(&bucket, SECOND)), (None, 2), "a tenth before the first grant");
        bucket.set_parts(ALL_PARTS / 4);
        assert_eq!((bucket.parts(), passed(&bucket, 9 * SECOND)), (Some(ALL_PARTS / 4), 5));
        let second = (1..=100).map(|i| passed(&bucket, 9 * SECOND + i * SECOND / 100)).sum::<u32>();
        assert_eq!(second, 25);
        assert_eq!(bucket.requested(), 3 + 6 + 25 + 100, "rejected calls count too");
        let next = TokenBucket::succeeding(RateLimit { calls: 200, ..limit }, Some(&bucket));
        assert_eq!((next.parts(), passed(&next, SECOND)), (Some(ALL_PARTS / 4), 5));
        bucket.set_parts(0);
        assert_eq!(passed(&bucket, 20 * SECOND), 1);
        assert_eq!(passed(&bucket, 2_000 * SECOND), 0, "next to nothing");
        assert_eq!(bucket.try_acquire(2_000 * SECOND), Err(GRANT_LIFETIME));
        bucket.set_parts(ALL_PARTS / 4);
        assert_eq!(passed(&bucket, 2_001 * SECOND), 0);
        assert_eq!(passed(&bucket, 2_002 * SECOND), 5, "debt of the smaller part is forgiven");
    }

    fn passed(bucket: &TokenBucket, now: u64) -> u32 {
        (0..10_000).take_while(|_| bucket.try_acquire(now).is_ok()).count().try_into().unwrap()
    }

    #[test]
    fn rate_limit_admits_burst_then_steady_rate() {
        let bucket = bucket(10, 5);
        assert_eq!((bucket.available(SECOND), passed(&bucket, SECOND)), (5, 5));
        assert_eq!(bucket.try_acquire(SECOND), Err(Duration::from_millis(100)));
        assert_eq!((bucket.available(SECOND + 99_000_000), passed(&bucket, SECOND + 99_000_000)), (0, 0));
        assert_eq!(passed(&bucket, SECOND + 300_000_000), 3);
        assert_eq!(passed(&bucket, 100 * SECOND), 5, "no more than a burst is saved up");
        bucket.refund();
        assert_eq!(passed(&bucket, 100 * SECOND), 1);
    }

    proptest! {
        #[test]
        fn rate_limit_admits_no_extra_calls_when_clocks_are_out_of_order(
            mesh in any::<bool>(), calls in 1..2000_u32, burst in 1..50_u32,
            times in proptest::collection::vec((0..20_000_000_u64, 0..CLOCK_SKEW), 1..300),
        ) {
            let scope = if mesh { Scope::Mesh } else { Scope::Caller };
            let bucket = TokenBucket::new(RateLimit { calls, per: Duration::from_secs(1), burst, scope });
            bucket.set_parts(ALL_PARTS);
            let (mut now, mut passed) = (SECOND, Vec::new());
            for (gap, late) in times {
                now += gap;
                if bucket.try_acquire(now - late).is_ok() {
                    passed.push(now);
                }
            }
            for (i, first) in passed.iter().enumerate() {
                for (j, last) in passed.iter().enumerate().skip(i) {
                    // An earlier clock reading counts towards the span that began earlier.
                    let span = last - first + CLOCK_SKEW;
                    let most = u64::from(burst) + span / RateLimit::interval(bucket.limit());
                    prop_assert!((j - i + 1) as u64 <= most, "{} in {} ns", j - i + 1, span);
                }
            }
        }

        #[test]
        fn rate_limit_admits_at_most_burst_plus_rate_in_any_interval(
            calls in 1..2000_u32, burst in 1..50_u32, gaps in proptest::collection::vec(0..20_000_000_u64, 1..300),
        ) {
            let bucket = bucket(calls, burst);
            let (mut now, mut passed) = (SECOND, Vec::new());
            for gap in gaps {
                now += gap;
                match bucket.try_acquire(now) {
                    Ok(()) => passed.push(now),
                    Err(wait) => prop_assert!(bucket.available(now) == 0 && !wait.is_zero()),
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
