//! Runs the simulation of a tree: processes one event after the other.

mod connections;
mod delivery;
mod scenario_events;
mod setup;
mod summary;

use fairmesh_model::{Invalid, StoreId, arith::Generator};
use fairmesh_rib::Update;
use hdrhistogram::Histogram;

use super::{
    catalogue::{Catalogue, INITIAL_REVISION},
    meter::LayerMeter,
    process::{Process, ProcessId},
    report::Report,
    scenario::Scenario,
    write_workload::WriteWorkload,
};
use crate::{event_queue::EventQueue, scenario::SimTime};

/// Store id of the simulated control plane.
const STORE: StoreId = StoreId(1);
const ROOT: ProcessId = 0;
const SECOND: u64 = 1_000_000_000;

/// An event.
#[derive(Debug)]
enum Event {
    /// A batch is written.
    Write,
    /// A batch of a burst is written, with this many records left.
    Burst { left: u32, pause: u64 },
    /// A process serves the next of its watchers.
    Serve(ProcessId),
    /// The last byte of a message to a process has left the sender.
    Sent(ProcessId, u32),
    /// The message arrives.
    Arrive { to: ProcessId, generation: u32, update: Box<Update>, bytes: u64 },
    /// The process has applied the message.
    Apply { to: ProcessId, generation: u32, update: Box<Update> },
    /// A process acknowledges the revision that it has applied.
    SendAck(ProcessId),
    /// The acknowledgement arrives at the parent.
    ReceiveAck { from: ProcessId, generation: u32, number: u64 },
    /// A process tries to connect.
    Connect(ProcessId, u32),
    /// The process is connected.
    Connected(ProcessId, u32),
    /// A scenario event begins.
    Begin(usize),
    /// A scenario event ends.
    End(usize),
    /// A second has passed.
    Second,
}

/// Processes that lost their connection to a scenario event.
#[derive(Clone, Copy, Debug, Default)]
struct Disconnections {
    /// Processes of the tree that the event disconnected. Each simulated process counts for all that it represents.
    processes: u64,
    /// Simulated processes among them that have not recovered yet.
    missing: usize,
    ended: u64,
    back: Option<u64>,
    snapshots: u64,
    snapshot_bytes: u64,
}

/// A running simulation.
#[derive(Debug)]
struct Engine<'a> {
    scenario: &'a Scenario,
    catalogue: Catalogue,
    workload: WriteWorkload,
    now: u64,
    queue: EventQueue,
    /// Events by their number in the queue.
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    /// Number of queued events that are not periodic.
    pending: usize,
    processes: Vec<Process>,
    layers: Vec<LayerMeter>,
    /// Commit times of the revisions after the first.
    commits: Vec<u64>,
    refused: u64,
    /// The revision that the root knows to be applied everywhere, and the latency until it knew.
    acknowledged: u64,
    ack_latency: Histogram<u64>,
    disconnected_regions: Vec<bool>,
    disconnections: Vec<Disconnections>,
    first_event: u64,
    random: Generator,
}

/// Runs a scenario. Calls `on_time` with the simulated time every second.
///
/// # Errors
/// If the scenario is not valid.
pub fn run(scenario: &Scenario, mut on_time: impl FnMut(SimTime)) -> Result<Report, Invalid> {
    scenario.validate()?;
    let mut engine = setup::build(scenario)?;
    while let Some(event) = engine.queue.pop() {
        engine.now = event.at;
        let slot = event.payload as usize;
        engine.free.push(slot);
        let Some(event) = engine.events[slot].take() else { continue };
        if matches!(event, Event::Second) {
            on_time(SimTime::micros(engine.now / 1000));
        }
        engine.handle(event)?;
    }
    Ok(summary::report(engine))
}

impl Engine<'_> {
    fn handle(&mut self, event: Event) -> Result<(), Invalid> {
        if !event.is_periodic() {
            self.pending -= 1;
        }
        match event {
            Event::Write => self.write()?,
            Event::Burst { left, pause } => self.burst(left, pause)?,
            Event::Serve(parent) => self.serve(parent),
            Event::Sent(child, generation) => self.sent(child, generation),
            Event::Arrive { to, generation, update, bytes } => self.arrive(to, generation, update, bytes),
            Event::Apply { to, generation, update } => self.apply(to, generation, *update),
            Event::SendAck(id) => self.send_ack(id),
            Event::ReceiveAck { from, generation, number } => self.receive_ack(from, generation, number),
            Event::Connect(child, generation) => self.connect(child, generation),
            Event::Connected(child, generation) => self.connected(child, generation),
            Event::Begin(index) => self.begin_event(index),
            Event::End(index) => self.end_event(index),
            Event::Second => self.second(),
        }
        Ok(())
    }

    fn push(&mut self, at: u64, event: Event) {
        self.pending += usize::from(!event.is_periodic());
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot] = Some(event);
                slot
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.queue.push(at, slot as u64);
    }

    /// Repeats a periodic event as long as other events remain.
    fn repeat(&mut self, pause: u64, event: Event) {
        let settled = self.scenario.duration.nanos() + 3 * self.scenario.acknowledge.nanos().max(SECOND);
        if self.pending > 0 || self.now < settled {
            self.push(self.now + pause, event);
        }
    }

    fn write(&mut self) -> Result<(), Invalid> {
        if self.processes[ROOT].up {
            let commit = self.workload.batch(self.next_revision(), &self.catalogue)?;
            self.commit(commit);
        } else {
            self.refused += 1;
        }
        let next = self.now + self.workload.pause();
        if next < self.scenario.duration.nanos() {
            self.push(next, Event::Write);
        }
        Ok(())
    }

    fn burst(&mut self, left: u32, pause: u64) -> Result<(), Invalid> {
        if !self.processes[ROOT].up {
            self.refused += 1;
            return Ok(());
        }
        let (commit, written) = self.workload.burst(self.next_revision(), left, &self.catalogue)?;
        self.commit(commit);
        if left > written {
            self.push(self.now + pause, Event::Burst { left: left - written, pause });
        }
        Ok(())
    }

    fn next_revision(&self) -> u64 {
        INITIAL_REVISION + 1 + self.commits.len() as u64
    }

    fn commit(&mut self, commit: fairmesh_rib::Commit) {
        self.commits.push(self.now);
        let cost = commit.changes.len() as f64 * self.scenario.costs.record.nanos() as f64;
        let root = &mut self.processes[ROOT];
        root.work(self.now, cost);
        let woken = root.node.as_mut().map(|node| node.apply(commit));
        self.wake(ROOT, woken.unwrap_or_default());
    }

    /// Commit time of a revision; `None` for the initial one.
    fn committed(&self, revision: u64) -> Option<u64> {
        self.commits.get(revision.checked_sub(INITIAL_REVISION + 1)? as usize).copied()
    }

    /// Whether a commit at that time was before the first event; `None` during the warm-up.
    fn is_before_event(&self, committed: u64) -> Option<bool> {
        (committed >= self.scenario.warmup.nanos()).then_some(committed < self.first_event)
    }

    fn second(&mut self) {
        let measured = self.scenario.warmup.nanos()..self.scenario.duration.nanos();
        let counts = self.now > measured.start && self.now <= measured.end;
        self.processes.iter_mut().for_each(|process| process.meter.second(counts));
        self.layers.iter_mut().for_each(LayerMeter::second);
        self.repeat(SECOND, Event::Second);
    }
}

impl Event {
    fn is_periodic(&self) -> bool {
        matches!(self, Self::Second | Self::SendAck(_))
    }
}
