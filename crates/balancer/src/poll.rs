//! Servers are asked for their load where nothing recent is known of it (ServiceRouter §3.4.3), so that a program which calls seldom knows as
//! much of a server that others keep busy as those do: when, and whom. How they are asked is the caller's matter.
//!
//! Calls never wait for that, so what a question finds out serves the calls after it. One try in 20 ms of each service does
//! the work, where ten tries have paid for a question: when it has its answer, it looks at some of the endpoints that calls could
//! go to, others each time, and asks the two of them of which nothing has been heard for the longest. All handles and callers of a
//! program share the try, the work and what is learnt. So what is asked is bounded by what is called, and by a hundred questions
//! a second and service, and a program that calls nobody asks nobody.
//!
//! Two a survey, since ServiceRouter asks the two candidates of a call. Rejected: asking those two before the call, as it does, for
//! the call would wait; a task that wakes up all the time, which costs a program that is idle; a flag that each pick sets, which
//! would cost every call a write.

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

/// From survey to survey of a service, in nanoseconds: what bounds questions where tries are so frequent that they pay for more than
/// a hundred a second. Programs that call seldom, which have most use for questions, would gain nothing by a shorter time, since
/// each survey follows a call.
pub const ROUND_INTERVAL: u64 = 20_000_000;
/// Endpoints that one survey looks at: more than a usual subset has, and few where one is all of a fleet.
pub const MAX_EXAMINED: usize = 32;
/// Servers that one survey asks.
const MAX_POLLS_PER_ROUND: usize = 2;
/// How many times of work the mean goes over.
const SERVICE_TIME_SAMPLES: u64 = 8;

/// How long an answer may take, in nanoseconds: whoever is near and needs longer has other things to do.
pub const POLL_TIMEOUT: u64 = 250_000_000;
/// How long a server is left alone that did not answer, in nanoseconds.
pub const NO_RESPONSE_BACKOFF: u64 = 5_000_000_000;
/// How long one is left alone that answers something else, in nanoseconds: it is not Fairmesh's server layer, and only a new
/// release of it would be.
pub const UNSUPPORTED_BACKOFF: u64 = 10 * 60 * 1_000_000_000;

/// What to go by, where load reports decide and servers may be asked for them.
pub fn polling_config(balancing: &Balancing) -> Option<Score> {
    (balancing.policy == BalancingPolicy::Score && balancing.score.poll).then_some(balancing.score)
}

/// When a program asks the servers of one service; one for all of its handles.
///
/// What a try needs comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PollLimiter {
    /// From when on the next try is followed by a survey, in nanoseconds of the clock.
    due: AtomicU64,
    budget: PollBudget,
    /// How long servers work on a request, in nanoseconds: a mean over the tries that surveys followed. 0 before any.
    service_time: AtomicU64,
    /// Places that surveys have looked at.
    examined: AtomicUsize,
}

impl PollLimiter {
    /// Counts a try that begins at `now`. Whether it is to be followed by a survey of the endpoints, as one is each [`ROUND_INTERVAL`]
    /// nanoseconds while tries pay for questions.
    #[inline]
    pub fn claim_round(&self, now: u64) -> bool {
        if !self.budget.deposit() {
            return false;
        }
        let due = self.due.load(Relaxed);
        now >= due
            && self.due.compare_exchange(due, now.saturating_add(ROUND_INTERVAL), Relaxed, Relaxed).is_ok()
    }

    /// Takes how long a server worked on a request, in nanoseconds, and returns the mean.
    pub fn record_service_time(&self, time: u64) -> u64 {
        let previous = self.service_time.load(Relaxed);
        // Of two at once one is lost, as many are that no survey follows.
        let mean = if previous == 0 {
            time
        } else {
            previous - previous / SERVICE_TIME_SAMPLES + time / SERVICE_TIME_SAMPLES
        };
        self.service_time.store(mean, Relaxed);
        mean
    }

    /// Places among `all` that the next survey looks at, going on where the one before it stopped and wrapping around.
    fn window<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let start = self.examined.fetch_add(MAX_EXAMINED, Relaxed);
        let (before, after) = all.split_at(start % all.len().max(1));
        after.iter().chain(before).take(MAX_EXAMINED)
    }
}

/// A server that may be asked.
pub trait PollTarget {
    /// What asking it has shown.
    fn poll_state(&self) -> &Arc<PollState>;
    /// Whether a question could be sent at once, over a connection that is open already.
    fn is_connected(&self) -> bool;
}

/// Looks at the endpoints of a service.
#[derive(Clone, Copy, Debug)]
pub struct PollRound<'a> {
    /// When the program asks, and what it has asked already.
    pub limiter: &'a PollLimiter,
    /// What is known of the endpoints.
    pub stats: &'a EndpointStats,
    /// The constants of the service.
    pub score: Score,
    /// Counts where estimates came from.
    pub estimates: &'a EstimateCounters,
    /// How long servers work on a request, in nanoseconds: see [`PollLimiter::worked`].
    pub service_time: u64,
    /// The time, in nanoseconds of the caller's clock.
    pub now: u64,
}

impl PollRound<'_> {
    /// Counts how what is known of some of the endpoints came about, and claims those of them that are to be asked.
    ///
    /// `nearest` are the endpoints that calls could go to, by index; `server` gives the one at an index, or `None` where it was
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

    /// Where an endpoint's load is known from; where it may be asked, also when it was heard of last.
    fn estimate_source(&self, index: u32, server: Option<&impl PollTarget>) -> (Estimate, Option<u64>) {
        let (Some(last_report), Some(server)) = (self.stats.last_report(index), server) else {
            // Whoever never reported is not asked: most servers know nothing of all this.
            return (Estimate::Random, None);
        };
        let poll_state = server.poll_state();
        let input = EstimateInput {
            // A report dated later than now was read by another thread a moment ago.
            age: Some(self.now.saturating_sub(last_report.at)),
            round_trip: Some(poll_state.round_trip(self.now)),
            service_time: self.service_time,
        };
        match estimate(&self.score, input) {
            Estimate::Cached if poll_state.is_polled_report(&last_report) => (Estimate::Poll, None),
            Estimate::Cached => (Estimate::Cached, None),
            // One that is avoided for its failures gets no calls, and none needs its load.
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
