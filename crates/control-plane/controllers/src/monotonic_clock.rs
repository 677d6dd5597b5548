//! The clock of reports and plans.

use tokio::time::Instant;

/// Time of the process start on this clock, in milliseconds. It is not zero, so that drains that began up to a day
/// before the start can also be represented.
const EPOCH_MS: u64 = 2 * 24 * 3_600 * 1_000;

/// The clock for reports and plans, which only advances. Pure crates receive its milliseconds. Copies show
/// the same time.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    began: Instant,
}

impl MonotonicClock {
    /// Creates a clock that starts now.
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// The current time, in milliseconds.
    pub fn now_ms(self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// The time of an instant, in milliseconds. Instants before the start count as the start.
    pub fn ms_at(self, at: Instant) -> u64 {
        let elapsed = at.saturating_duration_since(self.began).as_millis();
        EPOCH_MS.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}
