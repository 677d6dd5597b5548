//! Calls of an application: a request makes further calls, and responds when these have ended.

use fairmesh_model::arith::{Generator, hash_text, mix_pair};

use super::{Engine, EventKind, setup::INITIAL_CLOCK};
use crate::{
    application::{ApplicationRun, CallEnd, NO_CALLER, NewCall, Scenario, TreeCall},
    caller::{Caller, CallerGroup},
    in_flight::{AttemptOutcome, RequestStage},
    registry::DiscoveredService,
};

impl Engine {
    /// Adds the callers inside servers: one for each service that a server's service calls.
    pub(super) fn add_inner_callers(&mut self, run: &mut ApplicationRun, scenario: &Scenario) {
        let first = self.caller_groups.len() as u16;
        let silent = self.regions.iter().zip(0..).map(|(name, at)| CallerGroup::silent(name.clone(), at));
        self.caller_groups = self.caller_groups.iter().cloned().chain(silent).collect();
        let [from, to] = scenario.play.propagation.map(|time| time.nanos());
        let mut random = Generator::new(mix_pair(scenario.play.seed, hash_text("inner callers")));
        for server in 0..self.servers.len() as u32 {
            let group = first + self.servers[server as usize].region;
            let mut callers = vec![NO_CALLER; run.trees.services()];
            for called in run.trees.called_by(self.registry.service_of(server)) {
                let client = mix_pair(mix_pair(u64::from(server), scenario.play.seed), called.into());
                let location = &self.caller_groups[usize::from(group)].location;
                let service = DiscoveredService::subscribe(&self.registry, called, location, client);
                let mut caller = Caller::new(group, client, service, (client, 0));
                caller.clock_offset = INITIAL_CLOCK;
                caller.propagation_delay = from + random.below(to - from + 1);
                callers[usize::from(called)] = self.callers.len() as u32;
                self.callers.push(caller);
            }
            run.inner_callers.push(callers);
        }
    }

    /// Starts the first report interval.
    pub(super) fn begin_application(&mut self) {
        let Some(run) = &mut self.application else { return };
        run.counters.begin(&mut self.servers, 0);
        let at = run.every;
        self.schedule(at, EventKind::IntervalEnds, 0);
    }

    /// Starts a call tree for a client's call.
    pub(super) fn begin_tree(&mut self, id: u32) {
        let Some(run) = &mut self.application else { return };
        let request = self.in_flight.get(id);
        let caller = &mut self.callers[request.caller as usize];
        let edge = run.trees.client_edges[usize::from(caller.group)];
        run.begin(id, TreeCall::root(edge, caller.draw_tree_seed()));
        request.class = run.trees.operation_of(edge);
    }

    /// Records that a request has arrived at its server.
    pub(super) fn note_arrival(&mut self, id: u32) {
        if let Some(run) = &mut self.application {
            run.call(id).alone_since = self.now;
        }
    }

    /// Makes the next calls of a request; returns false if there are none.
    pub(super) fn begin_calls_of(&mut self, id: u32) -> bool {
        let Some(run) = &mut self.application else { return false };
        let calls = run.next_calls(id, self.now);
        if calls.is_empty() {
            self.count_served(id);
            return false;
        }
        calls.into_iter().for_each(|call| self.begin_inner_call(id, call));
        true
    }

    fn begin_inner_call(&mut self, parent: u32, call: NewCall) {
        let Some(run) = &mut self.application else { return };
        let (server, generation) = {
            let request = self.in_flight.get(parent);
            (request.server, request.generation)
        };
        let operation = run.trees.operation_of(call.edge);
        let called = run.trees.operations[usize::from(operation)].service;
        let caller = run.inner_callers[server as usize][usize::from(called)];
        let id = self.in_flight.add(caller, run.trees.demand(&call), self.now);
        self.in_flight.get(id).class = operation;
        run.begin(id, TreeCall::child(call, parent, generation));
        self.send(id);
    }

    /// Counts an attempt that is sent.
    pub(super) fn count_attempt(&mut self, id: u32) {
        let Some(run) = &mut self.application else { return };
        let request = self.in_flight.get(id);
        let is_first = request.attempts() == 1;
        let source = self.caller_groups[usize::from(self.callers[request.caller as usize].group)].region;
        let to = self.servers[request.server as usize].region;
        let edge = run.call(id).edge;
        run.counters.record_sent(edge, (source, to), is_first);
        run.measurements.record_bytes((source, to), run.trees.edges[edge as usize].request_bytes, self.now);
    }

