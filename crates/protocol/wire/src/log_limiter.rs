//! Rate limit for log lines that peers can cause.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Maximum number of lines of one kind per [`PERIOD`]. Further lines are suppressed and counted.
const MAX_LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Rate limit for log lines of one kind. A burst causes a few lines, and the next line reports how many were
/// suppressed:
///
/// ```ignore
/// static LOST: LogLimiter = LogLimiter::new();
/// if let Some(suppressed) = LOST.next() {
///     tracing::info!(%instance, suppressed, "lost: its lease ran out");
/// }
/// ```
#[derive(Debug)]
pub struct LogLimiter(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Start of the period; `None` before the first line.
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LogLimiter {
    /// Creates a limiter that has not seen any line.
    #[allow(clippy::new_without_default, reason = "used in statics")]
    pub const fn new() -> Self {
        Self(Mutex::new(State { since: None, written: 0, suppressed: 0 }))
    }

    /// Returns whether the next line may be written: `Some` with the number of lines suppressed before it, or `None`
    /// to suppress it.
    pub fn next(&self) -> Option<u64> {
        self.next_at(Instant::now())
    }

    fn next_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (state.since, state.written) = (Some(now), 0);
        }
        if state.written == MAX_LINES {
            state.suppressed += 1;
            return None;
        }
        state.written += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn log_limiter_bounds_burst_and_counts_suppressed_lines() {
        let (lines, start) = (LogLimiter::new(), Instant::now());
        let written = (0..100_000).filter(|_| lines.next_at(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(lines.next_at(start + PERIOD), Some(99_990));
        assert_eq!(lines.next_at(start + PERIOD), Some(0));
    }
}
