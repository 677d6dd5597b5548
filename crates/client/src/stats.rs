use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_balancer::poll::EstimateCounters;

/// What a mesh has done since it was connected, and how old what it knows is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls begun.
    pub calls: u64,
    /// Calls that ended in a fault before their answer began; answers of servers, good or bad, do not count.
    pub faults: u64,
    /// Tries made: calls that found an endpoint, and their retries.
    pub tries: u64,
    /// Tries after the first, those for a wrong shard included.
    pub retries: u64,
    /// Retries that the budget refused.
    pub retries_refused: u64,
    /// Tries made beside one that took long, as the policy has it (`hedge`).
    pub hedges: u64,
    /// Calls that a limit of a policy did not let through.
    pub limited: u64,
    /// Calls that a policy answered with a failure on purpose (`fault.abort`).
    pub aborted: u64,
    /// Copies of calls that were sent to another service (`mirror`).
    pub mirrored: u64,
    /// Copies that got no answer.
    pub mirrors_failed: u64,
    /// Copies that were not sent, since too many were under way or the body was too long or not at hand.
    pub mirrors_skipped: u64,
    /// Answers of servers that did not hold the shard.
    pub wrong_shard: u64,
    /// Tries for which no endpoint could be chosen.
    pub unroutable: u64,
    /// Calls to services with a lookaside of their own that went by the records, since it had never answered.
    pub lookaside_missed: u64,
    /// Tries that went to an endpoint which should not be called any more, since nothing else was left.
    pub last_resort: u64,
    /// Tries made while so many endpoints answered badly that nobody was avoided for it (panic).
    pub panics: u64,
    /// Regions of services in use where what health checks found is ignored now, since it speaks against more than half of
    /// what serves there.
    pub health_panics: u64,
    /// Load reports of servers that were malformed or could not be true, and so were not used.
    pub reports_ignored: u64,
    /// Of the endpoints that calls could go to, when one call in 20 ms of each service looked at up to 32 of them in turn: those
    /// whose last answer to a call said how loaded they are a moment ago (ServiceRouter §3.4.3). Services that go by no load reports, and those
    /// whose policy has nobody asked, do not count.
    pub estimates_cached: u64,
    /// Likewise: those that were asked for their load a moment ago, or then, since nothing recent was known and they are near.
    pub estimates_polled: u64,
    /// Likewise: those of which nothing recent was known, so that chance had to do.
    pub estimates_random: u64,
    /// Connections opened.
    pub connections_opened: u64,
    /// Connections that are open now.
    pub connections_open: u64,
    /// Tries that went over a connection which had carried another before.
    pub reused: u64,
    /// How long ago what the mesh knows was last confirmed: zero while the agent is connected and in touch itself.
    pub data_age: Duration,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) tries: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) retries_refused: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) limited: AtomicU64,
    pub(crate) aborted: AtomicU64,
    pub(crate) mirrored: AtomicU64,
    pub(crate) mirrors_failed: AtomicU64,
    pub(crate) mirrors_skipped: AtomicU64,
    pub(crate) wrong_shard: AtomicU64,
    pub(crate) unroutable: AtomicU64,
    pub(crate) lookaside_missed: AtomicU64,
    pub(crate) last_resort: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) reports_ignored: AtomicU64,
    pub(crate) estimates: EstimateCounters,
    opened: AtomicU64,
    closed: AtomicU64,
    reused: AtomicU64,
}

/// Counts a connection as open until it is dropped.
pub(crate) struct OpenConnection(Arc<Counters>);

/// Counts one.
#[inline]
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Counters {
    pub(crate) fn reused(&self) {
        count(&self.reused);
    }

    pub(crate) fn open_connection(self: &Arc<Self>) -> OpenConnection {
        count(&self.opened);
        OpenConnection(Arc::clone(self))
    }

    pub(crate) fn read(&self, health_panics: u64, data_age: Duration) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        // Closed first: a connection opened and closed in between must not make the difference negative.
        let closed = of(&self.closed);
        let opened = of(&self.opened);
        let [estimates_cached, estimates_polled, estimates_random] = self.estimates.counts();
        Stats {
            calls: of(&self.calls),
            faults: of(&self.faults),
            tries: of(&self.tries),
            retries: of(&self.retries),
            retries_refused: of(&self.retries_refused),
            hedges: of(&self.hedges),
            limited: of(&self.limited),
            aborted: of(&self.aborted),
            mirrored: of(&self.mirrored),
            mirrors_failed: of(&self.mirrors_failed),
            mirrors_skipped: of(&self.mirrors_skipped),
            wrong_shard: of(&self.wrong_shard),
            unroutable: of(&self.unroutable),
            lookaside_missed: of(&self.lookaside_missed),
            last_resort: of(&self.last_resort),
            panics: of(&self.panics),
            health_panics,
            reports_ignored: of(&self.reports_ignored),
            estimates_cached,
            estimates_polled,
            estimates_random,
            connections_opened: opened,
            connections_open: opened.saturating_sub(closed),
            reused: of(&self.reused),
            data_age,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        count(&self.0.closed);
    }
}