    /// Counts a response that has arrived.
    pub(super) fn count_response(&mut self, id: u32) {
        let Some(run) = &mut self.application else { return };
        let request = self.in_flight.get(id);
        if matches!(request.outcome, AttemptOutcome::Unreachable | AttemptOutcome::Broken) {
            return;
        }
        let source = self.caller_groups[usize::from(self.callers[request.caller as usize].group)].region;
        let to = self.servers[request.server as usize].region;
        let edge = run.call(id).edge;
        run.counters.record_answered(edge, (source, to), self.now - request.began);
        let bytes = run.trees.edges[edge as usize].response_bytes;
        run.measurements.record_bytes((to, source), bytes, self.now);
    }

    /// Time that a call waits for a record missing in its pool's cache.
    pub(super) fn cache_wait(&mut self, id: u32) -> u64 {
        let Some(run) = &mut self.application else { return 0 };
        let request = self.in_flight.get(id);
        let source = self.caller_groups[usize::from(self.callers[request.caller as usize].group)].region;
        run.cache_wait(id, source, self.servers[request.server as usize].region)
    }

    fn count_served(&mut self, id: u32) {
        let Some(run) = &mut self.application else { return };
        let server = &mut self.servers[self.in_flight.get(id).server as usize];
        let cpu = server.report(self.now).cpu;
        let call = run.call(id);
        let (edge, exclusive) = (call.edge, call.exclusive + self.now - call.alone_since);
        let operation = run.trees.operation_of(edge);
        run.counters.record_served(operation, server.region, cpu, exclusive);
    }

    /// Ends a call, and continues the call that made it.
    pub(super) fn end_call(&mut self, id: u32, end: CallEnd) {
        let Some(run) = &mut self.application else { return };
        let request = *self.in_flight.get(id);
        let call = *run.call(id);
        if end == CallEnd::Dropped {
            let group = self.callers[request.caller as usize].group;
            run.counters.record_dropped(call.edge, self.caller_groups[usize::from(group)].region);
        }
        match call.parent() {
            None => run.measurements.record_call(call.edge, request.began, self.now, end),
            Some(parent) => self.continue_parent(parent, &call, end),
        }
    }

    fn continue_parent(&mut self, parent: u32, call: &TreeCall, end: CallEnd) {
        let Some(run) = &mut self.application else { return };
        let request = self.in_flight.get(parent);
        // The parent's server has crashed meanwhile.
        if request.generation != call.parent_generation || request.stage != RequestStage::Server {
            return;
        }
        let state = run.call(parent);
        state.has_failed |= end != CallEnd::Responded;
        if let (false, Some(next)) = (state.has_failed, call.next_of_chain()) {
            return self.begin_inner_call(parent, next);
        }
        state.pending -= 1;
        if state.pending > 0 {
            return;
        }
        state.alone_since = self.now;
        match state.has_failed {
            true => {
                self.count_served(parent);
                self.finish(parent, AttemptOutcome::Error);
            }
            false => self.complete(parent),
        }
    }

    /// Ends a report interval; the planner plans when the reports have arrived.
    pub(super) fn end_application_interval(&mut self) {
        let Some(run) = &mut self.application else { return };
        run.end_interval(&mut self.servers, &self.registry, self.now);
        let (arrival, next) = (self.now + run.report_delay, self.now + run.every);
        self.schedule(arrival, EventKind::PlanDue, 0);
        self.schedule(next, EventKind::IntervalEnds, 0);
    }

    /// Plans the services of an application, and publishes tables that changed.
    pub(super) fn plan_application(&mut self) {
        let Some(run) = &mut self.application else { return };
        let regions = self.one_way_delays.len();
        let services = 0..run.trees.services() as u16;
        let serving: Vec<_> = services.map(|service| self.registry.serving(service, regions)).collect();
        let changed = run.plan(&serving, self.now);
        if changed.is_empty() {
            return;
        }
        for id in 0..self.callers.len() {
            let caller = &self.callers[id];
            let region = self.caller_groups[usize::from(caller.group)].region;
            if changed.contains(&(caller.service.position(), region)) {
                let at = self.now + caller.propagation_delay;
                self.schedule(at, EventKind::TablesUpdate, id as u32);
            }
        }
    }

    /// The table that a caller of an application learns of.
    pub(super) fn application_table(&self, id: u32) -> Option<fairmesh_model::RegionTable> {
        let caller = &self.callers[id as usize];
        let region = self.caller_groups[usize::from(caller.group)].region;
        self.application.as_ref()?.table(caller.service.position(), region).cloned()
    }
}
