//! One attempt, as the slow and the fast path begin and end it.

use std::sync::Arc;

use fairmesh_connections::{AttemptTimeouts, EndpointPool};

use super::load_poll;
use crate::{
    call::{Call, nanos},
    mesh::state::MeshState,
    service::handle::Handle,
};

/// An attempt that was begun.
pub(super) struct Attempt {
    pub(super) pool: Arc<EndpointPool>,
    /// When it was decided, in nanoseconds of the clock.
    pub(super) began: u64,
    /// Where it is followed by a round of load polling, when the attempt that claimed the round was decided.
    polls_load_since: Option<u64>,
}

impl Attempt {
    /// Begins an attempt at an endpoint that was picked at `now`.
    #[inline]
    pub(super) fn begin(
        handle: &Handle,
        call: &Call<'_, Arc<EndpointPool>>,
        pool: Arc<EndpointPool>,
        now: u64,
    ) -> Self {
        // Claimed as it begins: claimed by the attempt that happens to end first, rounds would be biased to short ones.
        let polls_load_since = call.target().poll_limiter.claim_round(now).then_some(now);
        handle.count(|counters| &counters.attempts);
        Self { pool, began: now, polls_load_since }
    }

    /// Begins an attempt beside another one.
    pub(super) fn begin_hedge(handle: &Handle, pool: Arc<EndpointPool>, now: u64) -> Self {
        handle.count(|counters| &counters.attempts);
        handle.count(|counters| &counters.hedges);
        Self { pool, began: now, polls_load_since: None }
    }

    /// Takes the place of the attempt beside which it was made.
    pub(super) fn replace(self, other: &mut Self) {
        *other = Self { polls_load_since: other.polls_load_since, ..self };
    }

    /// Records the latency of the response, where there is one and picks depend on it.
    #[inline]
    pub(super) fn record_latency(&self, mesh: &MeshState, is_response: bool) {
        if is_response && self.pool.target().by_latency {
            let now = mesh.clock.now();
            self.pool.endpoint().record_latency(now.saturating_sub(self.began), now);
        }
    }

    /// Polls servers for their load in the background after a successful attempt, where this one claimed a round.
    #[inline]
    pub(super) fn poll_load(&self, mesh: &MeshState, call: &Call<'_, Arc<EndpointPool>>) {
        if let Some(began) = self.polls_load_since {
            load_poll::spawn_round(mesh, call.target(), &self.pool, began);
        }
    }

    /// The time limits of its steps.
    pub(super) fn timeouts(&self, mesh: &MeshState, call: &Call<'_, Arc<EndpointPool>>) -> AttemptTimeouts {
        let (clock, now) = (mesh.clock, self.began);
        let until = call.attempt_ends(now);
        // Half, so that an unreachable server does not use up the call's time: the rest is for another one.
        let connected_by = until.min(now + nanos(call.left_before_request(now)) / 2);
        AttemptTimeouts {
            begun: clock.instant(now),
            connected_by: clock.instant(connected_by),
            until: clock.instant(until),
            response_header: call.response_header_timeout(),
            idle: call.idle_timeout(),
        }
    }
}
