//! Polls servers for their load when there is no recent report (ServiceRouter §3.4.3): decides when to poll, and which
//! servers. A program with few calls thereby knows the load that others cause on a server as well as the others do. The
//! caller provides the transport.
//!
//! Calls never wait for a poll; results serve later calls. At most every 20 ms, an attempt of a service starts a round,
//! if ten attempts have paid for a poll. After the attempt's response, the round examines the next window of candidate
//! endpoints and polls the two with the oldest reports. All handles and callers of a program share rounds, budget and
//! results. Polls are therefore bounded by a tenth of the attempts and by a hundred per second and service, and a
//! program without calls sends none.
//!
//! A round polls two servers because ServiceRouter polls the two candidates of a call. Three alternatives were
//! rejected: polling before the call, as ServiceRouter does, since the call would wait; a background task, since it
//! costs idle programs; a flag set by each pick, since it would cost every call a write.

mod budget;
mod estimate;
mod state;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use fairmesh_model::{Balancing, BalancingPolicy, Score};

use self::budget::PollBudget;
pub use self::{
    estimate::{Estimate, EstimateCounters, EstimateInput, estimate},
    state::{PollGuard, PollState},
};
use crate::EndpointStats;

/// Interval between rounds of a service, in nanoseconds. It bounds polls when frequent attempts would pay for more than
/// a hundred per second. Programs with few calls profit most from polls, but a shorter interval would not help them,
/// since each round follows a call.
pub const ROUND_INTERVAL: u64 = 20_000_000;
/// Maximum number of endpoints examined per round: more than a typical subset has, but only a few of a whole fleet.
pub const MAX_EXAMINED: usize = 32;
/// Maximum number of servers polled per round.
const MAX_POLLS_PER_ROUND: usize = 2;
/// Number of samples over which the service time is averaged.
const SERVICE_TIME_SAMPLES: u64 = 8;

/// Timeout of a poll, in nanoseconds: a near server that takes longer is overloaded.
pub const POLL_TIMEOUT: u64 = 250_000_000;
/// Pause after a poll without a response, in nanoseconds.
pub const NO_RESPONSE_BACKOFF: u64 = 5_000_000_000;
/// Pause after a response without a load report, in nanoseconds. The server does not run Fairmesh's server layer, and
/// only a new release could change that.
pub const UNSUPPORTED_BACKOFF: u64 = 10 * 60 * 1_000_000_000;

/// The service's polling constants, if its policy balances by load reports and enables polls.
pub fn polling_config(balancing: &Balancing) -> Option<Score> {
    (balancing.policy == BalancingPolicy::Score && balancing.score.poll).then_some(balancing.score)
}

/// Limits polls to the servers of one service; shared by all handles of a program.
///
/// Fields read by every attempt come first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PollLimiter {
    /// When the next attempt may start a round, in nanoseconds of the clock.
    due: AtomicU64,
    budget: PollBudget,
    /// Mean service time of requests, in nanoseconds, over the attempts that started a round; 0 before the first.
    service_time: AtomicU64,
    /// Number of positions examined so far.
    examined: AtomicUsize,
}

impl PollLimiter {
    /// Counts an attempt that begins at `now`. Returns whether it starts a round: one attempt per [`ROUND_INTERVAL`]
    /// does, as long as the budget allows a poll.
    #[inline]
    pub fn claim_round(&self, now: u64) -> bool {
        if !self.budget.deposit() {
            return false;
        }
        let due = self.due.load(Relaxed);
        now >= due
            && self.due.compare_exchange(due, now.saturating_add(ROUND_INTERVAL), Relaxed, Relaxed).is_ok()
    }

    /// Records the service time of a request, in nanoseconds, and returns the mean.
    pub fn record_service_time(&self, time: u64) -> u64 {
        let previous = self.service_time.load(Relaxed);
        // Of two concurrent updates one is lost, which is harmless, since attempts without a round are not recorded
        // either.
        let mean = if previous == 0 {
            time
        } else {
            previous - previous / SERVICE_TIME_SAMPLES + time / SERVICE_TIME_SAMPLES
        };
        self.service_time.store(mean, Relaxed);
        mean
    }

