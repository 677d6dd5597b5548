//! Questions for load: who is asked, and when, is decided by the code of production.

use std::sync::Arc;

use fairmesh_balancer::poll::{AFTER_NONSENSE, AFTER_SILENCE, Askable, Estimate, PATIENCE, Survey};
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
        let round_trip = known.lane(index).map_or(0, |lane| lane.asked().round_trip(now));
        let work = caller.pace.worked((self.now - began).saturating_sub(round_trip));
        let Knowledge { upstream, slots, .. } = known;
        let estimates = self.metrics.estimates(self.now);
        let survey = Survey { pace: &caller.pace, slots, score, estimates, work, now };
        let open = |index| known.lane(index).filter(|lane| lane.is_open(self.now));
        for (index, claim) in survey.look(upstream.nearest(), open) {
            let question = self.flights.add(from, Need { cpu: COST, wait: 0, stream: false }, self.now);
            let known = &mut self.callers[from as usize].known;
            let server = known.server(index);
            if let Some(lane) = known.lane_mut(index) {
                lane.asks(question, claim);
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
        let Some(claim) = lane.asked_by(number) else { return };
        if flight.ending != Ending::Answered {
            lane.close();
            return claim.end(now + AFTER_SILENCE);
        }
        if took > PATIENCE {
            return claim.end((now + PATIENCE + AFTER_SILENCE).saturating_sub(took));
        }
        let asked = Arc::clone(lane.asked());
        asked.took(took, now);
        if flight.report == LoadReport::default() {
            return claim.end(now + AFTER_NONSENSE);
        }
        claim.end(now);
        asked.told(&known.slots, flight.index, flight.report, now);
    }
}
