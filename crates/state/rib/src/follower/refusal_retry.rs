//! Decides when to subscribe again to prefixes that the upstream refused.
//!
//! An agent refuses what it has no copy of while no control plane answers it, and a control plane refuses what the
//! records of access do not permit. Neither tells its followers when the reason ends.

use std::time::Duration;

use tokio::time::Instant;

/// Pause between two attempts of a program. Its agent answers from memory.
const PROGRAM_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause of a process that serves others, whose upstream has many of them. The pause doubles up to it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time after which a refusal is a warning, since the processes of a machine start in any order.
const WARNING_AFTER: Duration = Duration::from_secs(5);

/// Schedule of the attempts. Callers pass `now` and any random number.
#[derive(Debug)]
pub(super) struct RefusalRetry {
    longest: Duration,
    pause: Duration,
    /// Time of the first refusal; `None` while nothing is refused.
    since: Option<Instant>,
    /// Time of the next attempt; `None` while nothing is refused, or the last attempt has no answer yet.
    due: Option<Instant>,
    is_warned: bool,
}

impl RefusalRetry {
    /// Creates the schedule of a process, which may serve others.
    pub(super) fn new(serves_others: bool) -> Self {
        let longest = if serves_others { LONGEST_PAUSE } else { PROGRAM_PAUSE };
        Self { longest, pause: PROGRAM_PAUSE, since: None, due: None, is_warned: false }
    }

    /// Records that the upstream refused a prefix.
    pub(super) fn refused(&mut self, now: Instant, random: u64) {
        self.since.get_or_insert(now);
        if self.due.is_none() {
            // Spread over a quarter of the pause: the programs of a machine were refused at the same moment.
            let quarter = u64::try_from(self.pause.as_nanos() / 4).unwrap_or(u64::MAX);
            self.due = Some(now + self.pause + Duration::from_nanos(random % quarter.max(1)));
        }
    }

    /// Returns when to subscribe again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that the refused prefixes are subscribed to again. Returns how long some have been refused, once this
    /// is worth a warning.
    pub(super) fn retried(&mut self, now: Instant) -> Option<Duration> {
        self.due = None;
        self.pause = (self.pause * 2).min(self.longest);
        let refused = now - self.since?;
        let warns = refused >= WARNING_AFTER && !std::mem::replace(&mut self.is_warned, true);
        warns.then_some(refused)
    }

    /// Records that no prefix is refused any more.
    pub(super) fn end(&mut self) {
        *self = Self { longest: self.longest, ..Self::new(false) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pauses before the attempts of a process that is refused again at once.
    fn pauses(serves_others: bool, random: u64) -> Vec<Duration> {
        let (mut retry, mut now) = (RefusalRetry::new(serves_others), Instant::now());
        let pause = |retry: &mut RefusalRetry, now: &mut Instant| {
            retry.refused(*now, random);
            let due = retry.due().unwrap();
            let pause = due - *now;
            *now = due;
            retry.retried(due);
            pause
        };
        (0..6).map(|_| pause(&mut retry, &mut now)).collect()
    }

    #[test]
    fn refusal_pauses_double_only_for_processes_that_serve_others() {
        let seconds = |pauses: Vec<Duration>| pauses.iter().map(Duration::as_secs).collect::<Vec<_>>();
        assert_eq!(seconds(pauses(false, 0)), [1; 6]);
        assert_eq!(seconds(pauses(true, 0)), [1, 2, 4, 8, 10, 10]);
        let spread = pauses(false, u64::MAX)[0];
        assert!(spread > PROGRAM_PAUSE && spread < PROGRAM_PAUSE * 5 / 4, "{spread:?}");
    }

    #[test]
    fn lasting_refusal_warns_once_and_again_after_its_end() {
        let (mut retry, began) = (RefusalRetry::new(false), Instant::now());
        for round in [0_u64, 1] {
            let at = |seconds: u64| began + Duration::from_secs(100 * round + seconds);
            retry.refused(at(0), 0);
            let warned = [1, 4, 5, 6, 60].map(|seconds| {
                let warned = retry.retried(at(seconds)).map(|refused| refused.as_secs());
                retry.refused(at(seconds), 0);
                warned
            });
            assert_eq!(warned, [None, None, Some(5), None, None]);
            retry.end();
            assert_eq!(retry.due(), None);
        }
    }
}
