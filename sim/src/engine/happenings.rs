//! What happens to servers and callers beside calls.

use fairmesh_model::EndpointState;
use fairmesh_router::LoadReport;

use super::{Act, Engine, What};
use crate::{
    chance::exponential,
    flights::{Ending, Place},
    scenario::Action,
    server::Failing,
};

impl Engine {
    /// A step of a happening.
    pub(super) fn happen(&mut self, number: u32) {
        let step = self.steps[number as usize].clone();
        match step.action {
            Act::Written(action) => self.begin(&action, &step.to),
            Act::Drain => self.list(&step.to, Some(EndpointState::Draining)),
            Act::Halt => {
                self.list(&step.to, None);
                self.kill(&step.to);
            }
            Act::Die => self.kill(&step.to),
            Act::Expire => {
                let dead = step.to.into_iter().filter(|&place| !self.servers[place as usize].up);
                let dead: Vec<u32> = dead.collect();
                self.list(&dead, Some(EndpointState::Lost));
            }
            Act::Ready { renewed } => self.boot(&step.to, renewed),
        }
    }

    fn begin(&mut self, action: &Action, to: &[u32]) {
        let now = self.now;
        for &place in to {
            match *action {
                Action::Fail { share, answer, takes, .. } => {
                    let failing = Failing { share, answer, takes: takes.nanos() };
                    self.servers[place as usize].failing = Some(failing);
                }
                Action::Speed { times, .. } => {
                    self.servers[place as usize].tune_to(times, now);
                    self.expect_done(place);
                }
                Action::Reports { are, .. } => self.servers[place as usize].report_as(Some(are), now),
                Action::Clock { by, back } => {
                    let by = by.nanos().cast_signed();
                    self.callers[place as usize].clock += if back { -by } else { by };
                }
                _ => {}
            }
        }
        if let Action::Lost { .. } = action {
            self.list(to, Some(EndpointState::Lost));
        }
    }

    /// What a happening began is over.
    pub(super) fn end_of(&mut self, number: u32) {
        let step = self.steps[number as usize].clone();
        let Act::Written(action) = step.action else { return };
        let now = self.now;
        for &place in &step.to {
            let server = &mut self.servers[place as usize];
            match action {
                Action::Fail { .. } => server.failing = None,
                Action::Speed { .. } => server.tune_to(1.0, now),
                Action::Reports { .. } => server.report_as(None, now),
                _ => {}
            }
            match action {
                Action::Speed { .. } => self.expect_done(place),
                Action::Fail { .. } | Action::Lost { .. } => self.metrics.watch_recovery(place, now),
                _ => {}
            }
        }
        if let Action::Lost { .. } = action {
            self.list(&step.to, Some(EndpointState::Serving));
        }
    }

    /// The registry lists servers in this state, or no more, and callers hear of it one after the other.
    fn list(&mut self, servers: &[u32], state: Option<EndpointState>) {
        for &place in servers {
            self.directory.list(place, state);
        }
        self.directory.publish();
        for number in 0..self.callers.len() {
            let at = self.now + self.callers[number].hears_after;
            self.schedule(at, What::Hear, number as u32);
        }
    }

    /// Processes end; whoever waits for an answer finds the connection broken.
    fn kill(&mut self, servers: &[u32]) {
        let is_hit = |place: u32| servers.binary_search(&place).is_ok();
        for number in self.flights.find(|flight| flight.place == Place::Server && is_hit(flight.server)) {
            let flight = self.flights.get(number);
            flight.generation = (flight.generation + 1) & 0xff_ffff;
            flight.report = LoadReport::default();
            self.answer(number, Ending::Broken);
        }
        for &place in servers {
            self.servers[place as usize].die(self.now);
        }
    }

    /// Processes are ready.
    fn boot(&mut self, servers: &[u32], renewed: bool) {
        for &place in servers {
            self.servers[place as usize].start(self.now);
            self.metrics.watch_recovery(place, self.now);
            if renewed {
                self.directory.renew(place);
            }
        }
        self.list(servers, Some(EndpointState::Serving));
    }

    /// A machine's neighbours grow loud or quiet.
    pub(super) fn change_neighbours(&mut self, place: u32) {
        let Some(neighbours) = self.neighbours[place as usize] else { return };
        let server = &mut self.servers[place as usize];
        let (share, mean) = match server.is_slowed() {
            true => (1.0, neighbours.quiet),
            false => (1.0 - neighbours.share, neighbours.noisy),
        };
        server.slow_to(share, self.now);
        // After a machine has become faster, its next request may be done before the event that was to come.
        self.expect_done(place);
        let lasts = exponential(&mut self.chance) * mean.nanos() as f64;
        self.schedule(self.now + lasts as u64, What::Neighbours, place);
    }
}
