use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_model::Score;

use crate::config::nanos;

/// Unless the policy says otherwise, any report is fresh for this long, in nanoseconds: requests that take less than a few milliseconds come and go in such
/// numbers that their count is a mean already.
const MIN_FRESH: u64 = 10_000_000;

/// Servers that work for less than this on a request are not asked, in nanoseconds: an answer costs them about what a call
/// without work costs, and two questions a call would be a good part of what they do.
const MIN_SERVICE_TIME: u64 = 1_000_000;

/// Where the estimate of an endpoint's load comes from (ServiceRouter §3.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Estimate {
    /// The last report: it is fresh.
    Cached,
    /// Ask the server now: it is near compared with how long it works on a request.
    Poll,
    /// Neither: what is known is stale and asking takes too long; leave it to chance.
    Random,
}

/// What is known of an endpoint's load; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct EstimateInput {
    /// How long ago its last report came; `None` where none did.
    pub age: Option<u64>,
    /// How long a round trip to it takes; `None` where nobody knows.
    pub round_trip: Option<u64>,
    /// How long servers of its service work on a request: a mean.
    pub service_time: u64,
}

/// How to estimate the load of an endpoint.
///
/// A report is fresh while it is younger than `pollAfter`; unless the policy sets that, than 10 ms or twice the mean time that the
/// service works on a request, whichever is longer: until then most of the requests that it counted are still there. Asking is
/// worth its while where the round trip takes less than `pollRatio` (half) of that time, and that is 1 ms at least. The bounds are
/// the project's choice, since the paper gives none.
pub fn estimate(score: &Score, known: EstimateInput) -> Estimate {
    let EstimateInput { age, round_trip, service_time } = known;
    let fresh_for = score.poll_after.map_or_else(|| service_time.saturating_mul(2).max(MIN_FRESH), nanos);
    let max_round_trip = (u128::from(service_time) * u128::from(score.poll_ratio) / 100) as u64;
    if age.is_some_and(|age| age < fresh_for) {
        Estimate::Cached
    } else if service_time >= MIN_SERVICE_TIME
        && round_trip.is_some_and(|round_trip| round_trip < max_round_trip)
    {
        Estimate::Poll
    } else {
        Estimate::Random
    }
}

/// How often each was the case.
#[derive(Debug, Default)]
pub struct EstimateCounters {
    cached: AtomicU64,
    polled: AtomicU64,
    random: AtomicU64,
}

impl EstimateCounters {
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
    fn fresh_reports_are_cached_near_servers_polled_and_others_random() {
        let at = |age, round_trip, service_time| {
            estimate(&Score::default(), EstimateInput { age: Some(age), round_trip, service_time })
        };
        assert_eq!(at(9 * MS, None, MS), Estimate::Cached, "10 ms are always fresh");
        assert_eq!(at(10 * MS, Some(MS), MS), Estimate::Random, "a round trip as long as the service time");
        assert_eq!(at(10 * MS, Some(MS / 3), MS), Estimate::Poll);
        assert_eq!(at(10 * MS, Some(1), MS - 1), Estimate::Random, "asking would cost more than it tells");
        assert_eq!(at(39 * MS, None, 20 * MS), Estimate::Cached, "twice the service time");
        let unheard = EstimateInput { service_time: MS, ..EstimateInput::default() };
        assert_eq!(estimate(&Score::default(), unheard), Estimate::Random);
        let estimates = EstimateCounters::default();
        estimates.count(Estimate::Poll);
        assert_eq!(estimates.counts(), [0, 1, 0]);
    }

    #[test]
    fn the_policy_sets_freshness_and_the_round_trip_bound() {
        let after = Some(std::time::Duration::from_millis(3));
        let score = Score { poll_after: after, poll_ratio: 80, ..Score::default() };
        let at = |age, round_trip| {
            estimate(
                &score,
                EstimateInput { age: Some(age), round_trip: Some(round_trip), service_time: 20 * MS },
            )
        };
        assert_eq!(at(3 * MS - 1, 0), Estimate::Cached);
        assert_eq!(at(3 * MS, 16 * MS - 1), Estimate::Poll, "whatever the service time is");
        assert_eq!(at(3 * MS, 16 * MS), Estimate::Random);
    }
}
