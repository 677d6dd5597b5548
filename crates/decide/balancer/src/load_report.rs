use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::config::UNIT_COST;

/// The load that a server reports, summed over all its callers (as in an ORCA load report; ServiceRouter §3.4.3; Uber,
/// assisted balancing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Requests in flight, excluding streams; `None` if not reported.
    pub requests: Option<u32>,
    /// Long streams in flight, which load a server differently than calls (Uber, assisted balancing); `None` if not
    /// reported.
    pub streams: Option<u32>,
    /// Utilisation of the CPU limit, in thousandths; above 1000 while bursting. `None` if not reported.
    pub cpu: Option<u16>,
    /// The metric that the policy names as utilisation, in thousandths; `None` if not reported.
    pub metric: Option<u32>,
}

/// A load report with its time of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedReport {
    /// The report.
    pub load: LoadReport,
    /// Time of arrival, in nanoseconds of the caller's clock.
    pub at: u64,
}

/// The last report of one endpoint and the cost derived from its reports; fills half a cache line.
#[derive(Debug)]
#[repr(align(32))]
pub(crate) struct ReportCell {
    /// Reported requests (low half), CPU and streams (above them). Each value is stored plus one, so that 0 means
    /// "not reported".
    load: AtomicU64,
    /// Time at which the report arrived; 0 before the first report.
    at: AtomicU64,
    /// Reported metric plus one; 0 if not reported.
    metric: AtomicU32,
    /// The cost derived from utilisation, more precise than the copy that picks read.
    cost: AtomicU32,
}

impl Default for ReportCell {
    fn default() -> Self {
        Self {
            load: AtomicU64::new(0),
            at: AtomicU64::new(0),
            metric: AtomicU32::new(0),
            cost: AtomicU32::new(UNIT_COST),
        }
    }
}

impl ReportCell {
    /// Stores a report. If two calls store concurrently, the load of one may be combined with the time of the other,
    /// which is about the same.
    #[inline]
    pub(crate) fn put(&self, load: LoadReport, now: u64) {
        self.load.store(pack(load), Relaxed);
        self.metric.store(load.metric.map_or(0, |metric| metric.saturating_add(1)), Relaxed);
        // A reader that sees this time reads this load or a newer one.
        self.at.store(now.max(1), Release);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<ReceivedReport> {
        let at = self.at.load(Acquire);
        let metric = self.metric.load(Relaxed).checked_sub(1);
        (at != 0)
            .then(|| ReceivedReport { load: LoadReport { metric, ..unpack(self.load.load(Relaxed)) }, at })
    }

    pub(crate) fn cost(&self) -> u32 {
        self.cost.load(Relaxed)
    }

    pub(crate) fn set_cost(&self, cost: u32) {
        self.cost.store(cost, Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.cost.store(UNIT_COST, Relaxed);
        self.at.store(0, Release);
    }
}

#[inline]
fn pack(LoadReport { requests, streams, cpu, .. }: LoadReport) -> u64 {
    let requests = requests.map_or(0, |requests| u64::from(requests.saturating_add(1)));
    let streams = streams.map_or(0, |streams| u64::from(streams.min(u32::from(u16::MAX) - 1) + 1));
    let cpu = cpu.map_or(0, |cpu| u64::from(cpu.saturating_add(1)));
    streams << 48 | cpu << 32 | requests
}

#[inline]
fn unpack(load: u64) -> LoadReport {
    // Each part was packed from a number of the same width, so the casts are exact.
    let requests = (load as u32).checked_sub(1);
    let cpu = ((load >> 32) as u16).checked_sub(1);
    let streams = ((load >> 48) as u16).checked_sub(1).map(u32::from);
    LoadReport { requests, streams, cpu, metric: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_load_report_round_trips() {
        let cell = ReportCell::default();
        assert_eq!(cell.get(), None);
        for requests in [None, Some(0), Some(7), Some(u32::MAX - 1)] {
            for cpu in [None, Some(0), Some(1500), Some(u16::MAX - 1)] {
                for (streams, metric) in [(None, Some(3)), (Some(0), None), (Some(65_534), Some(0))] {
                    let load = LoadReport { requests, streams, cpu, metric };
                    cell.put(load, 42);
                    assert_eq!(cell.get(), Some(ReceivedReport { load, at: 42 }));
                }
            }
        }
        cell.clear();
        assert_eq!(cell.get(), None);
    }
}
