use std::time::Duration;

use crate::{Invalid, Share};

/// The longest drain.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 3_600);

/// A drain of a whole region, or its way back, as far as it has come. A control plane continues it from this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDrain {
    /// The share of the calls of its own callers that the region keeps by now. Below all, it gets no calls of others.
    pub keep: Share,
    /// Whether the region gets its calls back.
    pub returns: bool,
    /// How long the whole way takes if nothing holds it; zero is as fast as steps are seen in reports.
    pub over: Duration,
    /// When the whole way would have begun for the present share to be due, in milliseconds since 1970.
    pub began_at_ms: u64,
}

impl RegionDrain {
    /// A drain or its way back that starts at `now_ms`, from what the region keeps at present.
    pub fn begin(before: Option<Self>, returns: bool, over: Duration, now_ms: u64) -> Self {
        let keep = before.map_or(Share::ALL, |before| before.keep);
        let done = f64::from(keep.millionths()) / f64::from(Share::ALL.millionths());
        let done = if returns { done } else { 1.0 - done };
        let passed = over.mul_f64(done).as_millis();
        let began_at_ms = now_ms.saturating_sub(u64::try_from(passed).unwrap_or(u64::MAX));
        Self { keep, returns, over, began_at_ms }
    }

    /// Whether it has arrived.
    pub fn is_done(&self) -> bool {
        self.keep == if self.returns { Share::ALL } else { Share::NONE }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// If it would take longer than a day.
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
    fn a_drain_that_turns_back_halfway_has_half_of_the_way_behind_it() {
        let over = Duration::from_secs(100);
        let begun = RegionDrain::begin(None, false, over, 1_000_000);
        assert_eq!((begun.keep, begun.began_at_ms, begun.is_done()), (Share::ALL, 1_000_000, false));
        let quarter = RegionDrain { keep: Share::of_millionths(250_000).unwrap(), ..begun };
        let back = RegionDrain::begin(Some(quarter), true, over, 2_000_000);
        assert_eq!((back.keep, back.began_at_ms), (quarter.keep, 1_975_000));
        let again = RegionDrain::begin(Some(quarter), false, over, 2_000_000);
        assert_eq!(again.began_at_ms, 1_925_000);
        assert!(RegionDrain { keep: Share::NONE, ..begun }.is_done());
        assert!(RegionDrain { over: MAX_DRAIN * 2, ..begun }.validate().is_err());
    }
}
