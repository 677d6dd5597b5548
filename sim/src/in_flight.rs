//! Requests and polls in flight, in a slab that needs no allocation per request.

use fairmesh_router::LoadReport;

use crate::caller::Demand;

/// Maximum number of attempts that a call remembers.
const MAX_ATTEMPTS: usize = 4;

/// Location of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStage {
    /// The entry is free, so there is no request.
    Free,
    /// The request or its response is on the network.
    Network,
    /// The request is at its server.
    Server,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// A successful response.
    Responded,
    /// An error response, such as 500.
    Error,
    /// The server responded with 503.
    Busy,
    /// The connection broke.
    Broken,
    /// No connection could be established.
    Unreachable,
    /// The deadline passed.
    TimedOut,
}

/// A call with its current attempt, or a poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightRequest {
    /// Start time of the call.
    pub(crate) began: u64,
    pub(crate) demand: Demand,
    pub(crate) caller: u32,
    /// The traffic class of the call.
    pub(crate) class: u16,
    pub(crate) server: u32,
    /// The endpoint's index at its caller.
    pub(crate) index: u32,
    /// Incremented at each reuse and each loss, so that events of an earlier use are recognised as stale.
    pub(crate) generation: u32,
    /// The load report in the response.
    pub(crate) report: LoadReport,
    pub(crate) stage: RequestStage,
    pub(crate) outcome: AttemptOutcome,
    /// Whether the caller counts the call as a stream.
    pub(crate) streaming: bool,
    /// Whether the caller has given up.
    pub(crate) abandoned: bool,
    /// Whether this is a poll for the server's load rather than a call.
    pub(crate) is_poll: bool,
    /// Start time of the current attempt, if the attempt is to start a polling round.
    pub(crate) round_from: Option<u64>,
    attempts: u8,
    attempted: [u32; MAX_ATTEMPTS],
}

impl InFlightRequest {
    /// Records the endpoint of the current attempt.
    #[inline]
    pub(crate) fn begin_attempt(&mut self, index: u32, server: u32) {
        if let Some(entry) = self.attempted.get_mut(self.attempts as usize) {
            *entry = index;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.index = index;
        self.server = server;
    }

    /// Endpoints of the attempts so far.
    #[inline]
    pub(crate) fn attempted(&self) -> &[u32] {
        &self.attempted[..self.attempts()]
    }

    /// Number of attempts, at most the number remembered.
    pub(crate) fn attempts(&self) -> usize {
        (self.attempts as usize).min(MAX_ATTEMPTS)
    }
}

/// All requests in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightRequests {
    all: Vec<InFlightRequest>,
    free: Vec<u32>,
}

impl InFlightRequests {
    /// Adds a call.
    #[inline]
    pub(crate) fn add(&mut self, caller: u32, demand: Demand, now: u64) -> u32 {
        let request = InFlightRequest {
            began: now,
            demand,
            caller,
            class: 0,
            server: 0,
            index: 0,
            generation: 0,
            report: LoadReport::default(),
            stage: RequestStage::Network,
            outcome: AttemptOutcome::Responded,
            streaming: false,
            abandoned: false,
            is_poll: false,
            round_from: None,
            attempts: 0,
            attempted: [0; MAX_ATTEMPTS],
        };
        match self.free.pop() {
            Some(number) => {
                let entry = &mut self.all[number as usize];
                *entry = InFlightRequest { generation: entry.generation, ..request };
                number
            }
            None => {
                self.all.push(request);
                self.all.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> &mut InFlightRequest {
        &mut self.all[number as usize]
    }

    /// Removes a call.
    #[inline]
    pub(crate) fn remove(&mut self, number: u32) {
        let request = &mut self.all[number as usize];
        request.stage = RequestStage::Free;
        request.generation = request.generation.wrapping_add(1) & 0xff_ffff;
        self.free.push(number);
    }

    /// The matching requests, by number.
    pub(crate) fn find(&self, matches: impl Fn(&InFlightRequest) -> bool) -> Vec<u32> {
        let all = (0..).zip(&self.all);
        all.filter(|(_, request)| request.stage != RequestStage::Free && matches(request))
            .map(|(n, _)| n)
            .collect()
    }
}
