//! Callers: pick, send and learn, each as the client library does.

use fairmesh_model::{BalancingPolicy, arith::mix_pair};
use fairmesh_router::{Outcome, PickError, PickParams, RequestView};

use super::{Engine, EventKind};
use crate::{
    application::CallEnd,
    in_flight::{AttemptOutcome, RequestStage},
    registry::DiscoveredService,
    scenario::FailureResponse,
};

impl Engine {
    /// Sends a caller's calls and schedules its next arrival.
    #[inline]
    pub(super) fn call(&mut self, id: u32) {
        let caller = &mut self.callers[id as usize];
        let caller_groups = std::sync::Arc::clone(&self.caller_groups);
        let group = &caller_groups[caller.group as usize];
        for _ in 0..self.callers[id as usize].burst(group) {
            let demand = self.callers[id as usize].draw_demand(group);
            let request = self.in_flight.add(id, demand, self.now);
            self.assign_class(request);
            self.begin_tree(request);
            self.send(request);
        }
        if let Some(at) = self.callers[id as usize].next_call(group, self.now) {
            self.schedule(at, EventKind::Call, id);
        }
    }

    /// Picks the endpoint of an attempt, and sends the attempt.
    #[inline]
    pub(super) fn send(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        let caller = &mut self.callers[request.caller as usize];
        let seed = caller.seeds.next();
        let now = caller.now(self.now);
        let upstream = &caller.service.upstream;
        let view = RequestView { host: "", path: "/", method: "POST", headers: &(), grpc: false };
        let _ = upstream.route(&view, seed);
        let ask = PickParams {
            avoid: request.attempted(),
            // No two calls in flight have the same entry.
            call_seed: mix_pair(request.began, id.into()),
            admitted: request.attempts() > 0,
            class: match (&self.traffic, &self.application) {
                (Some(traffic), _) => traffic.label(request.class.into()),
                (None, Some(run)) => run.label(request.class),
                (None, None) => None,
            },
            ..PickParams::default()
        };
        let picked = match upstream.pick(&ask, now, seed) {
            Ok(picked) => picked,
            Err(why) if matches!(*why, PickError::Dropped { .. }) => return self.drop_call(id),
            Err(_) => {
                self.metrics.record_unroutable(self.now);
                self.end_call(id, CallEnd::Failed);
                return self.in_flight.remove(id);
            }
        };
        upstream.begin(picked.index);
        let server = caller.service.server(picked.index);
        request.begin_attempt(picked.index, server);
        request.stage = RequestStage::Network;
        if self.polling.is_some() {
            request.round_from = caller.poll_limiter.claim_round(now).then_some(self.now);
        }
        let (from, class) = (request.caller, request.class);
        self.metrics.record_sent(server, picked.last_resort);
        self.count_sent(from, class, server);
        self.count_attempt(id);
        let delay = self.one_way_delay(from, server);
        self.schedule_request(self.now + delay, EventKind::RequestArrives, id);
    }

    /// Sends a response, or the failure of the connection, to the caller.
    #[inline]
    pub(super) fn respond(&mut self, id: u32, outcome: AttemptOutcome) {
        let request = self.in_flight.get(id);
        if request.abandoned {
            return self.in_flight.remove(id);
        }
        request.outcome = outcome;
        request.stage = RequestStage::Network;
        let (caller, server) = (request.caller, request.server);
        let delay = self.one_way_delay(caller, server);
        self.schedule_request(self.now + delay, EventKind::ResponseArrives, id);
    }

    /// Handles a response at the caller, which learns from it.
    #[inline]
    pub(super) fn receive_response(&mut self, id: u32) {
        let request = *self.in_flight.get(id);
        if request.abandoned {
            return self.in_flight.remove(id);
        }
        if request.is_poll {
            return self.receive_poll_response(id);
        }
        self.record_outcome(id, request.outcome);
        self.count_response(id);
        let is_retried = request.outcome == AttemptOutcome::Unreachable && request.attempts() < self.attempts;
        if is_retried {
            return self.send(id);
        }
        self.metrics.record_completion(&request, self.now);
        let is_success = request.outcome == AttemptOutcome::Responded;
        self.end_call(id, if is_success { CallEnd::Responded } else { CallEnd::Failed });
        self.in_flight.remove(id);
    }

