use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_model::Score;

use crate::config::nanos;

/// Minimum time for which a report is fresh, in nanoseconds, unless the policy sets one. Requests shorter than a few
/// milliseconds are so numerous that their count is already a mean.
const MIN_FRESH: u64 = 10_000_000;

/// Minimum mean service time for polling, in nanoseconds. A poll costs a server about as much as a call without work,
/// so two polls per call would be a considerable part of its load.
const MIN_SERVICE_TIME: u64 = 1_000_000;

/// The source of an endpoint's load estimate (ServiceRouter §3.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Estimate {
    /// The last report, which is still fresh.
    Cached,
    /// A poll, since the round trip is short compared with the service time.
    Poll,
    /// Neither: the last report is stale and a poll would take too long, so the pick is random.
    Random,
}

/// Inputs that determine the source of an estimate; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct EstimateInput {
    /// Age of the last report; `None` if there is none.
    pub age: Option<u64>,
    /// Round trip to the endpoint; `None` if unknown.
    pub round_trip: Option<u64>,
    /// Mean service time of the service's requests.
    pub service_time: u64,
}

/// Determines the source of an endpoint's load estimate.
///
/// A report is fresh while it is younger than `pollAfter`, by default the longer of 10 ms and twice the mean service
/// time: until then most of the counted requests are still in flight. Polling is worthwhile if the round trip takes
/// less than `pollRatio` (half) of a mean service time of at least 1 ms. The project chose these bounds, since the
/// paper gives none.
pub fn estimate(score: &Score, input: EstimateInput) -> Estimate {
    let EstimateInput { age, round_trip, service_time } = input;
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

/// Counters of the sources of estimates.
#[derive(Debug, Default)]
pub struct EstimateCounters {
    cached: AtomicU64,
    polled: AtomicU64,
    random: AtomicU64,
}

impl EstimateCounters {
    /// Counts an estimate.
    pub fn count(&self, estimate: Estimate) {
        let counter = match estimate {
            Estimate::Cached => &self.cached,
            Estimate::Poll => &self.polled,
            Estimate::Random => &self.random,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the numbers of cached, polled and random estimates.
    pub fn counts(&self) -> [u64; 3] {
        [&self.cached, &self.polled, &self.random].map(|counter| counter.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn load_estimate_is_cached_polled_or_random_by_report_age_and_distance() {
        let at = |age, round_trip, service_time| {
            estimate(&Score::default(), EstimateInput { age: Some(age), round_trip, service_time })
        };
        assert_eq!(at(9 * MS, None, MS), Estimate::Cached, "10 ms are always fresh");
        assert_eq!(at(10 * MS, Some(MS), MS), Estimate::Random, "a round trip as long as the service time");
        assert_eq!(at(10 * MS, Some(MS / 3), MS), Estimate::Poll);
        assert_eq!(at(10 * MS, Some(1), MS - 1), Estimate::Random, "below the minimum service time");
        assert_eq!(at(39 * MS, None, 20 * MS), Estimate::Cached, "twice the service time");
        let unknown = EstimateInput { service_time: MS, ..EstimateInput::default() };
        assert_eq!(estimate(&Score::default(), unknown), Estimate::Random);
        let estimates = EstimateCounters::default();
        estimates.count(Estimate::Poll);
        assert_eq!(estimates.counts(), [0, 1, 0]);
    }

    #[test]
    fn policy_sets_load_report_freshness_and_round_trip_bound() {
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
