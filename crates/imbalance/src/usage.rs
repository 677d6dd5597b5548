/// A minute of the clock, counted from the beginning of 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minute(pub u32);

/// A minute in milliseconds.
pub(crate) const MINUTE_MS: u32 = 60_000;

/// How much of a minute an instance has to have seen to count as a container in it, in milliseconds: one that was there
/// for a moment only says little of how busy it is.
pub const MIN_COVERED_MS: u32 = 5_000;

/// More cores than any machine has, in thousandths.
const MAX_MILLICORES: u64 = 65_536_000;

/// What one instance used within one minute, and how much of the minute that is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, in microseconds.
    pub cpu_us: u64,
    /// How much of the minute was watched, in milliseconds; at most 60 000.
    pub covered_ms: u32,
    /// How much CPU it may use at once, in thousandths of a core; 0 where that is not known.
    pub limit_millicores: u32,
    /// Calls that began; 0 where nobody counts them.
    pub requests: u64,
}

/// Why a usage cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// No time is covered, or more than a minute has.
    #[error("{0} ms of one minute are covered; it has 60000")]
    Covered(u32),
    /// More CPU than a machine has.
    #[error("{0} thousandths of a core are more than a machine has")]
    Cpu(u64),
}

impl Minute {
    /// The minute that a time lies in, given in milliseconds since 1970 (UTC).
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / u64::from(MINUTE_MS)).unwrap_or(u32::MAX))
    }

    /// When it begins, in milliseconds since 1970 (UTC).
    pub fn start_ms(self) -> u64 {
        u64::from(self.0) * u64::from(MINUTE_MS)
    }

    /// So many minutes earlier.
    #[must_use]
    pub fn before(self, minutes: u32) -> Self {
        Self(self.0.saturating_sub(minutes))
    }
}

impl Usage {
    /// The CPU in use on average over the time covered, in thousandths of a core: microseconds of CPU a millisecond.
    pub fn millicores(&self) -> u64 {
        self.cpu_us / u64::from(self.covered_ms.max(1))
    }

    /// Whether it saw enough of its minute to count as a container.
    pub fn counts(&self) -> bool {
        self.covered_ms >= MIN_COVERED_MS
    }

    /// Refuses what cannot be true, whoever says it.
    ///
    /// # Errors
    /// When no time is covered, more than the minute, or more CPU was used than any machine has.
    pub fn check(&self) -> Result<(), Unusable> {
        if self.covered_ms == 0 || self.covered_ms > MINUTE_MS {
            return Err(Unusable::Covered(self.covered_ms));
        }
        let millicores = self.millicores();
        if millicores > MAX_MILLICORES { Err(Unusable::Cpu(millicores)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_true_is_refused() {
        let usage = |cpu_us, covered_ms| Usage { cpu_us, covered_ms, ..Usage::default() };
        assert_eq!(usage(60_000_000, 60_000).check(), Ok(()));
        assert_eq!(usage(60_000_000, 60_000).millicores(), 1000);
        assert_eq!(usage(15_000_000, 30_000).millicores(), 500, "half a minute of half a core");
        assert_eq!(usage(1, 0).check(), Err(Unusable::Covered(0)));
        assert_eq!(usage(1, 60_001).check(), Err(Unusable::Covered(60_001)));
        assert!(matches!(usage(u64::MAX, 60_000).check(), Err(Unusable::Cpu(_))));
    }
}
