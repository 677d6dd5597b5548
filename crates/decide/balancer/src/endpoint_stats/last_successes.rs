use std::sync::{
    OnceLock,
    atomic::{AtomicU16, Ordering::Relaxed},
};

use super::{EndpointStats, FIRST_SEGMENT, FURTHER_SEGMENTS, segment_of};

/// Times are stored in units of 2^33 ns, 8.6 s. The unit is this coarse so that a busy endpoint is written only once
/// per unit.
const UNIT_SHIFT: u32 = 33;
/// A success counts as evidence for this many further units: for 17 to 26 s.
const MAX_AGE: u16 = 2;
/// Marks an endpoint at which no call has succeeded yet.
const NEVER: u16 = 0;

/// Time of the last successful call at each endpoint, by index.
///
/// Stored apart from the data of picks: only compilation reads it, when health checks call an endpoint unhealthy.
#[derive(Debug, Default)]
pub(super) struct LastSuccesses {
    first: [AtomicU16; FIRST_SEGMENT],
    further: OnceLock<Box<FurtherSegments>>,
}

type FurtherSegments = [OnceLock<Box<[AtomicU16]>>; FURTHER_SEGMENTS];

impl LastSuccesses {
    #[inline]
    pub(super) fn note(&self, index: u32, now: u64) {
        let unit = unit(now);
        let cell = self.first.get(index as usize).or_else(|| self.ensure(index));
        if let Some(cell) = cell.filter(|cell| cell.load(Relaxed) != unit) {
            cell.store(unit, Relaxed);
        }
    }

    pub(super) fn clear(&self, index: u32) {
        if let Some(cell) = self.get(index) {
            cell.store(NEVER, Relaxed);
        }
    }

    /// Whether a call succeeded recently.
    fn is_recent(&self, index: u32, now: u64) -> bool {
        let last = self.get(index).map_or(NEVER, |cell| cell.load(Relaxed));
        last != NEVER && unit(now).wrapping_sub(last) <= MAX_AGE
    }

    fn get(&self, index: u32) -> Option<&AtomicU16> {
        self.first.get(index as usize).or_else(|| {
            let (segment, offset) = segment_of(index);
            self.further.get()?.get(segment.checked_sub(1)?)?.get()?.get(offset)
        })
    }

    #[cold]
    fn ensure(&self, index: u32) -> Option<&AtomicU16> {
        let (segment, offset) = segment_of(index);
        let further = self.further.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER_SEGMENTS]));
        let cells = || (0..FIRST_SEGMENT << segment).map(|_| AtomicU16::new(NEVER)).collect();
        further.get(segment.checked_sub(1)?)?.get_or_init(cells).get(offset)
    }
}

/// Converts a time to its unit, never [`NEVER`]. Units wrap around after 6.5 days; an endpoint without calls would then
/// count as proven for half a minute.
#[inline]
fn unit(now: u64) -> u16 {
    ((now >> UNIT_SHIFT) as u16).max(1)
}

impl EndpointStats {
    /// Evidence about an endpoint from this client's own calls. `Some(false)` if the last calls failed; `Some(true)`
    /// if a call succeeded within the last 17 s and none failed since; `None` without recent calls.
    pub fn evidence(&self, index: u32, now: u64) -> Option<bool> {
        match self.consecutive_failures(index) {
            0 => self.last_successes.is_recent(index, now).then_some(true),
            _ => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn endpoint_evidence_follows_last_call_outcome_and_expires() {
        let stats = EndpointStats::default();
        stats.ensure(100);
        for index in [0, 100] {
            let evidence = |second: u64| stats.evidence(index, second * SECOND);
            assert_eq!(evidence(100), None, "never called");
            stats.finish(index, Outcome::Ok, 100 * SECOND);
            assert_eq!(evidence(117), Some(true));
            assert_eq!(evidence(127), None, "too old");
            stats.finish(index, Outcome::Failed, 120 * SECOND);
            assert_eq!(evidence(200), Some(false));
            stats.finish(index, Outcome::Ok, 201 * SECOND);
            assert_eq!(evidence(201), Some(true));
            stats.reset(index);
            assert_eq!(evidence(201), None, "another instance");
        }
    }
}
