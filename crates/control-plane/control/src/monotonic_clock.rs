use tokio::time::Instant;

/// The start of the process in its own time: drains that began up to a day earlier have a time as well.
const EPOCH_MS: u64 = 2 * 24 * 3_600 * 1_000;

/// The clock of reports and plans, which only advances: pure crates take its milliseconds. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonotonicClock {
    began: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// The present, in milliseconds.
    pub(crate) fn now_ms(self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// The time of an instant, in milliseconds. Instants before the start are taken for the start.
    pub(crate) fn ms_at(self, at: Instant) -> u64 {
        let elapsed = at.saturating_duration_since(self.began).as_millis();
        EPOCH_MS.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}
