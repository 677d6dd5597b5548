//! Servers: admit, work, wait, respond.

use super::{Engine, EventKind};
use crate::{
    in_flight::{AttemptOutcome, RequestStage},
    sampling::unit,
    scenario::Limit,
    server::NEVER,
};

impl Engine {
    /// Handles a request at its server.
    #[inline]
    pub(super) fn request_arrives(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        if request.is_poll {
            return self.poll_arrives(id);
        }
        let server_id = request.server;
        let server = &mut self.servers[server_id as usize];
        if !server.up {
            return self.respond(id, AttemptOutcome::Unreachable);
        }
        server.received += 1;
        if let Some(failing) = server.failing
            && (failing.share >= 1.0 || unit(&mut self.random) < failing.share)
        {
            request.stage = RequestStage::Server;
            request.outcome = failing.response.into();
            server.calls += 1;
            return self.schedule_request(self.now + failing.delay, EventKind::FailureDue, id);
        }
        request.stage = RequestStage::Server;
        server.calls += 1;
        self.note_arrival(id);
        match self.servers[server_id as usize].limit {
            None => self.start_work(id),
            Some(limit) => self.admit(id, limit),
        }
    }

    /// Starts work on a request, queues it for a slot, or rejects it.
    fn admit(&mut self, id: u32, limit: Limit) {
        let server = &mut self.servers[self.in_flight.get(id).server as usize];
        if server.admitted < limit.concurrent {
            server.admitted += 1;
            self.start_work(id);
        } else if server.queue.len() < limit.queue as usize {
            server.queue.push_back((self.now, id));
        } else {
            self.reject(id);
        }
    }

    /// Responds with 503.
    fn reject(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        self.servers[request.server as usize].calls -= 1;
        self.attach_report(id);
        self.respond(id, AttemptOutcome::Busy);
    }

    /// Starts work on a request.
    #[inline]
    pub(super) fn start_work(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        request.stage = RequestStage::Server;
        let server_id = request.server;
        let server = &mut self.servers[server_id as usize];
        server.start_work(id, request.demand.cpu, self.now);
        self.schedule_completion(server_id);
    }

    /// Schedules an event for the server's next completion. If the event comes too early, it finds nothing to do and is
    /// scheduled again, which is cheaper than cancelling it whenever the server slows down.
    #[inline]
    pub(super) fn schedule_completion(&mut self, server_id: u32) {
        let server = &mut self.servers[server_id as usize];
        if let Some(at) = server.next_completion()
            && at < server.completion_at
        {
            server.completion_at = at;
            self.schedule(at, EventKind::WorkDone, server_id);
        }
    }

    /// Completes finished work of a server, if any.
    #[inline]
    pub(super) fn complete_work(&mut self, server_id: u32) {
        let server = &mut self.servers[server_id as usize];
        if server.completion_at != self.now {
            return;
        }
        server.completion_at = NEVER;
        while let Some(id) = self.servers[server_id as usize].pop_completed(self.now) {
            let request = self.in_flight.get(id);
            if request.is_poll {
                self.attach_report(id);
                self.respond(id, AttemptOutcome::Responded);
                continue;
            }
            let server = &mut self.servers[server_id as usize];
            if request.demand.stream {
                server.calls -= 1;
                server.streams += 1;
                let caller = request.caller;
                let delay = self.one_way_delay(caller, server_id);
                self.schedule_request(self.now + delay, EventKind::StreamBegins, id);
            }
            let request = self.in_flight.get(id);
            let wait = request.demand.wait + self.servers[server_id as usize].delay;
            match wait + self.cache_wait(id) {
                0 => self.complete(id),
                wait => self.schedule_request(self.now + wait, EventKind::WaitElapsed, id),
            }
        }
        self.schedule_completion(server_id);
    }

    /// Continues a request whose work and wait are over: it makes its calls, or is complete.
    #[inline]
    pub(super) fn complete(&mut self, id: u32) {
        if !self.begin_calls_of(id) {
            self.finish(id, AttemptOutcome::Responded);
        }
    }

    /// Removes a request from its server.
    pub(super) fn finish(&mut self, id: u32, outcome: AttemptOutcome) {
        let request = self.in_flight.get(id);
        let server_id = request.server;
        let server = &mut self.servers[server_id as usize];
        match request.demand.stream {
            true => server.streams -= 1,
            false => server.calls -= 1,
        }
        self.attach_report(id);
        self.respond(id, outcome);
        if self.servers[server_id as usize].limit.is_some() {
            self.admit_next(server_id);
        }
    }

    /// Admits the request that has waited longest.
    fn admit_next(&mut self, server_id: u32) {
        let server = &mut self.servers[server_id as usize];
        server.admitted -= 1;
        let wait = server.limit.map_or(NEVER, |limit| limit.wait.nanos());
        while let Some((arrived_at, id)) = self.servers[server_id as usize].queue.pop_front() {
            if self.now - arrived_at > wait {
                self.reject(id);
                continue;
            }
            self.servers[server_id as usize].admitted += 1;
            return self.start_work(id);
        }
    }

    /// Sends the response of a failing server.
    pub(super) fn respond_with_failure(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        let outcome = request.outcome;
        self.servers[request.server as usize].calls -= 1;
        self.attach_report(id);
        self.respond(id, outcome);
    }

    /// Attaches the server's load report to the response.
    #[inline]
    fn attach_report(&mut self, id: u32) {
        let request = self.in_flight.get(id);
        request.report = self.servers[request.server as usize].report(self.now);
    }
}
