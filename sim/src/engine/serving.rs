//! The servers' side: let in, work, wait, answer.

use super::{Engine, What};
use crate::{
    chance::unit,
    flights::{Ending, Place},
    server::NEVER,
};

impl Engine {
    /// A try reaches its server.
    #[inline]
    pub(super) fn reach(&mut self, number: u32) {
        let flight = self.flights.get(number);
        if flight.asks {
            return self.reach_asking(number);
        }
        let server = &mut self.servers[flight.server as usize];
        if !server.up {
            return self.answer(number, Ending::Unreachable);
        }
        server.received += 1;
        if let Some(failing) = server.failing
            && (failing.share >= 1.0 || unit(&mut self.chance) < failing.share)
        {
            flight.place = Place::Server;
            flight.ending = failing.answer.into();
            server.calls += 1;
            return self.schedule_flight(self.now + failing.takes, What::Answer, number);
        }
        flight.place = Place::Server;
        server.calls += 1;
        match server.limit {
            None => self.work_on(number),
            Some(limit) if server.admitted < limit.concurrent => {
                server.admitted += 1;
                self.work_on(number);
            }
            Some(limit) if server.waiting.len() < limit.queue as usize => {
                server.waiting.push_back((self.now, number));
            }
            Some(_) => self.turn_away(number),
        }
    }

    /// Answers 503.
    fn turn_away(&mut self, number: u32) {
        let flight = self.flights.get(number);
        self.servers[flight.server as usize].calls -= 1;
        self.report(number);
        self.answer(number, Ending::Busy);
    }

    /// Begins to work on a request.
    #[inline]
    pub(super) fn work_on(&mut self, number: u32) {
        let flight = self.flights.get(number);
        flight.place = Place::Server;
        let place = flight.server;
        let server = &mut self.servers[place as usize];
        server.work_on(number, flight.need.cpu, self.now);
        self.expect_done(place);
    }

    /// Makes sure that an event comes when the server's next request is done. One that comes too early finds nothing to
    /// do and looks again, which is cheaper than to take it back whenever the server slows down.
    #[inline]
    pub(super) fn expect_done(&mut self, place: u32) {
        let server = &mut self.servers[place as usize];
        if let Some(at) = server.next_done()
            && at < server.due
        {
            server.due = at;
            self.schedule(at, What::Done, place);
        }
    }

    /// A server may have finished something.
    #[inline]
    pub(super) fn done(&mut self, place: u32) {
        let server = &mut self.servers[place as usize];
        if server.due != self.now {
            return;
        }
        server.due = NEVER;
        while let Some(number) = self.servers[place as usize].take_done(self.now) {
            let flight = self.flights.get(number);
            if flight.asks {
                self.report(number);
                self.answer(number, Ending::Answered);
                continue;
            }
            let server = &mut self.servers[place as usize];
            if flight.need.stream {
                server.calls -= 1;
                server.streams += 1;
                let caller = flight.caller;
                let way = self.way(caller, place);
                self.schedule_flight(self.now + way, What::Streams, number);
            }
            let flight = self.flights.get(number);
            match flight.need.wait {
                0 => self.leave(number),
                wait => self.schedule_flight(self.now + wait, What::Waited, number),
            }
        }
        self.expect_done(place);
    }

    /// A request is finished.
    #[inline]
    pub(super) fn leave(&mut self, number: u32) {
        let flight = self.flights.get(number);
        let place = flight.server;
        let server = &mut self.servers[place as usize];
        match flight.need.stream {
            true => server.streams -= 1,
            false => server.calls -= 1,
        }
        self.report(number);
        self.answer(number, Ending::Answered);
        if self.servers[place as usize].limit.is_some() {
            self.let_next_in(place);
        }
    }

    /// Gives a place that has become free to who waits longest.
    fn let_next_in(&mut self, place: u32) {
        let server = &mut self.servers[place as usize];
        server.admitted -= 1;
        let wait = server.limit.map_or(NEVER, |limit| limit.wait.nanos());
        while let Some((came, number)) = self.servers[place as usize].waiting.pop_front() {
            if self.now - came > wait {
                self.turn_away(number);
                continue;
            }
            self.servers[place as usize].admitted += 1;
            return self.work_on(number);
        }
    }

    /// A failing server answers.
    pub(super) fn answer_failing(&mut self, number: u32) {
        let flight = self.flights.get(number);
        let ending = flight.ending;
        self.servers[flight.server as usize].calls -= 1;
        self.report(number);
        self.answer(number, ending);
    }

    /// Puts the server's load into the answer.
    #[inline]
    fn report(&mut self, number: u32) {
        let flight = self.flights.get(number);
        flight.report = self.servers[flight.server as usize].report(self.now);
    }
}
