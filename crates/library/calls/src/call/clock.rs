use std::time::Duration;

use tokio::time::Instant;

/// A monotonic clock in nanoseconds, the `now` of `router`. Copies share their starting point.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
}

impl Clock {
    /// Starts a clock just above 0, since 0 means "never" in penalties.
    pub fn start() -> Self {
        Self { base: Instant::now() - Duration::from_nanos(1) }
    }

    /// Nanoseconds since the start. Overflows after 584 years.
    #[inline]
    pub fn now(&self) -> u64 {
        nanos(self.base.elapsed())
    }

    /// Nanoseconds from the start to `instant`; 0 if `instant` is before the start.
    #[inline]
    pub fn at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.base))
    }

    /// The instant `nanoseconds` after the start.
    pub fn instant(&self, nanoseconds: u64) -> Instant {
        self.base + Duration::from_nanos(nanoseconds)
    }
}

/// A duration in whole nanoseconds, capped at `u64::MAX`.
#[inline]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
