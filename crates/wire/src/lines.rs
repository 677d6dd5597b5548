//! Log lines that others can cause, bounded.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How many lines of one kind are written in a [`PERIOD`]; those beyond are counted.
const MAX_LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Lines of one kind. A burst costs a few lines, and the next line after it says how many were left out:
///
/// ```ignore
/// static LOST: Lines = Lines::new();
/// if let Some(left_out) = LOST.next() {
///     tracing::info!(%instance, left_out, "lost: its lease ran out");
/// }
/// ```
#[derive(Debug)]
pub struct Lines(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the period began; `None` before the first line.
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// None was written yet.
    #[allow(clippy::new_without_default, reason = "it stands in a static")]
    pub const fn new() -> Self {
        Self(Mutex::new(State { since: None, written: 0, left_out: 0 }))
    }

    /// Whether to write the next line, and how many of its kind were left out before it.
    pub fn next(&self) -> Option<u64> {
        self.next_at(Instant::now())
    }

    fn next_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (state.since, state.written) = (Some(now), 0);
        }
        if state.written == MAX_LINES {
            state.left_out += 1;
            return None;
        }
        state.written += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_costs_a_few_lines_and_the_next_one_says_how_many_were_left_out() {
        let (lines, start) = (Lines::new(), Instant::now());
        let written = (0..100_000).filter(|_| lines.next_at(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(lines.next_at(start + PERIOD), Some(99_990));
        assert_eq!(lines.next_at(start + PERIOD), Some(0));
    }
}
