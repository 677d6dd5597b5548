//! Statistics of calls: counts, latencies, regions, and the event during which a call began.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;

/// The event that is in progress when a call starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no event.
    Calm,
    /// A server stops as planned.
    Drain,
    /// A server crashes.
    Kill,
    /// A shard moves to another server.
    ShardMove,
    /// The control plane is down.
    ControlOutage,
    /// An agent is down.
    AgentRestart,
    /// The authority's key is replaced.
    CaRotation,
    /// A region is drained.
    RegionDrain,
}

impl Phase {
    /// The phases that are events, in the order of the report.
    pub(super) const EVENTS: [Self; 7] = [
        Self::Drain,
        Self::Kill,
        Self::ShardMove,
        Self::ControlOutage,
        Self::AgentRestart,
        Self::CaRotation,
        Self::RegionDrain,
    ];
    const COUNT: usize = 8;

    /// Name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Drain => "drain",
            Self::Kill => "kill",
            Self::ShardMove => "shard_move",
            Self::ControlOutage => "control_outage",
            Self::AgentRestart => "agent_restart",
            Self::CaRotation => "ca_rotation",
            Self::RegionDrain => "region_drain",
        }
    }
}

/// One completed call.
#[derive(Debug)]
pub(super) struct CallRecord {
    /// Kind of the call.
    pub call: &'static str,
    /// Phase in which the call started.
    pub phase: Phase,
    /// Region of the caller.
    pub from: &'static str,
    /// Latency from the scheduled start, so that a stall of the load generator shows.
    pub took: Duration,
    /// Region of the server that responded, or the failure.
    pub result: Result<String, Failure>,
}

/// A failed call.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Reason given by the library.
    pub why: String,
    /// Whether the call was in flight to a server that died, and may not be retried.
    pub in_flight: bool,
}

/// Calls and failures of one phase.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// Number of calls that started in the phase, or were in flight when it started.
    pub calls: u64,
    /// Number of failed calls.
    pub failed: u64,
    /// Number of failed calls that were in flight to a server that died.
    pub in_flight: u64,
}

/// Statistics of one kind of call.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Number of calls.
    pub calls: u64,
    /// Number of failures.
    pub failed: u64,
    /// Latency of successful calls, in microseconds.
    pub latency: Histogram<u64>,
    /// Number of responses by (caller's region, server's region).
    pub regions: BTreeMap<(String, String), u64>,
}

/// Collects calls from many tasks. One lock suffices for a few thousand calls per second.
#[derive(Debug)]
pub(super) struct CallStats {
    phase: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    phases: [Count; Phase::COUNT],
    rows: BTreeMap<&'static str, Row>,
    failures: BTreeMap<(&'static str, &'static str, String), u64>,
}

impl CallStats {
    /// Empty statistics.
    pub(super) fn new() -> Self {
        Self { phase: AtomicUsize::new(0), inner: Mutex::default() }
    }

    /// Enters a phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as usize, Ordering::Relaxed);
    }

    /// The current phase.
    pub(super) fn now(&self) -> Phase {
        let now = self.phase.load(Ordering::Relaxed);
        Phase::EVENTS.into_iter().find(|phase| *phase as usize == now).unwrap_or(Phase::Calm)
    }

    /// Adds a completed call.
    pub(super) fn add(&self, seen: CallRecord) {
        // Calls in flight when an event begins are affected by it.
        let phase = if seen.phase == Phase::Calm { self.now() } else { seen.phase };
        let mut inner = self.lock();
        let failed = u64::from(seen.result.is_err());
        let count = &mut inner.phases[phase as usize];
        count.calls += 1;
        count.failed += failed;
        if let Err(failure) = &seen.result {
            count.in_flight += u64::from(failure.in_flight);
            // The library's reasons are a bounded set of labels, so this map is bounded too.
            *inner.failures.entry((phase.name(), seen.call, failure.why.clone())).or_default() += 1;
        }
        let row = inner.rows.entry(seen.call).or_insert_with(Row::new);
        row.calls += 1;
        row.failed += failed;
        if let Ok(region) = seen.result {
            row.latency.saturating_record(u64::try_from(seen.took.as_micros()).unwrap_or(u64::MAX));
            *row.regions.entry((seen.from.to_owned(), region)).or_default() += 1;
        }
    }

    /// Counts of one phase.
    pub(super) fn count(&self, phase: Phase) -> Count {
        self.lock().phases[phase as usize]
    }

    /// Counts of all phases.
    pub(super) fn total(&self) -> Count {
        self.lock().phases.iter().fold(Count::default(), |sum, one| Count {
            calls: sum.calls + one.calls,
            failed: sum.failed + one.failed,
            in_flight: sum.in_flight + one.in_flight,
        })
    }

    /// Statistics by kind of call.
    pub(super) fn rows(&self) -> Vec<(&'static str, Row)> {
        self.lock().rows.iter().map(|(name, row)| (*name, row.clone())).collect()
    }

    /// Number of responses to calls of one kind from a region, by the region of the server.
    pub(super) fn answers(&self, call: &str, from: &str) -> BTreeMap<String, u64> {
        let inner = self.lock();
        let regions = inner.rows.get(call).map(|row| row.regions.iter());
        let own = regions.into_iter().flatten().filter(|((of, _), _)| of == from);
        own.map(|((_, to), count)| (to.clone(), *count)).collect()
    }

    /// Failures by phase, call and reason.
    pub(super) fn failures(&self) -> Vec<((&'static str, &'static str, String), u64)> {
        self.lock().failures.iter().map(|(what, count)| (what.clone(), *count)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Row {
    fn new() -> Self {
        // Proof: 1 µs to one minute with three digits are valid bounds.
        #[allow(clippy::unwrap_used)]
        let latency = Histogram::new_with_bounds(1, 60_000_000, 3).unwrap();
        Self { calls: 0, failed: 0, latency, regions: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_call_counts_for_phase_in_which_it_began() {
        let tally = CallStats::new();
        let early = tally.now();
        tally.enter(Phase::Kill);
        let phase = tally.now();
        let took = Duration::from_millis(3);
        tally.add(CallRecord { call: "add", phase: early, from: "eu", took, result: Ok("eu".into()) });
        tally.enter(Phase::Calm);
        let failure = Failure { why: "reset".into(), in_flight: true };
        tally.add(CallRecord { call: "add", phase, from: "eu", took, result: Err(failure) });
        tally.add(CallRecord { call: "add", phase: tally.now(), from: "eu", took, result: Ok("us".into()) });

        let kill = tally.count(Phase::Kill);
        assert_eq!((kill.calls, kill.failed, kill.in_flight), (2, 1, 1));
        assert_eq!(tally.count(Phase::Calm).failed, 0);
        assert_eq!(tally.total().calls, 3);
        assert_eq!(tally.rows()[0].1.regions[&("eu".to_owned(), "us".to_owned())], 1);
    }
}
