use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// What a server says of its load, all its callers together (S25, A9).
///
/// Today's pick goes by this client's own outstanding requests; reports are kept for a score that weighs both, and shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Requests begun and not finished there; `None` where it does not say.
    pub requests: Option<u32>,
    /// The share of its CPU limit in use, in thousandths, above 1000 where it bursts; `None` where it does not say.
    pub cpu: Option<u16>,
}

/// A report and when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The report.
    pub load: LoadReport,
    /// When, in nanoseconds of the caller's clock.
    pub at: u64,
}

/// The last report of one endpoint, in a quarter of a cache line.
#[derive(Debug, Default)]
#[repr(align(16))]
pub(crate) struct Place {
    /// Requests in the low half, CPU above, each plus one, so that 0 means that there is none.
    load: AtomicU64,
    /// 0 means never.
    at: AtomicU64,
}

impl Place {
    /// Keeps a report. Of two that come at once, the load of one may meet the time of the other: they are as old.
    #[inline]
    pub(crate) fn put(&self, load: LoadReport, now: u64) {
        self.load.store(pack(load), Relaxed);
        // Whoever reads this time reads this load or a newer one.
        self.at.store(now.max(1), Release);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<Reported> {
        let at = self.at.load(Acquire);
        (at != 0).then(|| Reported { load: unpack(self.load.load(Relaxed)), at })
    }

    pub(crate) fn clear(&self) {
        self.at.store(0, Release);
    }
}

#[inline]
fn pack(LoadReport { requests, cpu }: LoadReport) -> u64 {
    let requests = requests.map_or(0, |requests| u64::from(requests.saturating_add(1)));
    let cpu = cpu.map_or(0, |cpu| u64::from(cpu.saturating_add(1)));
    cpu << 32 | requests
}

#[inline]
fn unpack(load: u64) -> LoadReport {
    // Each half was packed from a number of its own width.
    let requests = (load as u32).checked_sub(1);
    let cpu = ((load >> 32) as u16).checked_sub(1);
    LoadReport { requests, cpu }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_with_what_it_leaves_out() {
        let place = Place::default();
        assert_eq!(place.get(), None);
        for requests in [None, Some(0), Some(7), Some(u32::MAX - 1)] {
            for cpu in [None, Some(0), Some(1500), Some(u16::MAX - 1)] {
                let load = LoadReport { requests, cpu };
                place.put(load, 42);
                assert_eq!(place.get(), Some(Reported { load, at: 42 }));
            }
        }
        place.clear();
        assert_eq!(place.get(), None);
    }
}
