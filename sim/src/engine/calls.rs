//! The callers' side: decide, send, learn; each as the client library does it.

use fairmesh_model::BalancingPolicy;
use fairmesh_router::{Ask, Outcome, RequestView};

use super::{Engine, What};
use crate::{
    directory::Knowledge,
    flights::{Ending, Place},
    scenario::Answer,
};

impl Engine {
    /// A caller calls, and says when it will again.
    #[inline]
    pub(super) fn call(&mut self, number: u32) {
        let caller = &mut self.callers[number as usize];
        let kinds = std::sync::Arc::clone(&self.kinds);
        let kind = &kinds[caller.kind as usize];
        for _ in 0..self.callers[number as usize].burst(kind) {
            let need = self.callers[number as usize].need(kind);
            let flight = self.flights.add(number, need, self.now);
            self.send(flight);
        }
        if let Some(at) = self.callers[number as usize].next_call(kind, self.now) {
            self.schedule(at, What::Call, number);
        }
    }

    /// Decides where a try goes, and sends it.
    #[inline]
    pub(super) fn send(&mut self, number: u32) {
        let flight = self.flights.get(number);
        let caller = &mut self.callers[flight.caller as usize];
        let seed = caller.seeds.next();
        let now = caller.now(self.now);
        let upstream = &caller.known.upstream;
        let request = RequestView { host: "", path: "/", method: "POST", headers: &(), grpc: false };
        let _ = upstream.route(&request, seed);
        let ask = Ask { avoid: flight.tried(), ..Ask::default() };
        let Ok(picked) = upstream.pick(&ask, now, seed) else {
            self.metrics.unroutable(self.now);
            return self.flights.remove(number);
        };
        upstream.begin(picked.index);
        let server = caller.known.server(picked.index);
        flight.try_at(picked.index, server);
        flight.place = Place::Network;
        if self.polled.is_some() {
            flight.surveyed = caller.poll_limiter.claim_round(now).then_some(self.now);
        }
        let from = flight.caller;
        self.metrics.sent(server, picked.last_resort);
        let way = self.way(from, server);
        self.schedule_flight(self.now + way, What::Reach, number);
    }

    /// Sends an answer, or the news that there is none, to the caller.
    #[inline]
    pub(super) fn answer(&mut self, number: u32, ending: Ending) {
        let flight = self.flights.get(number);
        if flight.given_up {
            return self.flights.remove(number);
        }
        flight.ending = ending;
        flight.place = Place::Network;
        let (caller, server) = (flight.caller, flight.server);
        let way = self.way(caller, server);
        self.schedule_flight(self.now + way, What::Return, number);
    }

    /// An answer reaches its caller, which learns from it.
    #[inline]
    pub(super) fn come_back(&mut self, number: u32) {
        let flight = *self.flights.get(number);
        if flight.given_up {
            return self.flights.remove(number);
        }
        if flight.asks {
            return self.told(number);
        }
        self.learn(number, flight.ending);
        let repeated = flight.ending == Ending::Unreachable && flight.tries() < self.attempts;
        if repeated {
            return self.send(number);
        }
        self.metrics.ended(&flight, self.now);
        self.flights.remove(number);
    }

    /// Tells the upstream how a try ended.
    #[inline]
    fn learn(&mut self, number: u32, ending: Ending) {
        let flight = self.flights.get(number);
        let caller = &mut self.callers[flight.caller as usize];
        let now = caller.now(self.now);
        if self.polled.is_some() {
            caller.known.connected(flight.index, flight.server, has_answer(ending), self.now);
        }
        let Knowledge { upstream, endpoint_stats, .. } = &caller.known;
        match ending {
            Ending::Answered => upstream.report(flight.index, flight.report, now),
            Ending::Error | Ending::Busy => upstream.report_unearned(flight.index, flight.report, now),
            _ => {}
        }
        let by_latency = self.directory.policy().balancing.policy == BalancingPolicy::PeakEwma;
        if by_latency && ending == Ending::Answered && !flight.streaming {
            upstream.observe(flight.index, self.now - flight.began, now);
        }
        match flight.streaming {
            true => endpoint_stats.finish_stream(flight.index, outcome(ending), now),
            false => upstream.finish(flight.index, outcome(ending), now),
        }
        if has_answer(ending) {
            self.follow(number);
        }
    }

    /// The head of an answer is there, and the rest goes on for long.
    pub(super) fn becomes_stream(&mut self, number: u32) {
        let flight = self.flights.get(number);
        let caller = &self.callers[flight.caller as usize];
        flight.streaming = caller.known.endpoint_stats.convert_to_stream(flight.index);
        self.follow(number);
    }

    /// Gives up the calls whose deadline has passed.
    pub(super) fn sweep(&mut self) {
        let (now, deadline) = (self.now, self.deadline);
        let late = self.flights.find(|flight| {
            !flight.given_up
                && !flight.asks
                && !flight.need.stream
                && now.saturating_sub(flight.began) > deadline
        });
        for number in late {
            self.learn(number, Ending::Late);
            let flight = self.flights.get(number);
            flight.given_up = true;
            flight.ending = Ending::Late;
            let flight = *flight;
            self.metrics.ended(&flight, now);
        }
        self.schedule(now + sweep_every(deadline), What::Sweep, 0);
    }

    /// A caller hears of what has changed.
    pub(super) fn hear(&mut self, number: u32) {
        let caller = &mut self.callers[number as usize];
        let location = &self.kinds[caller.kind as usize].location;
        caller.known.refresh(&self.directory, location, caller.client);
    }
}

/// Looking a hundred times as often as calls may last finds late ones soon enough, and costs next to nothing.
pub(super) fn sweep_every(deadline: u64) -> u64 {
    (deadline / 100).max(1_000_000)
}

/// Whether there was an answer, good or bad.
fn has_answer(ending: Ending) -> bool {
    matches!(ending, Ending::Answered | Ending::Error | Ending::Busy)
}

/// As the client library judges endings.
fn outcome(ending: Ending) -> Outcome {
    match ending {
        Ending::Answered => Outcome::Ok,
        Ending::Error | Ending::Busy | Ending::Broken | Ending::Late => Outcome::Failed,
        Ending::Unreachable => Outcome::Unreachable,
    }
}

impl From<Answer> for Ending {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Busy => Self::Busy,
            Answer::Broken => Self::Broken,
            Answer::Error => Self::Error,
        }
    }
}
