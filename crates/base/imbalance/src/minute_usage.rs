/// A minute of wall clock time, counted from the beginning of 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minute(pub u32);

/// Length of a minute, in milliseconds.
pub(crate) const MINUTE_MS: u32 = 60_000;

/// Minimum covered time for which an instance counts as a container in a minute, in milliseconds. Usage over a
/// shorter time is not representative.
pub const MIN_COVERED_MS: u32 = 5_000;

/// Time after the end of a minute in which servers' reports of it arrive unless they are late, in milliseconds.
/// Servers send every ten seconds, and agents forward the reports in batches.
const REPORT_DELAY_MS: u64 = 30_000;

/// More cores than any machine has, in thousandths of a core.
const MAX_MILLICORES: u64 = 65_536_000;

/// The usage of one instance within one minute, and how much of the minute the usage covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, in microseconds.
    pub cpu_us: u64,
    /// Time covered, in milliseconds; at most 60 000.
    pub covered_ms: u32,
    /// The CPU limit in thousandths of a core; 0 if unknown.
    pub limit_millicores: u32,
    /// Calls begun; 0 if calls are not counted.
    pub requests: u64,
}

/// Reason why a usage is implausible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImplausibleUsage {
    /// The usage covers no time, or more than a minute.
    #[error("{0} ms of a minute are covered, which has 60000")]
    Covered(u32),
    /// The usage exceeds the CPU of any machine.
    #[error("{0} thousandths of a core are more than a machine has")]
    Cpu(u64),
}

impl Minute {
    /// The minute that contains a time in milliseconds since 1970 (UTC).
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / u64::from(MINUTE_MS)).unwrap_or(u32::MAX))
    }

    /// The newest complete minute at a time in milliseconds since 1970 (UTC): it has ended, and servers had the time
    /// to report it. Sums of a later minute lack the servers that have not reported yet.
    pub fn newest_complete(ms: u64) -> Self {
        Self::of_ms(ms.saturating_sub(REPORT_DELAY_MS)).before(1)
    }

    /// The beginning of the minute, in milliseconds since 1970 (UTC).
    pub fn start_ms(self) -> u64 {
        u64::from(self.0) * u64::from(MINUTE_MS)
    }

    /// The minute `minutes` earlier.
    #[must_use]
    pub fn before(self, minutes: u32) -> Self {
        Self(self.0.saturating_sub(minutes))
    }
}

impl Usage {
    /// Average CPU usage over the covered time, in thousandths of a core (microseconds of CPU per millisecond). It is
    /// rounded to the nearest one, so that sums over many nearly idle instances are not too low.
    pub fn millicores(&self) -> u64 {
        let covered_ms = u64::from(self.covered_ms.max(1));
        self.cpu_us.saturating_add(covered_ms / 2) / covered_ms
    }

    /// Whether the usage covers enough of its minute to count as a container.
    pub fn counts(&self) -> bool {
        self.covered_ms >= MIN_COVERED_MS
    }

    /// Rejects implausible values.
    ///
    /// # Errors
    /// If the usage covers no time or more than a minute, or exceeds the CPU of any machine.
    pub fn check(&self) -> Result<(), ImplausibleUsage> {
        if self.covered_ms == 0 || self.covered_ms > MINUTE_MS {
            return Err(ImplausibleUsage::Covered(self.covered_ms));
        }
        let millicores = self.millicores();
        if millicores > MAX_MILLICORES { Err(ImplausibleUsage::Cpu(millicores)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minute_is_complete_half_a_minute_after_its_end() {
        let minute = |seconds: u64| Minute::newest_complete(seconds * 1_000).0;
        assert_eq!([600, 629, 630, 689, 690].map(minute), [8, 8, 9, 9, 10]);
    }

    #[test]
    fn average_cpu_usage_is_rounded_to_nearest_millicore() {
        let millicores = |cpu_us| Usage { cpu_us, covered_ms: 60_000, ..Usage::default() }.millicores();
        assert_eq!([0, 29_999, 30_000, 89_999, 90_000, 719_000].map(millicores), [0, 0, 1, 1, 2, 12]);
    }

    #[test]
    fn implausible_cpu_usage_is_rejected() {
        let usage = |cpu_us, covered_ms| Usage { cpu_us, covered_ms, ..Usage::default() };
        assert_eq!(usage(60_000_000, 60_000).check(), Ok(()));
        assert_eq!(usage(60_000_000, 60_000).millicores(), 1000);
        assert_eq!(usage(15_000_000, 30_000).millicores(), 500, "half a minute of half a core");
        assert_eq!(usage(1, 0).check(), Err(ImplausibleUsage::Covered(0)));
        assert_eq!(usage(1, 60_001).check(), Err(ImplausibleUsage::Covered(60_001)));
        assert!(matches!(usage(u64::MAX, 60_000).check(), Err(ImplausibleUsage::Cpu(_))));
    }
}
