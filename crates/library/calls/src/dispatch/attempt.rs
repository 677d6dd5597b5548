//! One attempt, as the slow path and the fast path begin and end it.

use std::sync::Arc;

use fairmesh_connections::{AttemptTimeouts, EndpointPool};

use super::load_poll;
use crate::{
    call::{Call, nanos},
    mesh::state::MeshState,
    service::handle::Handle,
};

/// An attempt that has begun.
pub(super) struct Attempt {
    pub(super) pool: Arc<EndpointPool>,
    /// When the attempt was decided, in nanoseconds of the clock.
    pub(super) began: u64,
    /// When the attempt was decided, in nanoseconds of the clock. Set only if the attempt claimed the next round of
    /// load polling.
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
        // Claimed when the attempt begins: if the attempt that happens to end first claimed it, rounds would be biased
        // towards short attempts.
        let polls_load_since = call.target().poll_limiter.claim_round(now).then_some(now);
        handle.count(|counters| &counters.attempts);
        Self { pool, began: now, polls_load_since }
    }

    /// Begins a hedged attempt.
    pub(super) fn begin_hedge(handle: &Handle, pool: Arc<EndpointPool>, now: u64) -> Self {
        handle.count(|counters| &counters.attempts);
        handle.count(|counters| &counters.hedges);
        Self { pool, began: now, polls_load_since: None }
    }

    /// Makes this hedged attempt take the place of `other`, the attempt that it hedged.
    pub(super) fn replace(self, other: &mut Self) {
        *other = Self { polls_load_since: other.polls_load_since, ..self };
    }

    /// Records the latency of the response, if there is one and picks depend on it.
    #[inline]
    pub(super) fn record_latency(&self, mesh: &MeshState, is_response: bool) {
        if is_response && self.pool.target().by_latency {
            let now = mesh.clock.now();
            self.pool.endpoint().record_latency(now.saturating_sub(self.began), now);
        }
    }

    /// After a successful attempt that claimed a round of load polling, polls servers for their load in the
    /// background.
    #[inline]
    pub(super) fn poll_load(&self, mesh: &MeshState, call: &Call<'_, Arc<EndpointPool>>) {
        if let Some(began) = self.polls_load_since {
            load_poll::spawn_round(mesh, call.target(), &self.pool, began);
        }
    }

    /// Time limits for the steps of the attempt.
    pub(super) fn timeouts(&self, mesh: &MeshState, call: &Call<'_, Arc<EndpointPool>>) -> AttemptTimeouts {
        let (clock, now) = (mesh.clock, self.began);
        let until = call.attempt_ends(now);
        // Half of the time left, so that an unreachable server does not use up all of it: the rest is for another
        // server.
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
