//! What a simulation is judged by.

mod shares;
mod windows;

use fairmesh_balancer::poll::EstimateCounters;
use hdrhistogram::Histogram;

pub(crate) use shares::Shares;
pub use shares::{Recovery, Worst};
pub use windows::Window;
pub(crate) use windows::Windows;

use crate::{
    directory::Directory,
    flights::{Ending, Flight},
    scenario::Scenario,
    server::Server,
};

/// How calls ended, warm-up left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endings {
    /// Calls that ended.
    pub calls: u64,
    /// Answers that were an error of the server's own, such as 500.
    pub errors: u64,
    /// 503.
    pub busy: u64,
    /// Connections that broke.
    pub broken: u64,
    /// No connection, after all tries.
    pub unreachable: u64,
    /// Deadlines that passed.
    pub late: u64,
    /// Nowhere to go.
    pub unroutable: u64,
}

impl Endings {
    /// Calls that failed.
    pub fn failed(&self) -> u64 {
        self.errors + self.busy + self.broken + self.unreachable + self.late + self.unroutable
    }
}

/// What surveys of callers found, warm-up left out (ServiceRouter §3.4.3), and what they asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimated {
    /// Endpoints whose last answer to a call was fresh.
    pub cached: u64,
    /// Endpoints that were asked for their load a moment ago, or then.
    pub polled: u64,
    /// Endpoints of which nothing recent was known, so that chance had to do.
    pub random: u64,
    /// Questions sent.
    pub questions: u64,
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    measured_from: u64,
    first_event: u64,
    pub(crate) endings: Endings,
    /// Calls sent where nothing better than a last resort was left.
    pub(crate) last_resort: u64,
    /// Where estimates of load came from, while figures do not count yet, and afterwards.
    estimates: [EstimateCounters; 2],
    questions: u64,
    /// Calls that ended, warm-up included.
    pub(crate) all_calls: u64,
    /// Latency in microseconds of answered calls that are no streams, before and after the first event.
    pub(crate) before: Histogram<u64>,
    pub(crate) after: Histogram<u64>,
    pub(crate) shares: Shares,
    pub(crate) windows: Windows,
}

impl Metrics {
    pub(crate) fn new(scenario: &Scenario, servers: usize, groups: Vec<(String, Vec<u32>)>) -> Self {
        let measured_from = scenario.warmup.nanos();
        let first_event = scenario.events.iter().map(|event| event.at.nanos()).min().unwrap_or(u64::MAX);
        Self {
            measured_from,
            first_event,
            endings: Endings::default(),
            last_resort: 0,
            estimates: Default::default(),
            questions: 0,
            all_calls: 0,
            before: histogram(),
            after: histogram(),
            shares: Shares::new(servers, groups, first_event, scenario.network.propagation[1].nanos()),
            windows: Windows::new(scenario, servers),
        }
    }

    /// A try is sent to a server.
    #[inline]
    pub(crate) fn sent(&mut self, server: u32, last_resort: bool) {
        self.shares.sent(server);
        self.last_resort += u64::from(last_resort);
    }

    /// Counts where estimates of load come from.
    pub(crate) fn estimates(&self, now: u64) -> &EstimateCounters {
        &self.estimates[usize::from(now >= self.measured_from)]
    }

    /// A question is sent.
    pub(crate) fn asked(&mut self, now: u64) {
        self.questions += u64::from(now >= self.measured_from);
    }

    /// What surveys found and asked.
    pub(crate) fn estimated(&self) -> Estimated {
        let [cached, polled, random] = self.estimates[1].counts();
        Estimated { cached, polled, random, questions: self.questions }
    }

    /// A call has nowhere to go.
    pub(crate) fn unroutable(&mut self, now: u64) {
        self.all_calls += 1;
        if now >= self.measured_from {
            self.endings.calls += 1;
            self.endings.unroutable += 1;
        }
    }

    /// A call has ended.
    #[inline]
    pub(crate) fn ended(&mut self, flight: &Flight, now: u64) {
        self.all_calls += 1;
        if now < self.measured_from {
            return;
        }
        self.endings.calls += 1;
        match flight.ending {
            Ending::Answered if flight.need.stream => {}
            Ending::Answered => {
                let latency = (now - flight.began) / 1000;
                let early = flight.began < self.first_event;
                let histogram = if early { &mut self.before } else { &mut self.after };
                histogram.saturating_record(latency);
            }
            Ending::Error => self.endings.errors += 1,
            Ending::Busy => self.endings.busy += 1,
            Ending::Broken => self.endings.broken += 1,
            Ending::Unreachable => self.endings.unreachable += 1,
            Ending::Late => self.endings.late += 1,
        }
    }

    /// A server has come back and should soon have its share again.
    pub(crate) fn watch_recovery(&mut self, server: u32, now: u64) {
        self.shares.watch(server, now);
    }

    /// A second is over.
    pub(crate) fn second(&mut self, now: u64, servers: &mut [Server], directory: &Directory) {
        self.shares.second(now, servers, directory);
        self.windows.second(now, servers, directory);
    }
}

/// From a microsecond to an hour, to a thousandth.
fn histogram() -> Histogram<u64> {
    // The bounds are in order and three digits are few, which is all that it asks for.
    #[allow(clippy::unwrap_used, reason = "constant arguments that the documentation allows")]
    Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap()
}
