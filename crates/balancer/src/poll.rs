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

mod allowance;
mod asked;
mod estimate;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use fairmesh_model::{Balancing, BalancingPolicy, Score};

use self::allowance::Allowance;
pub use self::{
    asked::{Asked, Claim},
    estimate::{Estimate, Estimates, Freshness, estimate},
};
use crate::Slots;

/// From survey to survey of a service, in nanoseconds: what bounds questions where tries are so frequent that they pay for more than
/// a hundred a second. Programs that call seldom, which have most use for questions, would gain nothing by a shorter time, since
/// each survey follows a call.
pub const EVERY: u64 = 20_000_000;
/// Endpoints that one survey looks at: more than a usual subset has, and few where one is all of a fleet.
pub const WINDOW: usize = 32;
/// Servers that one survey asks.
const AT_ONCE: usize = 2;
/// How many times of work the mean goes over.
const WORK_MEMORY: u64 = 8;

/// How long an answer may take, in nanoseconds: whoever is near and needs longer has other things to do.
pub const PATIENCE: u64 = 250_000_000;
/// How long a server is left alone that did not answer, in nanoseconds.
pub const AFTER_SILENCE: u64 = 5_000_000_000;
/// How long one is left alone that answers something else, in nanoseconds: it is not Fairmesh's server layer, and only a new
/// release of it would be.
pub const AFTER_NONSENSE: u64 = 10 * 60 * 1_000_000_000;

/// What to go by, where load reports decide and servers may be asked for them.
pub fn polled(balancing: &Balancing) -> Option<Score> {
    (balancing.policy == BalancingPolicy::Score && balancing.score.poll).then_some(balancing.score)
}

/// When a program asks the servers of one service; one for all of its handles.
///
/// What a try needs comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Pace {
    /// From when on the next try is followed by a survey, in nanoseconds of the clock.
    due: AtomicU64,
    allowance: Allowance,
    /// How long servers work on a request, in nanoseconds: a mean over the tries that surveys followed. 0 before any.
    work: AtomicU64,
    /// Places that surveys have looked at.
    looked: AtomicUsize,
}

impl Pace {
    /// Counts a try that begins at `now`. Whether it is to be followed by a survey of the endpoints, as one is each [`EVERY`]
    /// nanoseconds while tries pay for questions.
    #[inline]
    pub fn claims_survey(&self, now: u64) -> bool {
        if !self.allowance.earn() {
            return false;
        }
        let due = self.due.load(Relaxed);
        now >= due && self.due.compare_exchange(due, now.saturating_add(EVERY), Relaxed, Relaxed).is_ok()
    }

    /// Takes how long a server worked on a request, in nanoseconds, and returns the mean.
    pub fn worked(&self, time: u64) -> u64 {
        let before = self.work.load(Relaxed);
        // Of two at once one is lost, as many are that no survey follows.
        let mean = if before == 0 { time } else { before - before / WORK_MEMORY + time / WORK_MEMORY };
        self.work.store(mean, Relaxed);
        mean
    }

    /// Places among `all` that the next survey looks at, going on where the one before it stopped and wrapping around.
    fn window<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> {
        let from = self.looked.fetch_add(WINDOW, Relaxed);
        let (before, after) = all.split_at(from % all.len().max(1));
        after.iter().chain(before).take(WINDOW)
    }
}

/// A server that may be asked.
pub trait Askable {
    /// What asking it has shown.
    fn asked(&self) -> &Arc<Asked>;
    /// Whether a question could be sent at once, over a connection that is open already.
    fn is_connected(&self) -> bool;
}

/// Looks at the endpoints of a service.
#[derive(Clone, Copy, Debug)]
pub struct Survey<'a> {
    /// When the program asks, and what it has asked already.
    pub pace: &'a Pace,
    /// What is known of the endpoints.
    pub slots: &'a Slots,
    /// The constants of the service.
    pub score: Score,
    /// Counts where estimates came from.
    pub estimates: &'a Estimates,
    /// How long servers work on a request, in nanoseconds: see [`Pace::worked`].
    pub work: u64,
    /// The time, in nanoseconds of the caller's clock.
    pub now: u64,
}

impl Survey<'_> {
    /// Counts how what is known of some of the endpoints came about, and claims those of them that are to be asked.
    ///
    /// `nearest` are the endpoints that calls could go to, by index; `server` gives the one at an index, or `None` where it was
    /// never called.
    pub fn look<'s, S: Askable + 's>(
        &self,
        nearest: &[u32],
        server: impl Fn(u32) -> Option<&'s S>,
    ) -> Vec<(u32, Claim)> {
        let mut near = Vec::new();
        for &index in self.pace.window(nearest) {
            let server = server(index);
            match self.judge(index, server) {
                (Estimate::Poll, Some(heard)) => near.extend(server.map(|server| (heard, index, server))),
                (estimate, _) => self.estimates.count(estimate),
            }
        }
        near.sort_by_key(|(heard, ..)| *heard);
        let mut chosen = Vec::with_capacity(AT_ONCE);
        for (_, index, server) in near {
            let claim = if chosen.len() < AT_ONCE { server.asked().claim() } else { None };
            match claim.filter(|_| self.pace.allowance.spend()) {
                Some(claim) => chosen.push((index, claim)),
                None => self.estimates.count(Estimate::Random),
            }
        }
        chosen
    }

    /// Where an endpoint's load is known from; where it may be asked, also when it was heard of last.
    fn judge(&self, index: u32, server: Option<&impl Askable>) -> (Estimate, Option<u64>) {
        let (Some(reported), Some(server)) = (self.slots.reported(index), server) else {
            // Whoever never reported is not asked: most servers know nothing of all this.
            return (Estimate::Random, None);
        };
        let asked = server.asked();
        let known = Freshness {
            // A report dated later than now was read by another thread a moment ago.
            age: Some(self.now.saturating_sub(reported.at)),
            round_trip: Some(asked.round_trip(self.now)),
            work: self.work,
        };
        match estimate(&self.score, known) {
            Estimate::Cached if asked.has_told(&reported) => (Estimate::Poll, None),
            Estimate::Cached => (Estimate::Cached, None),
            // One that is avoided for its failures gets no calls, and none needs its load.
            Estimate::Poll
                if asked.is_free(self.now)
                    && self.slots.penalised_until(index) <= self.now
                    && server.is_connected() =>
            {
                (Estimate::Poll, Some(reported.at))
            }
            Estimate::Poll | Estimate::Random => (Estimate::Random, None),
        }
    }
}

#[cfg(test)]
mod tests;
