//! Metrics of a simulation.

mod load_shares;
mod windows;

use fairmesh_balancer::load_poll::EstimateCounters;
use hdrhistogram::Histogram;

pub(crate) use load_shares::LoadShares;
pub use load_shares::{Recovery, WorstSecond};
pub use windows::Window;
pub(crate) use windows::Windows;

use crate::{
    in_flight::{AttemptOutcome, InFlightRequest},
    registry::Registry,
    scenario::Scenario,
    server::Server,
};

/// Outcomes of calls, excluding the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallOutcomes {
    /// Number of completed calls.
    pub calls: u64,
    /// Number of calls with an error response, such as 500.
    pub errors: u64,
    /// Number of calls with a 503 response.
    pub busy: u64,
    /// Number of calls whose connection broke.
    pub broken: u64,
    /// Number of calls that could not connect in any attempt.
    pub unreachable: u64,
    /// Number of calls whose deadline passed.
    pub timed_out: u64,
    /// Number of calls without an endpoint to pick.
    pub unroutable: u64,
    /// Number of calls dropped by a region table.
    pub dropped: u64,
}

impl CallOutcomes {
    /// Number of failed calls.
    pub fn failed(&self) -> u64 {
        self.errors
            + self.busy
            + self.broken
            + self.unreachable
            + self.timed_out
            + self.unroutable
            + self.dropped
    }
}

/// Sources of load estimates in polling rounds (ServiceRouter §3.4.3) and the polls sent, excluding the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EstimateCounts {
    /// Number of endpoints with a fresh report from a call.
    pub cached: u64,
    /// Number of endpoints with a fresh report from a poll, or polled now.
    pub polled: u64,
    /// Number of endpoints without a recent report, which are picked at random.
    pub random: u64,
    /// Number of polls sent.
    pub polls: u64,
}

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    measured_from: u64,
    first_event: u64,
    pub(crate) outcomes: CallOutcomes,
    /// Number of calls sent to endpoints of last resort.
    pub(crate) last_resort: u64,
    /// Counters of the sources of load estimates, during the warm-up and afterwards.
    estimates: [EstimateCounters; 2],
    polls: u64,
    /// Number of completed calls, including the warm-up.
    pub(crate) all_calls: u64,
    /// Latency of successful calls in microseconds, excluding streams, before and after the first event.
    pub(crate) latency_before: Histogram<u64>,
    pub(crate) latency_after: Histogram<u64>,
    pub(crate) shares: LoadShares,
    pub(crate) windows: Windows,
}

impl Metrics {
    pub(crate) fn new(scenario: &Scenario, servers: usize, groups: Vec<(String, Vec<u32>)>) -> Self {
        let measured_from = scenario.warmup.nanos();
        let first_event = scenario.events.iter().map(|event| event.at.nanos()).min().unwrap_or(u64::MAX);
        Self {
            measured_from,
            first_event,
            outcomes: CallOutcomes::default(),
            last_resort: 0,
            estimates: Default::default(),
            polls: 0,
            all_calls: 0,
            latency_before: latency_histogram(),
            latency_after: latency_histogram(),
            shares: LoadShares::new(servers, groups, first_event, scenario.network.propagation[1].nanos()),
            windows: Windows::new(scenario, servers),
        }
    }

    /// Counts an attempt that is sent to a server.
    #[inline]
    pub(crate) fn record_sent(&mut self, server: u32, last_resort: bool) {
        self.shares.record_sent(server);
        self.last_resort += u64::from(last_resort);
    }

    /// The counters of load-estimate sources that are in use at this time.
    pub(crate) fn estimates(&self, now: u64) -> &EstimateCounters {
        &self.estimates[usize::from(now >= self.measured_from)]
    }

    /// Counts a poll that is sent.
    pub(crate) fn record_poll(&mut self, now: u64) {
        self.polls += u64::from(now >= self.measured_from);
    }

    /// Sources of load estimates, and polls.
    pub(crate) fn estimate_counts(&self) -> EstimateCounts {
        let [cached, polled, random] = self.estimates[1].counts();
        EstimateCounts { cached, polled, random, polls: self.polls }
    }

    /// Counts a call without an endpoint.
    pub(crate) fn record_unroutable(&mut self, now: u64) {
        self.all_calls += 1;
        if now >= self.measured_from {
            self.outcomes.calls += 1;
            self.outcomes.unroutable += 1;
        }
    }

    /// Counts a call dropped by a region table.
    pub(crate) fn record_dropped(&mut self, now: u64) {
        self.all_calls += 1;
        if now >= self.measured_from {
            self.outcomes.calls += 1;
            self.outcomes.dropped += 1;
        }
    }

    /// Records a completed call.
    #[inline]
    pub(crate) fn record_completion(&mut self, request: &InFlightRequest, now: u64) {
        self.all_calls += 1;
        if now < self.measured_from {
            return;
        }
        self.outcomes.calls += 1;
        match request.outcome {
            AttemptOutcome::Responded if request.demand.stream => {}
            AttemptOutcome::Responded => {
                let latency = (now - request.began) / 1000;
                let early = request.began < self.first_event;
                let histogram = if early { &mut self.latency_before } else { &mut self.latency_after };
                histogram.saturating_record(latency);
            }
            AttemptOutcome::Error => self.outcomes.errors += 1,
            AttemptOutcome::Busy => self.outcomes.busy += 1,
            AttemptOutcome::Broken => self.outcomes.broken += 1,
            AttemptOutcome::Unreachable => self.outcomes.unreachable += 1,
            AttemptOutcome::TimedOut => self.outcomes.timed_out += 1,
        }
    }

    /// Watches whether a recovered server soon gets its share of calls again.
    pub(crate) fn watch_recovery(&mut self, server: u32, now: u64) {
        self.shares.watch(server, now);
    }

    /// Ends a second.
    pub(crate) fn second(&mut self, now: u64, servers: &mut [Server], registry: &Registry) {
        self.shares.second(now, servers, registry);
        self.windows.second(now, servers, registry);
    }
}

/// A histogram from one microsecond to one hour, with three significant digits.
pub(crate) fn latency_histogram() -> Histogram<u64> {
    // The bounds are in order and three digits are few enough, so this cannot fail.
    #[allow(clippy::unwrap_used, reason = "constant arguments that the documentation allows")]
    Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap()
}
