use std::time::Duration;

use crate::{Invalid, Share};

/// Maximum duration of a drain.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 3_600);

/// Progress of a drain of a whole region, or of its return. A control plane can continue from this record alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDrain {
    /// Share of the calls from its own callers that the region still serves. Below 100 %, calls from other regions do
    /// not go to the region.
    pub keep: Share,
    /// Whether the drain is being undone, so that the region gets its calls back.
    pub returns: bool,
    /// Duration of a complete drain if nothing delays it. Zero means as fast as reports confirm each step.
    pub over: Duration,
    /// Start time of a complete drain that would be exactly at the present share now, in milliseconds since 1970.
    pub began_at_ms: u64,
}

/// The phase of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainPhase {
    /// Calls leave the region.
    Draining,
    /// The region gets no calls until the drain is undone.
    Drained,
    /// The region gets its calls back.
    Returning,
}

impl RegionDrain {
    /// Number of steps of a complete drain.
    pub const STEPS: u32 = 10;

    /// The current phase.
    pub fn phase(&self) -> DrainPhase {
        match self.returns {
            true => DrainPhase::Returning,
            false if self.is_done() => DrainPhase::Drained,
            false => DrainPhase::Draining,
        }
    }

    /// Number of completed steps, up to [`Self::STEPS`]. For a return, counts the steps whose calls are in the
    /// region, because they came back or never left.
    pub fn steps_made(&self) -> u32 {
        let step = Share::ALL.millionths() / Self::STEPS;
        let kept = self.keep.millionths() / step;
        if self.returns { kept } else { Self::STEPS.saturating_sub(self.keep.millionths().div_ceil(step)) }
    }

    /// When the drain completes if nothing delays it, in milliseconds since 1970; `None` if each step begins as soon
    /// as reports confirm the previous one.
    pub fn due_at_ms(&self) -> Option<u64> {
        let over = u64::try_from(self.over.as_millis()).unwrap_or(u64::MAX);
        (over > 0).then(|| self.began_at_ms.saturating_add(over))
    }

    /// Starts a drain, or a return, at `now_ms` from the region's present share.
    pub fn begin(before: Option<Self>, returns: bool, over: Duration, now_ms: u64) -> Self {
        let keep = before.map_or(Share::ALL, |before| before.keep);
        let done = f64::from(keep.millionths()) / f64::from(Share::ALL.millionths());
        let done = if returns { done } else { 1.0 - done };
        let passed = over.mul_f64(done).as_millis();
        let began_at_ms = now_ms.saturating_sub(u64::try_from(passed).unwrap_or(u64::MAX));
        Self { keep, returns, over, began_at_ms }
    }

    /// Whether the drain or return is complete.
    pub fn is_done(&self) -> bool {
        self.keep == if self.returns { Share::ALL } else { Share::NONE }
    }

    /// Checks that the values are in range.
    ///
    /// # Errors
    /// If the drain would take longer than a day.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self.over > MAX_DRAIN {
            true => Err(Invalid::new("over", "is longer than a day", "write at most 24h")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reversed_region_drain_continues_from_current_share() {
        let over = Duration::from_secs(100);
        let begun = RegionDrain::begin(None, false, over, 1_000_000);
        assert_eq!((begun.keep, begun.began_at_ms, begun.is_done()), (Share::ALL, 1_000_000, false));
        let quarter = RegionDrain { keep: Share::of_millionths(250_000).unwrap(), ..begun };
        let back = RegionDrain::begin(Some(quarter), true, over, 2_000_000);
        assert_eq!((back.keep, back.began_at_ms), (quarter.keep, 1_975_000));
        let again = RegionDrain::begin(Some(quarter), false, over, 2_000_000);
        assert_eq!(again.began_at_ms, 1_925_000);
        assert!(RegionDrain { keep: Share::NONE, ..begun }.is_done());
        assert_eq!((begun.due_at_ms(), back.due_at_ms()), (Some(1_100_000), Some(2_075_000)));
        assert!(RegionDrain { over: MAX_DRAIN * 2, ..begun }.validate().is_err());
    }

    #[test]
    fn region_drain_reports_phase_and_steps() {
        let begun = RegionDrain::begin(None, false, Duration::ZERO, 0);
        let at = |millionths, returns| {
            let drain = RegionDrain { keep: Share::of_millionths(millionths).unwrap(), returns, ..begun };
            (drain.phase(), drain.steps_made())
        };
        assert_eq!(at(1_000_000, false), (DrainPhase::Draining, 0));
        assert_eq!(at(600_000, false), (DrainPhase::Draining, 4));
        assert_eq!(at(1, false), (DrainPhase::Draining, 9));
        assert_eq!(at(0, false), (DrainPhase::Drained, 10));
        assert_eq!(at(0, true), (DrainPhase::Returning, 0));
        assert_eq!(at(300_000, true), (DrainPhase::Returning, 3));
        assert_eq!(begun.due_at_ms(), None);
    }
}