    /// Returns the window of `all` that the next round examines. It continues after the previous window and wraps
    /// around.
    fn window<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let start = self.examined.fetch_add(MAX_EXAMINED, Relaxed);
        let (before, after) = all.split_at(start % all.len().max(1));
        after.iter().chain(before).take(MAX_EXAMINED)
    }
}

/// A server that may be polled.
pub trait PollTarget {
    /// The server's polling state.
    fn poll_state(&self) -> &Arc<PollState>;
    /// Whether an open connection could carry a poll at once.
    fn is_connected(&self) -> bool;
}

/// One round of polling for a service.
#[derive(Clone, Copy, Debug)]
pub struct PollRound<'a> {
    /// The service's limiter.
    pub limiter: &'a PollLimiter,
    /// Counts and reports of the endpoints.
    pub stats: &'a EndpointStats,
    /// The service's polling constants.
    pub score: Score,
    /// Counters of estimate sources.
    pub estimates: &'a EstimateCounters,
    /// Mean service time of requests, in nanoseconds: see [`PollLimiter::record_service_time`].
    pub service_time: u64,
    /// Current time, in nanoseconds of the caller's clock.
    pub now: u64,
}

impl PollRound<'_> {
    /// Counts the sources of the load estimates of some endpoints, and selects the endpoints to poll.
    ///
    /// `nearest` are the candidate endpoints by index. `server` returns the server at an index, or `None` if it was
    /// never called.
    pub fn select_targets<'s, S: PollTarget + 's>(
        &self,
        nearest: &[u32],
        server: impl Fn(u32) -> Option<&'s S>,
    ) -> Vec<(u32, PollGuard)> {
        let mut eligible = Vec::new();
        for &index in self.limiter.window(nearest) {
            let server = server(index);
            match self.estimate_source(index, server) {
                (Estimate::Poll, Some(last_report_at)) => {
                    eligible.extend(server.map(|server| (last_report_at, index, server)))
                }
                (estimate, _) => self.estimates.count(estimate),
            }
        }
        eligible.sort_by_key(|(last_report_at, ..)| *last_report_at);
        let mut chosen = Vec::with_capacity(MAX_POLLS_PER_ROUND);
        for (_, index, server) in eligible {
            let guard =
                if chosen.len() < MAX_POLLS_PER_ROUND { server.poll_state().try_acquire() } else { None };
            match guard.filter(|_| self.limiter.budget.withdraw()) {
                Some(guard) => chosen.push((index, guard)),
                None => self.estimates.count(Estimate::Random),
            }
        }
        chosen
    }

    /// Returns the source of an endpoint's load estimate and, if the endpoint may be polled, the time of its last
    /// report.
    fn estimate_source(&self, index: u32, server: Option<&impl PollTarget>) -> (Estimate, Option<u64>) {
        let (Some(last_report), Some(server)) = (self.stats.last_report(index), server) else {
            // Servers that never reported are not polled, since most of them do not support polling.
            return (Estimate::Random, None);
        };
        let poll_state = server.poll_state();
        let input = EstimateInput {
            // Another thread may have stored a report dated slightly later than `now`.
            age: Some(self.now.saturating_sub(last_report.at)),
            round_trip: Some(poll_state.round_trip(self.now)),
            service_time: self.service_time,
        };
        match estimate(&self.score, input) {
            Estimate::Cached if poll_state.is_polled_report(&last_report) => (Estimate::Poll, None),
            Estimate::Cached => (Estimate::Cached, None),
            // An ejected endpoint gets no calls, so its load is not needed.
            Estimate::Poll
                if poll_state.is_pollable(self.now)
                    && self.stats.ejected_until(index) <= self.now
                    && server.is_connected() =>
            {
                (Estimate::Poll, Some(last_report.at))
            }
            Estimate::Poll | Estimate::Random => (Estimate::Random, None),
        }
    }
}

#[cfg(test)]
mod tests;
