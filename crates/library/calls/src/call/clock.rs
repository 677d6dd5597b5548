use std::time::Duration;

use tokio::time::Instant;

/// A monotonic clock in nanoseconds, the `now` of `router`. Copies share their base.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
}

impl Clock {
    /// Starts just above 0, which stands for "never" in penalties.
    pub fn start() -> Self {
        Self { base: Instant::now() - Duration::from_nanos(1) }
    }

    /// Nanoseconds since the start; lasts for 584 years.
    #[inline]
    pub fn now(&self) -> u64 {
        nanos(self.base.elapsed())
    }

    /// Nanoseconds from the start to `instant`; 0 for one before.
    #[inline]
    pub fn at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.base))
    }

    /// The instant `nanoseconds` after the start.
    pub fn instant(&self, nanoseconds: u64) -> Instant {
        self.base + Duration::from_nanos(nanoseconds)
    }
}

/// A duration in whole nanoseconds, at most `u64::MAX`.
#[inline]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
