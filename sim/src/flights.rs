//! Requests and questions under way: a slab, so that none of them costs an allocation.

use fairmesh_router::LoadReport;

use crate::caller::Need;

/// Tries that one call remembers.
const MOST_TRIES: usize = 4;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: this entry is free.
    Nowhere,
    /// On the way there or back.
    Network,
    /// At the server.
    Server,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an answer.
    Answered,
    /// With an answer that is an error, such as 500.
    Error,
    /// With 503.
    Busy,
    /// The connection broke.
    Broken,
    /// There was no connection.
    Unreachable,
    /// The deadline passed.
    Late,
}

/// One call and its present try, or one question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// When the call began.
    pub(crate) began: u64,
    pub(crate) need: Need,
    pub(crate) caller: u32,
    pub(crate) server: u32,
    /// The endpoint's index at its caller.
    pub(crate) index: u32,
    /// Grows with each use and each loss, so that events about what was here before are known to be stale.
    pub(crate) generation: u32,
    /// What the answer reports.
    pub(crate) report: LoadReport,
    pub(crate) place: Place,
    pub(crate) ending: Ending,
    /// Whether the caller counts it as a stream.
    pub(crate) streaming: bool,
    /// Whether the caller waits no more.
    pub(crate) given_up: bool,
    /// Whether it is no call but a question for the server's load.
    pub(crate) asks: bool,
    /// When the present try began, where it is to be followed by a survey.
    pub(crate) surveyed: Option<u64>,
    tries: u8,
    tried: [u32; MOST_TRIES],
}

impl Flight {
    /// Remembers the endpoint of the present try.
    #[inline]
    pub(crate) fn try_at(&mut self, index: u32, server: u32) {
        if let Some(place) = self.tried.get_mut(self.tries as usize) {
            *place = index;
        }
        self.tries = self.tries.saturating_add(1);
        self.index = index;
        self.server = server;
    }

    /// Endpoints tried so far.
    #[inline]
    pub(crate) fn tried(&self) -> &[u32] {
        &self.tried[..self.tries()]
    }

    /// How many tries there were, as far as it remembers.
    pub(crate) fn tries(&self) -> usize {
        (self.tries as usize).min(MOST_TRIES)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    all: Vec<Flight>,
    free: Vec<u32>,
}

impl Flights {
    /// Adds a call.
    #[inline]
    pub(crate) fn add(&mut self, caller: u32, need: Need, now: u64) -> u32 {
        let flight = Flight {
            began: now,
            need,
            caller,
            server: 0,
            index: 0,
            generation: 0,
            report: LoadReport::default(),
            place: Place::Network,
            ending: Ending::Answered,
            streaming: false,
            given_up: false,
            asks: false,
            surveyed: None,
            tries: 0,
            tried: [0; MOST_TRIES],
        };
        match self.free.pop() {
            Some(number) => {
                let place = &mut self.all[number as usize];
                *place = Flight { generation: place.generation, ..flight };
                number
            }
            None => {
                self.all.push(flight);
                self.all.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> &mut Flight {
        &mut self.all[number as usize]
    }

    /// Ends a call.
    #[inline]
    pub(crate) fn remove(&mut self, number: u32) {
        let flight = &mut self.all[number as usize];
        flight.place = Place::Nowhere;
        flight.generation = flight.generation.wrapping_add(1) & 0xff_ffff;
        self.free.push(number);
    }

    /// Those that match, by number.
    pub(crate) fn find(&self, wanted: impl Fn(&Flight) -> bool) -> Vec<u32> {
        let all = (0..).zip(&self.all);
        all.filter(|(_, flight)| flight.place != Place::Nowhere && wanted(flight)).map(|(n, _)| n).collect()
    }
}