    /// Reports the outcome of an attempt to the upstream.
    #[inline]
    fn record_outcome(&mut self, id: u32, outcome: AttemptOutcome) {
        let request = self.in_flight.get(id);
        let caller = &mut self.callers[request.caller as usize];
        let now = caller.now(self.now);
        if self.polling.is_some() {
            caller.service.record_attempt(request.index, request.server, has_response(outcome), self.now);
        }
        let DiscoveredService { upstream, endpoint_stats, .. } = &caller.service;
        match outcome {
            AttemptOutcome::Responded => upstream.record_report(request.index, request.report, now),
            AttemptOutcome::Error | AttemptOutcome::Busy => {
                upstream.record_unrewarded_report(request.index, request.report, now)
            }
            _ => {}
        }
        let by_latency = self.registry.policy().balancing.policy == BalancingPolicy::PeakEwma;
        if by_latency && outcome == AttemptOutcome::Responded && !request.streaming {
            upstream.record_latency(request.index, self.now - request.began, now);
        }
        match request.streaming {
            true => endpoint_stats.finish_stream(request.index, classify(outcome), now),
            false => upstream.finish(request.index, classify(outcome), now),
        }
        if has_response(outcome) {
            self.count_answered(id);
            self.start_round_if_due(id);
        }
    }

    /// Handles the headers of a response while the stream continues.
    pub(super) fn begin_stream(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        let caller = &self.callers[request.caller as usize];
        request.streaming = caller.service.endpoint_stats.convert_to_stream(request.index);
        self.start_round_if_due(id);
    }

    /// Expires calls whose deadline has passed.
    pub(super) fn expire_deadlines(&mut self) {
        let (now, deadline) = (self.now, self.deadline);
        let expired = self.in_flight.find(|request| {
            !request.abandoned
                && !request.is_poll
                && !request.demand.stream
                && now.saturating_sub(request.began) > deadline
        });
        for id in expired {
            self.record_outcome(id, AttemptOutcome::TimedOut);
            let request = self.in_flight.get(id);
            request.abandoned = true;
            request.outcome = AttemptOutcome::TimedOut;
            let request = *request;
            self.metrics.record_completion(&request, now);
            self.end_call(id, CallEnd::Failed);
        }
        self.schedule(now + sweep_interval(deadline), EventKind::DeadlineSweep, 0);
    }

    /// Applies registry changes at a caller.
    pub(super) fn refresh_caller(&mut self, id: u32) {
        let caller = &mut self.callers[id as usize];
        let location = &self.caller_groups[caller.group as usize].location;
        caller.service.refresh(&self.registry, location, caller.client);
    }
}

/// Interval of deadline sweeps: a hundredth of the deadline detects expired calls soon enough, at little cost.
pub(super) fn sweep_interval(deadline: u64) -> u64 {
    (deadline / 100).max(1_000_000)
}

/// Whether there was a response, successful or not.
fn has_response(outcome: AttemptOutcome) -> bool {
    matches!(outcome, AttemptOutcome::Responded | AttemptOutcome::Error | AttemptOutcome::Busy)
}

/// Classifies an outcome as the client library does.
fn classify(outcome: AttemptOutcome) -> Outcome {
    match outcome {
        AttemptOutcome::Responded => Outcome::Ok,
        AttemptOutcome::Error | AttemptOutcome::Busy | AttemptOutcome::Broken | AttemptOutcome::TimedOut => {
            Outcome::Failed
        }
        AttemptOutcome::Unreachable => Outcome::Unreachable,
    }
}

impl From<FailureResponse> for AttemptOutcome {
    fn from(response: FailureResponse) -> Self {
        match response {
            FailureResponse::Busy => Self::Busy,
            FailureResponse::Broken => Self::Broken,
            FailureResponse::Error => Self::Error,
        }
    }
}
