//! Plays a tree: takes one event after the other and does what it says.

mod build;
mod connect;
mod finish;
mod happen;
mod pass;

use fairmesh_model::{Invalid, StoreId, arith::Generator};
use fairmesh_rib::Update;
use hdrhistogram::Histogram;

use super::{
    catalogue::{Catalogue, FIRST},
    meter::LayerMeter,
    place::{Id, Place},
    report::Report,
    scenario::Scenario,
    writes::Writers,
};
use crate::{queue::Queue, scenario::Span};

/// Stands for the store of the simulated control plane.
const STORE: StoreId = StoreId(1);
const ROOT: Id = 0;
const SECOND: u64 = 1_000_000_000;

/// What an event says.
#[derive(Debug)]
enum What {
    /// A batch is written.
    Write,
    /// A batch of a burst, of which so many records are left.
    Burst { left: u32, pause: u64 },
    /// A process turns to the next of those who watch it.
    Serve(Id),
    /// The last byte of a message to a process has left.
    Sent(Id, u32),
    /// It arrives.
    Arrive { to: Id, generation: u32, update: Box<Update>, bytes: u64 },
    /// The process has taken it over.
    Apply { to: Id, generation: u32, update: Box<Update> },
    /// A process says what it has applied.
    Report(Id),
    /// Its parent hears of it.
    Acked { from: Id, generation: u32, number: u64 },
    /// A process tries to connect.
    Connect(Id, u32),
    /// It is connected.
    Joined(Id, u32),
    /// A happening begins.
    Happen(usize),
    /// It ends.
    End(usize),
    /// A second is over.
    Second,
}

/// Those who lost their connection to a happening.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    /// Processes of the tree, and played ones that are not back.
    processes: u64,
    missing: usize,
    ended: u64,
    back: Option<u64>,
    snapshots: u64,
    snapshot_bytes: u64,
}

/// A simulation under way.
#[derive(Debug)]
struct Engine<'a> {
    scenario: &'a Scenario,
    catalogue: Catalogue,
    writers: Writers,
    now: u64,
    queue: Queue,
    /// What the numbers in the queue stand for.
    events: Vec<Option<What>>,
    free: Vec<usize>,
    /// Events in the queue that do not come by themselves again and again.
    live: usize,
    places: Vec<Place>,
    layers: Vec<LayerMeter>,
    /// When the revisions after the first were committed.
    commits: Vec<u64>,
    refused: u64,
    /// Up to where the root knows that everybody has applied it, and how long that took.
    acknowledged: u64,
    acknowledging: Histogram<u64>,
    cut: Vec<bool>,
    lost: Vec<Lost>,
    first_event: u64,
    random: Generator,
}

/// Plays a scenario. `on_time` hears of the simulated time every second.
///
/// # Errors
/// What is wrong with the scenario.
pub fn run(scenario: &Scenario, mut on_time: impl FnMut(Span)) -> Result<Report, Invalid> {
    scenario.validate()?;
    let mut engine = build::build(scenario)?;
    while let Some(event) = engine.queue.pop() {
        engine.now = event.at;
        let slot = event.what as usize;
        engine.free.push(slot);
        let Some(what) = engine.events[slot].take() else { continue };
        if matches!(what, What::Second) {
            on_time(Span::micros(engine.now / 1000));
        }
        engine.does(what)?;
    }
    Ok(finish::report(engine))
}

impl Engine<'_> {
    fn does(&mut self, what: What) -> Result<(), Invalid> {
        if !what.is_periodic() {
            self.live -= 1;
        }
        match what {
            What::Write => self.write()?,
            What::Burst { left, pause } => self.burst(left, pause)?,
            What::Serve(parent) => self.serve(parent),
            What::Sent(child, generation) => self.sent(child, generation),
            What::Arrive { to, generation, update, bytes } => self.arrive(to, generation, update, bytes),
            What::Apply { to, generation, update } => self.apply(to, generation, *update),
            What::Report(id) => self.report(id),
            What::Acked { from, generation, number } => self.acked(from, generation, number),
            What::Connect(child, generation) => self.connect(child, generation),
            What::Joined(child, generation) => self.joined(child, generation),
            What::Happen(index) => self.happen(index),
            What::End(index) => self.end(index),
            What::Second => self.second(),
        }
        Ok(())
    }

    fn push(&mut self, at: u64, what: What) {
        self.live += usize::from(!what.is_periodic());
        let slot = match self.free.pop() {
            Some(slot) => {
                self.events[slot] = Some(what);
                slot
            }
            None => {
                self.events.push(Some(what));
                self.events.len() - 1
            }
        };
        self.queue.push(at, slot as u64);
    }

    /// Does it again later, as long as there is anything to come.
    fn again(&mut self, pause: u64, what: What) {
        let settled = self.scenario.duration.nanos() + 3 * self.scenario.acknowledge.nanos().max(SECOND);
        if self.live > 0 || self.now < settled {
            self.push(self.now + pause, what);
        }
    }

    fn write(&mut self) -> Result<(), Invalid> {
        if self.places[ROOT].up {
            let commit = self.writers.batch(self.next_revision(), &self.catalogue)?;
            self.commit(commit);
        } else {
            self.refused += 1;
        }
        let next = self.now + self.writers.pause();
        if next < self.scenario.duration.nanos() {
            self.push(next, What::Write);
        }
        Ok(())
    }

    fn burst(&mut self, left: u32, pause: u64) -> Result<(), Invalid> {
        if !self.places[ROOT].up {
            self.refused += 1;
            return Ok(());
        }
        let (commit, written) = self.writers.burst(self.next_revision(), left, &self.catalogue)?;
        self.commit(commit);
        if left > written {
            self.push(self.now + pause, What::Burst { left: left - written, pause });
        }
        Ok(())
    }

    fn next_revision(&self) -> u64 {
        FIRST + 1 + self.commits.len() as u64
    }

    fn commit(&mut self, commit: fairmesh_rib::Commit) {
        self.commits.push(self.now);
        let cost = commit.changes.len() as f64 * self.scenario.costs.record.nanos() as f64;
        let root = &mut self.places[ROOT];
        root.work(self.now, cost);
        let woken = root.node.as_mut().map(|node| node.apply(commit));
        self.wake(ROOT, woken.unwrap_or_default());
    }

    /// When a revision was committed; `None` for what was there at the start.
    fn committed(&self, revision: u64) -> Option<u64> {
        self.commits.get(revision.checked_sub(FIRST + 1)? as usize).copied()
    }

    /// Which figure a commit of that moment belongs to; `None` for the warm-up.
    fn is_calm(&self, committed: u64) -> Option<bool> {
        (committed >= self.scenario.warmup.nanos()).then_some(committed < self.first_event)
    }

    fn second(&mut self) {
        let measured = self.scenario.warmup.nanos()..self.scenario.duration.nanos();
        let counts = self.now > measured.start && self.now <= measured.end;
        self.places.iter_mut().for_each(|place| place.meter.second(counts));
        self.layers.iter_mut().for_each(LayerMeter::second);
        self.again(SECOND, What::Second);
    }
}

impl What {
    fn is_periodic(&self) -> bool {
        matches!(self, Self::Second | Self::Report(_))
    }
}
