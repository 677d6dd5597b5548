//! Questions for load: who is asked, and when, is decided by the code of production.

use std::sync::Arc;

use fairmesh_balancer::poll::{
    Estimate, NO_RESPONSE_BACKOFF, POLL_TIMEOUT, PollRound, PollTarget, UNSUPPORTED_BACKOFF,
};
use fairmesh_router::LoadReport;

use super::{Engine, What};
use crate::{caller::Need, directory::Knowledge, flights::Ending};

/// What a question costs a server, in nanoseconds of an ordinary core: a call that does nothing costs the server layer about 8 µs.
const COST: f64 = 10_000.0;

impl Engine {
    /// What an answered try is followed by, where it is one of those that a survey follows.
    #[inline]
    pub(super) fn follow(&mut self, number: u32) {
        if let Some(began) = self.flights.get(number).surveyed.take() {
            self.survey(number, began);
        }
    }

    /// Looks at the endpoints of a caller, one of whose tries began then and has its answer.
    fn survey(&mut self, number: u32, began: u64) {
        let Some(score) = self.polled else { return };
        let flight = self.flights.get(number);
        let (from, index) = (flight.caller, flight.index);
        let caller = &self.callers[from as usize];
        let (known, now) = (&caller.known, caller.now(self.now));
        let round_trip = known.lane(index).map_or(0, |lane| lane.poll_state().round_trip(now));
        let service_time =
            caller.poll_limiter.record_service_time((self.now - began).saturating_sub(round_trip));
        let Knowledge { upstream, endpoint_stats, .. } = known;
        let estimates = self.metrics.estimates(self.now);
        let round = PollRound {
            limiter: &caller.poll_limiter,
            stats: endpoint_stats,
            score,
            estimates,
            service_time,
            now,
        };
        let open = |index| known.lane(index).filter(|lane| lane.is_open(self.now));
        for (index, guard) in round.select_targets(upstream.nearest(), open) {
            let question = self.flights.add(from, Need { cpu: COST, wait: 0, stream: false }, self.now);
            let known = &mut self.callers[from as usize].known;
            let server = known.server(index);
            if let Some(lane) = known.lane_mut(index) {
                lane.asks(question, guard);
            }
            let flight = self.flights.get(question);
            flight.asks = true;
            flight.try_at(index, server);
            self.metrics.estimates(self.now).count(Estimate::Poll);
            self.metrics.asked(self.now);
            let way = self.way(from, server);
            self.schedule_flight(self.now + way, What::Reach, question);
        }
    }

    /// A question reaches its server, whose limits and failures are those of the service behind the server layer.
    pub(super) fn reach_asking(&mut self, number: u32) {
        let flight = self.flights.get(number);
        if self.servers[flight.server as usize].up {
            self.work_on(number);
        } else {
            self.answer(number, Ending::Unreachable);
        }
    }

    /// A question is over.
    pub(super) fn told(&mut self, number: u32) {
        let flight = *self.flights.get(number);
        self.flights.remove(number);
        let caller = &mut self.callers[flight.caller as usize];
        let (now, took) = (caller.now(self.now), self.now - flight.began);
        let known = &mut caller.known;
        let Some(lane) = known.lane_mut(flight.index) else { return };
        let Some(guard) = lane.asked_by(number) else { return };
        if flight.ending != Ending::Answered {
            lane.close();
            return guard.finish(now + NO_RESPONSE_BACKOFF);
        }
        if took > POLL_TIMEOUT {
            return guard.finish((now + POLL_TIMEOUT + NO_RESPONSE_BACKOFF).saturating_sub(took));
        }
        let poll_state = Arc::clone(lane.poll_state());
        poll_state.record_round_trip(took, now);
        if flight.report == LoadReport::default() {
            return guard.finish(now + UNSUPPORTED_BACKOFF);
        }
        guard.finish(now);
        poll_state.record_report(&known.endpoint_stats, flight.index, flight.report, now);
    }
}
