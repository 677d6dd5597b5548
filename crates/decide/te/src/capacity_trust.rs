//! How far the capacity is trusted that the reports of a region's servers imply.

use std::fmt;

/// Work per call below this part of the other regions' median is doubted, and believed again from the second part on.
const DOUBTED_WORK: f64 = 0.65;
const BELIEVED_WORK: f64 = 0.75;
/// For so many reports in a row: single ones of few calls say little.
const DOUBTED_REPORTS: u8 = 3;
/// Calls of servers that are that much faster take less time than those of other regions: at most this part of the median, and
/// at most the second part where they were doubted.
const FASTER: f64 = 0.85;
const MUCH_FASTER: f64 = 0.75;
/// A share of calls that fail beyond that of other regions, from which on callers do not reach all of a region's capacity.
const MANY_FAIL: f64 = 0.05;
/// Weight of the newest share in its mean: an interval of callers ends at another time than their calls.
const FAILING_WEIGHT: f64 = 0.05;
/// The doubt ends below this part of it.
const FEW_FAIL: f64 = MANY_FAIL / 2.0;

/// Why the capacity of a region is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Its calls seem cheaper than those of other regions, and nothing else says so: it is planned by the others' work per call.
    SeemsCheap,
    /// A tenth of its servers is full before the others are, because callers with small subsets do not reach these: it is planned
    /// by what they reach.
    Unreached,
    /// More of its calls fail than of other regions, though it is not full: callers do not reach all of its servers. That is shown
    /// and moves no calls, since callers reach as small a part of the region that these would go to.
    Fails,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeemsCheap => {
                write!(f, "its servers report much less load for as many calls as those of other regions")
            }
            Self::Unreached => {
                write!(f, "callers do not reach all of its servers: a tenth of them is much more loaded")
            }
            Self::Fails => write!(f, "more of its calls fail than of other regions, though it is not full"),
        }
    }
}

/// What reports of one region say beside those of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Evidence {
    /// The end of the interval.
    pub(crate) at_ms: u64,
    /// Work per call and time of calls, as multiples of the other regions' median; `None` where there is nothing to compare.
    pub(crate) work: Option<f64>,
    pub(crate) time: Option<f64>,
    /// Utilisation, as a part of that from which on calls are dropped.
    pub(crate) load: f64,
    /// The mean share of calls that fail beyond that of the other regions.
    pub(crate) failing: f64,
}

/// What is remembered of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Trust {
    at_ms: u64,
    failing: f64,
    /// Reports in a row that made calls seem cheap.
    cheap_reports: u8,
    fails: bool,
}

impl Trust {
    /// Forgets which calls failed: the region has no servers any more, or they do not report.
    pub(crate) fn forget_failing(&mut self) {
        (self.failing, self.fails) = (0.0, false);
    }

    /// Takes the share of calls that failed, and returns its mean.
    pub(crate) fn observe_failing(&mut self, share: f64, at_ms: u64) -> f64 {
        if at_ms > self.at_ms {
            self.failing += FAILING_WEIGHT * (share - self.failing);
        }
        self.failing
    }

    /// Judges a report.
    pub(crate) fn judge(&mut self, evidence: &Evidence) {
        if evidence.at_ms <= self.at_ms {
            return;
        }
        let fails = evidence.failing > MANY_FAIL;
        let (work, faster) =
            if self.seems_cheap() { (BELIEVED_WORK, MUCH_FASTER) } else { (DOUBTED_WORK, FASTER) };
        let contradicts = fails || evidence.time.is_none_or(|time| time > faster);
        let is_cheap = evidence.work.is_some_and(|ratio| ratio < work) && contradicts;
        self.cheap_reports = if is_cheap { (self.cheap_reports + 1).min(DOUBTED_REPORTS) } else { 0 };
        let many = if self.fails { FEW_FAIL } else { MANY_FAIL };
        self.fails = evidence.failing > many && evidence.load < 1.0;
        self.at_ms = evidence.at_ms;
    }

    /// Whether work per call is at least that of the other regions, whatever the servers report.
    pub(crate) fn seems_cheap(&self) -> bool {
        self.cheap_reports >= DOUBTED_REPORTS
    }

    /// Whether the last report made calls seem cheap: it is not learnt from.
    pub(crate) fn is_suspect(&self) -> bool {
        self.cheap_reports > 0
    }

    pub(crate) fn doubt(&self) -> Option<Doubt> {
        match self.seems_cheap() {
            true => Some(Doubt::SeemsCheap),
            false => self.fails.then_some(Doubt::Fails),
        }
    }
}
