//! Plays a scenario: takes one event after the other and does what it says.

mod build;
mod calls;
mod happenings;
mod polls;
mod serving;

use std::sync::Arc;

use fairmesh_model::Invalid;

use crate::{
    caller::{Caller, Kind},
    directory::Directory,
    flights::Flights,
    metrics::Metrics,
    queue::Queue,
    scenario::{Action, Scenario, Span},
    server::Server,
};

pub(crate) use build::build;

/// What an event says: the kind, and below it a number and, for flights, a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum What {
    /// A caller calls.
    Call,
    /// A flight reaches its server.
    Reach,
    /// A server has finished something, if its `due` is now.
    Done,
    /// A flight has waited for what it waited for.
    Waited,
    /// A failing server answers a flight.
    Answer,
    /// A flight's answer reaches its caller.
    Return,
    /// The head of an answer reaches its caller, and a stream goes on behind it.
    Streams,
    /// A caller hears of a change.
    Hear,
    /// A happening begins, or goes on.
    Happen,
    /// A happening ends.
    End,
    /// A server's neighbours grow loud or quiet.
    Neighbours,
    /// A second is over.
    Second,
    /// Time to look for deadlines that passed.
    Sweep,
}

const KINDS: [What; 13] = [
    What::Call,
    What::Reach,
    What::Done,
    What::Waited,
    What::Answer,
    What::Return,
    What::Streams,
    What::Hear,
    What::Happen,
    What::End,
    What::Neighbours,
    What::Second,
    What::Sweep,
];

/// A simulation under way.
#[derive(Debug)]
pub(crate) struct Engine {
    now: u64,
    end: u64,
    queue: Queue,
    flights: Flights,
    servers: Vec<Server>,
    kinds: Arc<[Kind]>,
    callers: Vec<Caller>,
    directory: Directory,
    /// One way, in nanoseconds, by the caller's region and the server's.
    ways: Vec<Vec<u64>>,
    /// Steps of happenings: what, to which, and when.
    steps: Vec<Step>,
    deadline: u64,
    attempts: usize,
    /// By what servers are asked for their load, where they are.
    polled: Option<fairmesh_model::Score>,
    neighbours: Vec<Option<crate::scenario::Neighbours>>,
    /// Draws what is nobody's: neighbours, failures.
    chance: fairmesh_model::arith::Generator,
    pub(crate) metrics: Metrics,
}

/// One step of a happening.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) action: Act,
    /// Servers, or callers.
    pub(crate) to: Vec<u32>,
}

/// What a step does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// As written, for what is done at once.
    Written(Action),
    /// The registry takes them out.
    Drain,
    /// The processes end as planned.
    Halt,
    /// The processes end by themselves.
    Die,
    /// The leases of those that died run out.
    Expire,
    /// The processes are ready for calls: as new instances, or as those that they were.
    Ready {
        /// Which of the two.
        renewed: bool,
    },
}

impl Engine {
    /// Plays to the end; `progress` hears after each simulated second how much is done.
    pub(crate) fn run(&mut self, mut progress: impl FnMut(Span)) {
        while let Some(event) = self.queue.pop() {
            if event.at > self.end {
                break;
            }
            self.now = event.at;
            let number = event.what as u32;
            let generation = (event.what >> 32) as u32 & 0xff_ffff;
            match KINDS[(event.what >> 56) as usize] {
                What::Call => self.call(number),
                What::Done => self.done(number),
                What::Second => {
                    self.second();
                    progress(Span::micros(self.now / 1000));
                }
                What::Hear => self.hear(number),
                What::Happen => self.happen(number),
                What::End => self.end_of(number),
                What::Neighbours => self.change_neighbours(number),
                What::Sweep => self.sweep(),
                what => {
                    if self.flights.get(number).generation == generation {
                        self.fly(what, number);
                    }
                }
            }
        }
        self.now = self.end;
    }

    /// Lets a flight go on.
    #[inline]
    fn fly(&mut self, what: What, number: u32) {
        match what {
            What::Reach => self.reach(number),
            What::Waited => self.leave(number),
            What::Answer => self.answer_failing(number),
            What::Streams => self.becomes_stream(number),
            _ => self.come_back(number),
        }
    }

    #[inline]
    fn schedule(&mut self, at: u64, what: What, number: u32) {
        self.queue.push(at, (what as u64) << 56 | u64::from(number));
    }

    #[inline]
    fn schedule_flight(&mut self, at: u64, what: What, number: u32) {
        let generation = u64::from(self.flights.get(number).generation);
        self.queue.push(at, (what as u64) << 56 | generation << 32 | u64::from(number));
    }

    /// One way between a caller and a server.
    #[inline]
    fn way(&self, caller: u32, server: u32) -> u64 {
        let kind = self.callers[caller as usize].kind;
        let from = self.kinds[kind as usize].region;
        self.ways[from as usize][self.servers[server as usize].region as usize]
    }

    /// Ends a second: figures, and the event for the next one.
    fn second(&mut self) {
        self.metrics.second(self.now, &mut self.servers, &self.directory);
        self.schedule(self.now + 1_000_000_000, What::Second, 0);
    }
}

/// Plays a scenario.
///
/// # Errors
/// When the scenario is not valid.
pub fn run(scenario: &Scenario, progress: impl FnMut(Span)) -> Result<crate::Outcome, Invalid> {
    let mut engine = build(scenario)?;
    engine.run(progress);
    Ok(crate::report::outcome(scenario, engine))
}
