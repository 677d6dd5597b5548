/// Time after a start within which a round waits for reports of all regions.
pub(crate) const MAX_START_MS: u64 = 10_000;
/// The least of it: the first report of a region may be that of one of its many agents.
pub(crate) const MIN_START_MS: u64 = 3_000;

/// The present.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// In milliseconds of a clock that only advances.
    pub ms: u64,
    /// When the control plane started to plan, by the same clock.
    pub started_ms: u64,
    /// In milliseconds since 1970, for display.
    pub wall_ms: u64,
}

impl Now {
    /// Whether reports of regions may still be missing, since the control plane has just started.
    pub fn is_starting(&self) -> bool {
        self.ms.saturating_sub(self.started_ms) < MAX_START_MS
    }
}
