//! The part of a region's servers that callers reach: callers with small subsets leave servers without calls.

use crate::observation::{ServerReport, Spread};

/// Servers are unevenly loaded from this multiple of the mean on, and evenly again below the second.
const UNEVEN: f64 = 1.15;
const EVEN: f64 = 1.1;
/// An uneven region counts as even once its p90 is below this part of the first threshold: no calls leave it then.
const LEAST_LOADED: f64 = 0.5;
/// Reports in a row that have to be uneven: reports of single servers are of different moments.
const UNEVEN_REPORTS: u8 = 3;
/// Weight of the newest part in its mean.
const PART_WEIGHT: f64 = 0.2;

/// What is remembered of one region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reach {
    at_ms: u64,
    /// Mean utilisation, as a part of the utilisation that a tenth of the servers exceed.
    part: f64,
    /// Reports in a row of unevenly loaded servers.
    uneven_reports: u8,
}

impl Default for Reach {
    fn default() -> Self {
        Self { at_ms: 0, part: 1.0, uneven_reports: 0 }
    }
}

impl Reach {
    /// Takes a report of a region whose calls leave it from this threshold on.
    pub(crate) fn observe(&mut self, servers: &ServerReport, threshold: f64) {
        if servers.at_ms <= self.at_ms {
            return;
        }
        self.at_ms = servers.at_ms;
        let is_uneven = |Spread { mean, p90 }: &Spread| match self.is_partial() {
            true => *p90 > EVEN * mean && *p90 >= LEAST_LOADED * threshold,
            false => *p90 > UNEVEN * mean && *p90 >= threshold,
        };
        let Some(Spread { mean, p90 }) = servers.spread.filter(is_uneven) else {
            (self.uneven_reports, self.part) = (0, 1.0);
            return;
        };
        let part = mean / p90;
        let weight = if self.uneven_reports == 0 { 1.0 } else { PART_WEIGHT };
        self.part += weight * (part - self.part);
        self.uneven_reports = (self.uneven_reports + 1).min(UNEVEN_REPORTS);
    }

    /// Whether a tenth of the servers is full before the others are.
    pub(crate) fn is_partial(&self) -> bool {
        self.uneven_reports >= UNEVEN_REPORTS
    }

    /// The part of the region's capacity that callers reach; 1 while servers are evenly loaded.
    pub(crate) fn part(&self) -> f64 {
        if self.is_partial() { self.part } else { 1.0 }
    }
}
