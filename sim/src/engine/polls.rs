//! Polls for load: the production code decides when and which servers to poll.

use std::sync::Arc;

use fairmesh_balancer::load_poll::{
    Estimate, NO_RESPONSE_BACKOFF, POLL_TIMEOUT, PollRound, PollTarget, UNSUPPORTED_BACKOFF,
};
use fairmesh_router::LoadReport;

use super::{Engine, EventKind};
use crate::{caller::Demand, in_flight::AttemptOutcome, registry::DiscoveredService};

/// Cost of a poll to a server, in nanoseconds of an ordinary core: a call without work costs the server layer about 8
/// µs.
const POLL_COST: f64 = 10_000.0;

impl Engine {
    /// After a response, starts the polling round scheduled for its attempt.
    #[inline]
    pub(super) fn start_round_if_due(&mut self, id: u32) {
        if let Some(began) = self.in_flight.get(id).round_from.take() {
            self.start_round(id, began);
        }
    }

    /// Selects the endpoints to poll, after the response to an attempt that began at `began`.
    fn start_round(&mut self, id: u32, began: u64) {
        let Some(score) = self.polling else { return };
        let request = self.in_flight.get(id);
        let (from, index) = (request.caller, request.index);
        let caller = &self.callers[from as usize];
        let (service, now) = (&caller.service, caller.now(self.now));
        let round_trip =
            service.connection(index).map_or(0, |connection| connection.poll_state().round_trip(now));
        let service_time =
            caller.poll_limiter.record_service_time((self.now - began).saturating_sub(round_trip));
        let DiscoveredService { upstream, endpoint_stats, .. } = service;
        let estimates = self.metrics.estimates(self.now);
        let round = PollRound {
            limiter: &caller.poll_limiter,
            stats: endpoint_stats,
            score,
            estimates,
            service_time,
            now,
        };
        let open = |index| service.connection(index).filter(|connection| connection.is_open(self.now));
        for (index, guard) in round.select_targets(upstream.nearest(), open) {
            let poll = self.in_flight.add(from, Demand { cpu: POLL_COST, wait: 0, stream: false }, self.now);
            let service = &mut self.callers[from as usize].service;
            let server = service.server(index);
            if let Some(connection) = service.connection_mut(index) {
                connection.begin_poll(poll, guard);
            }
            let request = self.in_flight.get(poll);
            request.is_poll = true;
            request.begin_attempt(index, server);
            self.metrics.estimates(self.now).count(Estimate::Poll);
            self.metrics.record_poll(self.now);
            let delay = self.one_way_delay(from, server);
            self.schedule_request(self.now + delay, EventKind::RequestArrives, poll);
        }
    }

    /// Handles a poll at its server. Limits and failures do not apply, since they belong to the service behind the
    /// server layer.
    pub(super) fn poll_arrives(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        if self.servers[request.server as usize].up {
            self.start_work(id);
        } else {
            self.respond(id, AttemptOutcome::Unreachable);
        }
    }

    /// Handles the end of a poll.
    pub(super) fn receive_poll_response(&mut self, id: u32) {
        let request = *self.in_flight.get(id);
        self.in_flight.remove(id);
        let caller = &mut self.callers[request.caller as usize];
        let (now, took) = (caller.now(self.now), self.now - request.began);
        let service = &mut caller.service;
        let Some(connection) = service.connection_mut(request.index) else { return };
        let Some(guard) = connection.end_poll(id) else { return };
        if request.outcome != AttemptOutcome::Responded {
            connection.close();
            return guard.finish(now + NO_RESPONSE_BACKOFF);
        }
        if took > POLL_TIMEOUT {
            return guard.finish((now + POLL_TIMEOUT + NO_RESPONSE_BACKOFF).saturating_sub(took));
        }
        let poll_state = Arc::clone(connection.poll_state());
        poll_state.record_round_trip(took, now);
        if request.report == LoadReport::default() {
            return guard.finish(now + UNSUPPORTED_BACKOFF);
        }
        guard.finish(now);
        poll_state.record_report(&service.endpoint_stats, request.index, request.report, now);
    }
}
