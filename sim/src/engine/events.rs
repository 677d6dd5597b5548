//! Scenario events: changes of servers and callers other than calls.

use fairmesh_model::EndpointState;
use fairmesh_router::LoadReport;

use super::{Engine, EventKind, StepAction};
use crate::{
    in_flight::{AttemptOutcome, RequestStage},
    sampling::exponential,
    scenario::Action,
    server::Failing,
};

impl Engine {
    /// Begins a step of a scenario event.
    pub(super) fn begin_step(&mut self, id: u32) {
        let step = self.steps[id as usize].clone();
        match step.action {
            StepAction::Apply(action) => self.begin(&action, &step.to),
            StepAction::Drain => self.list(&step.to, Some(EndpointState::Draining)),
            StepAction::Terminate => {
                self.list(&step.to, None);
                self.crash_servers(&step.to);
            }
            StepAction::Crash => self.crash_servers(&step.to),
            StepAction::Expire => {
                let crashed = step.to.into_iter().filter(|&server_id| !self.servers[server_id as usize].up);
                let crashed: Vec<u32> = crashed.collect();
                self.list(&crashed, Some(EndpointState::Lost));
            }
            StepAction::Ready { as_new_instances } => self.start_servers(&step.to, as_new_instances),
        }
    }

    fn begin(&mut self, action: &Action, to: &[u32]) {
        let now = self.now;
        for &server_id in to {
            match *action {
                Action::Fail { share, response, takes, .. } => {
                    let failing = Failing { share, response, delay: takes.nanos() };
                    self.servers[server_id as usize].failing = Some(failing);
                }
                Action::Speed { times, .. } => {
                    self.servers[server_id as usize].set_speed_factor(times, now);
                    self.schedule_completion(server_id);
                }
                Action::Cores { times, .. } => {
                    self.servers[server_id as usize].set_cores_factor(times, now);
                    self.schedule_completion(server_id);
                }
                Action::Delay { by, .. } => self.servers[server_id as usize].delay = by.nanos(),
                Action::Reports { are, .. } => {
                    self.servers[server_id as usize].set_report_fault(Some(are), now)
                }
                Action::Clock { by, back } => {
                    let by = by.nanos().cast_signed();
                    self.callers[server_id as usize].clock_offset += if back { -by } else { by };
                }
                _ => {}
            }
        }
        if let Action::Lost { .. } = action {
            self.list(to, Some(EndpointState::Lost));
        }
    }

    /// Ends a step of a scenario event.
    pub(super) fn end_step(&mut self, id: u32) {
        let step = self.steps[id as usize].clone();
        let StepAction::Apply(action) = step.action else { return };
        let now = self.now;
        for &server_id in &step.to {
            let server = &mut self.servers[server_id as usize];
            match action {
                Action::Fail { .. } => server.failing = None,
                Action::Speed { .. } => server.set_speed_factor(1.0, now),
                Action::Cores { .. } => server.set_cores_factor(1.0, now),
                Action::Delay { .. } => server.delay = 0,
                Action::Reports { .. } => server.set_report_fault(None, now),
                _ => {}
            }
            match action {
                Action::Speed { .. } | Action::Cores { .. } => self.schedule_completion(server_id),
                Action::Fail { .. } | Action::Lost { .. } => self.metrics.watch_recovery(server_id, now),
                _ => {}
            }
        }
        if let Action::Lost { .. } = action {
            self.list(&step.to, Some(EndpointState::Serving));
        }
    }

    /// Lists servers in this state in the registry, or removes them. Callers learn of it after their propagation
    /// delays.
    fn list(&mut self, servers: &[u32], state: Option<EndpointState>) {
        for &server_id in servers {
            self.registry.list(server_id, state);
        }
        self.registry.publish();
        self.plan_after_change();
        for id in 0..self.callers.len() {
            let at = self.now + self.callers[id].propagation_delay;
            self.schedule(at, EventKind::RegistryUpdate, id as u32);
        }
    }

    /// Ends processes; calls in flight to them see broken connections.
    fn crash_servers(&mut self, servers: &[u32]) {
        let is_affected = |server_id: u32| servers.binary_search(&server_id).is_ok();
        for id in self
            .in_flight
            .find(|request| request.stage == RequestStage::Server && is_affected(request.server))
        {
            let request = self.in_flight.get(id);
            request.generation = (request.generation + 1) & 0xff_ffff;
            request.report = LoadReport::default();
            self.respond(id, AttemptOutcome::Broken);
        }
        for &server_id in servers {
            self.servers[server_id as usize].crash(self.now);
        }
    }

    /// Makes processes ready.
    fn start_servers(&mut self, servers: &[u32], as_new_instances: bool) {
        for &server_id in servers {
            self.servers[server_id as usize].start(self.now);
            self.metrics.watch_recovery(server_id, self.now);
            if as_new_instances {
                self.registry.replace_instance(server_id);
            }
        }
        self.list(servers, Some(EndpointState::Serving));
    }

    /// Makes a machine's neighbours noisy or quiet.
    pub(super) fn change_neighbours(&mut self, server_id: u32) {
        let Some(neighbours) = self.neighbours[server_id as usize] else { return };
        let server = &mut self.servers[server_id as usize];
        let (share, mean) = match server.has_noisy_neighbours() {
            true => (1.0, neighbours.quiet),
            false => (1.0 - neighbours.share, neighbours.noisy),
        };
        server.set_neighbour_factor(share, self.now);
        // On a machine that became faster, the next request may complete before the scheduled event.
        self.schedule_completion(server_id);
        let duration = exponential(&mut self.random) * mean.nanos() as f64;
        self.schedule(self.now + duration as u64, EventKind::Neighbours, server_id);
    }
}
