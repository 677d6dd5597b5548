//! Runs a scenario by processing events in order of time.

mod application;
mod calls;
mod events;
mod polls;
mod servers;
mod setup;
mod traffic;

use std::sync::Arc;

use fairmesh_model::{Invalid, Region};

use crate::{
    application::ApplicationRun,
    caller::{Caller, CallerGroup},
    event_queue::EventQueue,
    in_flight::InFlightRequests,
    metrics::Metrics,
    registry::Registry,
    scenario::{Action, Scenario, SimTime},
    server::Server,
    traffic::Traffic,
};

pub(crate) use setup::{Placement, build, build_application};

/// Kind of an event. Its payload also holds a number and, for requests, a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum EventKind {
    /// A caller sends a call.
    Call,
    /// A request arrives at its server.
    RequestArrives,
    /// A server completes work, unless its `completion_at` has changed.
    WorkDone,
    /// A request's waiting time has elapsed.
    WaitElapsed,
    /// A failing server responds to a request.
    FailureDue,
    /// A response arrives at the caller.
    ResponseArrives,
    /// The headers of a response arrive at the caller, and the stream continues.
    StreamBegins,
    /// A caller learns of a registry change.
    RegistryUpdate,
    /// A step of a scenario event begins.
    StepBegins,
    /// A step of a scenario event ends.
    StepEnds,
    /// A server's neighbours become noisy or quiet.
    Neighbours,
    /// A second has passed.
    Second,
    /// Expires calls past their deadline.
    DeadlineSweep,
    /// A report interval of the regions ends.
    IntervalEnds,
    /// The planner plans.
    PlanDue,
    /// A caller learns of region tables.
    TablesUpdate,
}

const EVENT_KINDS: [EventKind; 16] = [
    EventKind::Call,
    EventKind::RequestArrives,
    EventKind::WorkDone,
    EventKind::WaitElapsed,
    EventKind::FailureDue,
    EventKind::ResponseArrives,
    EventKind::StreamBegins,
    EventKind::RegistryUpdate,
    EventKind::StepBegins,
    EventKind::StepEnds,
    EventKind::Neighbours,
    EventKind::Second,
    EventKind::DeadlineSweep,
    EventKind::IntervalEnds,
    EventKind::PlanDue,
    EventKind::TablesUpdate,
];

/// A running simulation.
#[derive(Debug)]
pub(crate) struct Engine {
    now: u64,
    end: u64,
    queue: EventQueue,
    in_flight: InFlightRequests,
    servers: Vec<Server>,
    caller_groups: Arc<[CallerGroup]>,
    callers: Vec<Caller>,
    registry: Registry,
    /// One-way delays in nanoseconds, by the caller's region and the server's region.
    one_way_delays: Vec<Vec<u64>>,
    /// Names of regions.
    regions: Vec<Region>,
    /// Steps of scenario events.
    steps: Vec<Step>,
    deadline: u64,
    attempts: usize,
    /// The polling constants, if polling is enabled.
    polling: Option<fairmesh_model::Score>,
    neighbours: Vec<Option<crate::scenario::Neighbours>>,
    /// Random source of neighbours' noise and failures, which belong to no caller.
    random: fairmesh_model::arith::Generator,
    /// Reports, planner and region tables, if the scenario has `traffic`.
    pub(crate) traffic: Option<Box<Traffic>>,
    /// Call trees, planner and tables, if the scenario is an application.
    pub(crate) application: Option<Box<ApplicationRun>>,
    pub(crate) metrics: Metrics,
}

/// One step of a scenario event.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) action: StepAction,
    /// Indices of the affected servers or callers.
    pub(crate) to: Vec<u32>,
}

/// The action of a step.
#[derive(Clone, Debug)]
pub(crate) enum StepAction {
    /// An action of the scenario, applied at once.
    Apply(Action),
    /// The registry marks the servers as draining.
    Drain,
    /// The processes end after a drain.
    Terminate,
    /// The processes crash.
    Crash,
    /// The leases of crashed processes expire.
    Expire,
    /// The processes become ready for calls.
    Ready {
        /// Whether the processes are new instances rather than the previous ones.
        as_new_instances: bool,
    },
}

impl Engine {
    /// Runs to the end. Calls `progress` with the simulated time every simulated second.
    pub(crate) fn run(&mut self, mut progress: impl FnMut(SimTime)) {
        while let Some(event) = self.queue.pop() {
            if event.at > self.end {
                break;
            }
            self.now = event.at;
            let id = event.payload as u32;
            let generation = (event.payload >> 32) as u32 & 0xff_ffff;
            match EVENT_KINDS[(event.payload >> 56) as usize] {
                EventKind::Call => self.call(id),
                EventKind::WorkDone => self.complete_work(id),
                EventKind::Second => {
                    self.second();
                    progress(SimTime::micros(self.now / 1000));
                }
                EventKind::RegistryUpdate => self.refresh_caller(id),
                EventKind::StepBegins => self.begin_step(id),
                EventKind::StepEnds => self.end_step(id),
                EventKind::Neighbours => self.change_neighbours(id),
                EventKind::DeadlineSweep => self.expire_deadlines(),
                EventKind::IntervalEnds => self.end_interval(),
                EventKind::PlanDue => self.plan_regions(id),
                EventKind::TablesUpdate => self.update_tables(id),
                kind => {
                    if self.in_flight.get(id).generation == generation {
                        self.handle_request_event(kind, id);
                    }
                }
            }
        }
        self.now = self.end;
    }

    /// Handles an event of a request.
    #[inline]
    fn handle_request_event(&mut self, kind: EventKind, id: u32) {
        match kind {
            EventKind::RequestArrives => self.request_arrives(id),
            EventKind::WaitElapsed => self.complete(id),
            EventKind::FailureDue => self.respond_with_failure(id),
            EventKind::StreamBegins => self.begin_stream(id),
            _ => self.receive_response(id),
        }
    }

    #[inline]
    fn schedule(&mut self, at: u64, kind: EventKind, id: u32) {
        self.queue.push(at, (kind as u64) << 56 | u64::from(id));
    }

    #[inline]
    fn schedule_request(&mut self, at: u64, kind: EventKind, id: u32) {
        let generation = u64::from(self.in_flight.get(id).generation);
        self.queue.push(at, (kind as u64) << 56 | generation << 32 | u64::from(id));
    }

    /// One-way delay between a caller and a server.
    #[inline]
    fn one_way_delay(&self, caller: u32, server: u32) -> u64 {
        let group = self.callers[caller as usize].group;
        let from = self.caller_groups[group as usize].region;
        self.one_way_delays[from as usize][self.servers[server as usize].region as usize]
    }

    /// Ends a second: updates metrics and schedules the next one.
    fn second(&mut self) {
        self.metrics.second(self.now, &mut self.servers, &self.registry);
        self.schedule(self.now + 1_000_000_000, EventKind::Second, 0);
    }
}

/// Runs a scenario.
///
/// # Errors
/// If the scenario is not valid.
pub fn run(scenario: &Scenario, progress: impl FnMut(SimTime)) -> Result<crate::SimulationResult, Invalid> {
    let mut engine = build(scenario)?;
    engine.run(progress);
    Ok(crate::report::summarize(scenario, engine))
}
