use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Any report is fresh for this long, in nanoseconds: requests that take less than a few milliseconds come and go in such
/// numbers that their count is a mean already.
const FRESH: u64 = 10_000_000;

/// Servers that work for less than this on a request are not asked, in nanoseconds: an answer costs them about what a call
/// without work costs, and two questions a call would be a good part of what they do.
const WORTH: u64 = 1_000_000;

/// Where the estimate of an endpoint's load comes from (S26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Estimate {
    /// The last report: it is fresh.
    Cached,
    /// Ask the server now: it is near compared with how long it works on a request.
    Poll,
    /// Neither: what is known is stale and asking takes too long; leave it to chance.
    Random,
}

/// How to estimate the load of an endpoint at `now`, whose last report came at `reported`; all in nanoseconds.
///
/// A report is fresh while it is younger than 10 ms or twice the mean time that the service works on a request, whichever is
/// longer: until then most of the requests that it counted are still there. Asking is worth its while where the round trip takes
/// less than half that time, and that is 1 ms at least. The bounds are the project's choice, since the paper gives none.
pub fn estimate(now: u64, reported: Option<u64>, round_trip: Option<u64>, mean_service: u64) -> Estimate {
    let fresh = mean_service.saturating_mul(2).max(FRESH);
    // A report dated later than now was read by another thread a moment ago.
    if reported.is_some_and(|at| now.saturating_sub(at) < fresh) {
        Estimate::Cached
    } else if mean_service >= WORTH && round_trip.is_some_and(|round_trip| round_trip < mean_service / 2) {
        Estimate::Poll
    } else {
        Estimate::Random
    }
}

/// How often each was the case.
#[derive(Debug, Default)]
pub struct Estimates {
    cached: AtomicU64,
    polled: AtomicU64,
    random: AtomicU64,
}

impl Estimates {
    /// Counts one.
    pub fn count(&self, estimate: Estimate) {
        let counter = match estimate {
            Estimate::Cached => &self.cached,
            Estimate::Poll => &self.polled,
            Estimate::Random => &self.random,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Cached, polled, random.
    pub fn counts(&self) -> [u64; 3] {
        [&self.cached, &self.polled, &self.random].map(|counter| counter.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn fresh_reports_are_kept_near_servers_asked_and_the_rest_left_to_chance() {
        let at = |age: u64, round_trip, mean| estimate(1000 * MS, Some(1000 * MS - age), round_trip, mean);
        assert_eq!(at(9 * MS, None, MS), Estimate::Cached, "10 ms are always fresh");
        assert_eq!(at(10 * MS, Some(MS), MS), Estimate::Random, "a round trip as long as the work");
        assert_eq!(at(10 * MS, Some(MS / 3), MS), Estimate::Poll);
        assert_eq!(at(10 * MS, Some(1), MS - 1), Estimate::Random, "asking would cost more than it tells");
        assert_eq!(at(39 * MS, None, 20 * MS), Estimate::Cached, "twice the work");
        assert_eq!(estimate(5, None, None, MS), Estimate::Random);
        assert_eq!(estimate(5, Some(6), None, MS), Estimate::Cached, "a clock read by two threads");
        let estimates = Estimates::default();
        estimates.count(Estimate::Poll);
        assert_eq!(estimates.counts(), [0, 1, 0]);
    }
}
