use std::collections::BTreeMap;

use crate::{Minute, Usage, minute_usage::MINUTE_MS};

/// Maximum number of minutes kept while the receiver is unreachable: as many as the receiver accepts late.
const MAX_MINUTES: usize = crate::MAX_LATENESS as usize + 1;

/// Maximum time between two readings, in milliseconds. Usage over a longer time is dropped.
const MAX_GAP_MS: u64 = 5 * MINUTE_MS as u64;

/// Counter values at one moment. Counters are monotonic; a counter that decreased was restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterReading {
    /// Total CPU time, in microseconds.
    pub cpu_us: u64,
    /// The CPU limit, in thousandths of a core.
    pub limit_millicores: u32,
    /// Total calls begun.
    pub requests: u64,
}

/// A moment on two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// On a monotonic clock, in milliseconds since an arbitrary origin.
    pub elapsed_ms: u64,
    /// Time on the wall clock, which determines the minute, in milliseconds since 1970 (UTC). This clock may jump.
    /// Elapsed time is never computed from it, so a jump moves usage to another minute but creates no usage.
    pub clock_ms: u64,
}

/// Converts the readings of one instance into usage per minute.
///
/// Usage between two readings is spread evenly over the time between them. A late reading thus spreads its usage over
/// the minutes that it covers. Counting all of it on arrival would create a spike that dominates the p99.
#[derive(Clone, Debug, Default)]
pub struct UsageRecorder {
    last: Option<(Moment, CounterReading)>,
    kept: BTreeMap<Minute, RecordedMinute>,
    dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct RecordedMinute {
    usage: Usage,
    /// Covered time of the usage that the receiver already has, in milliseconds. Never decreases.
    sent_ms: u32,
}

impl UsageRecorder {
    /// Adds a reading.
    pub fn record(&mut self, at: Moment, now: CounterReading) {
        let Some((before, last)) = self.last.replace((at, now)) else { return };
        let elapsed = at.elapsed_ms.saturating_sub(before.elapsed_ms);
        let (Some(cpu_us), Some(requests)) =
            (now.cpu_us.checked_sub(last.cpu_us), now.requests.checked_sub(last.requests))
        else {
            return;
        };
        if elapsed > MAX_GAP_MS {
            return;
        }
        let mut rest = Usage { cpu_us, requests, ..Usage::default() };
        let mut left = elapsed;
        let mut from = at.clock_ms.saturating_sub(elapsed);
        while left > 0 {
            let minute = Minute::of_ms(from);
            let end = minute.start_ms() + u64::from(MINUTE_MS);
            let part = left.min(end - from);
            let share = |whole: u64| u64::try_from(u128::from(whole) * u128::from(part) / u128::from(left));
            let piece = Usage {
                // A share of a number is at most the number itself.
                cpu_us: share(rest.cpu_us).unwrap_or(rest.cpu_us),
                requests: share(rest.requests).unwrap_or(rest.requests),
                // At most one minute.
                covered_ms: u32::try_from(part).unwrap_or(MINUTE_MS),
                limit_millicores: now.limit_millicores,
            };
            rest.cpu_us -= piece.cpu_us;
            rest.requests -= piece.requests;
            self.add(minute, piece);
            left -= part;
            from += part;
        }
    }

    /// Ignores the difference to the next reading, because it comes from different counters.
    pub fn restart(&mut self) {
        self.last = None;
    }

    fn add(&mut self, minute: Minute, piece: Usage) {
        let usage = &mut self.kept.entry(minute).or_default().usage;
        // After the clock is set back, the same minute passes twice. Usage beyond one minute is dropped.
        if usage.covered_ms + piece.covered_ms <= MINUTE_MS {
            usage.cpu_us += piece.cpu_us;
            usage.covered_ms += piece.covered_ms;
            usage.requests += piece.requests;
            usage.limit_millicores = piece.limit_millicores;
        }
        while self.kept.len() > MAX_MINUTES {
            let oldest = self.kept.pop_first();
            self.dropped += u64::from(oldest.is_some_and(|(_, kept)| kept.sent_ms < kept.usage.covered_ms));
        }
    }

    /// Minutes that the receiver does not have completely. Each is returned with its whole usage, which replaces
    /// earlier reports.
    pub fn unsent(&self) -> Vec<(Minute, Usage)> {
        let unsent = self.kept.iter().filter(|(_, kept)| kept.sent_ms < kept.usage.covered_ms);
        unsent.map(|(minute, kept)| (*minute, kept.usage)).collect()
    }

    /// Records that the receiver has the usages in `sent`.
    pub fn mark_sent(&mut self, sent: &[(Minute, Usage)]) {
        for (minute, usage) in sent {
            if let Some(kept) = self.kept.get_mut(minute) {
                kept.sent_ms = kept.sent_ms.max(usage.covered_ms);
            }
        }
        // The newest minute may still grow.
        let newest = self.kept.keys().next_back().copied();
        self.kept.retain(|minute, kept| Some(*minute) == newest || kept.sent_ms < kept.usage.covered_ms);
    }

    /// Number of minutes dropped because the receiver did not accept them in time.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000 * MINUTE_MS as u64;

    fn at(ms: u64) -> Moment {
        Moment { elapsed_ms: 7_000 + ms, clock_ms: START + ms }
    }

    fn reading(cpu_us: u64, requests: u64) -> CounterReading {
        CounterReading { cpu_us, limit_millicores: 2_000, requests }
    }

    #[test]
    fn late_cpu_reading_is_spread_over_its_minutes() {
        let mut minutes = UsageRecorder::default();
        minutes.record(at(30_000), reading(5_000_000, 100));
        // One core for 150 s, with a single reading at the end.
        minutes.record(at(180_000), reading(155_000_000, 400));
        let unsent = minutes.unsent();
        let shape: Vec<_> =
            unsent.iter().map(|(m, u)| (m.0, u.covered_ms, u.millicores(), u.requests)).collect();
        assert_eq!(
            shape,
            [(1_000, 30_000, 1_000, 60), (1_001, 60_000, 1_000, 120), (1_002, 60_000, 1_000, 120)]
        );
    }

    #[test]
    fn recorded_cpu_usage_is_exact_at_any_reading_interval() {
        let mut minutes = UsageRecorder::default();
        minutes.record(at(0), reading(0, 0));
        let mut ms = 0;
        for step in 1..500u64 {
            ms += 1 + step * 37 % 1_999;
            minutes.record(at(ms), reading(step * 123_457, step * 7));
        }
        let (cpu, requests, covered) =
            minutes.unsent().iter().fold((0, 0, 0), |(cpu, requests, ms), (_, u)| {
                (cpu + u.cpu_us, requests + u.requests, ms + u64::from(u.covered_ms))
            });
        assert_eq!((cpu, requests, covered), (499 * 123_457, 499 * 7, ms));
    }

    #[test]
    fn restarted_cpu_counters_and_long_gaps_are_ignored() {
        let mut minutes = UsageRecorder::default();
        minutes.record(at(0), reading(50_000_000, 10));
        minutes.record(at(10_000), reading(1_000, 20));
        minutes.record(at(20_000), reading(2_000, 3));
        minutes.record(at(20_000 + MAX_GAP_MS + 1), reading(u64::MAX, 30));
        assert_eq!(minutes.unsent(), []);
    }

    #[test]
    fn clock_jump_moves_recorded_cpu_usage_and_creates_none() {
        let mut minutes = UsageRecorder::default();
        minutes.record(at(0), reading(0, 0));
        minutes.record(at(10_000), reading(10_000_000, 0));
        let hour = 60 * u64::from(MINUTE_MS);
        let ahead = Moment { elapsed_ms: 7_000 + 20_000, clock_ms: START + hour + 20_000 };
        minutes.record(ahead, reading(20_000_000, 0));
        let sum: u64 = minutes.unsent().iter().map(|(_, usage)| usage.cpu_us).sum();
        assert_eq!(sum, 20_000_000);
        assert!(minutes.unsent().iter().all(|(_, usage)| usage.millicores() == 1_000));
        // The clock passes the same minute again; at most one minute is counted.
        for second in 3..300 {
            let back = Moment { elapsed_ms: 7_000 + second * 10_000, clock_ms: START + 20_000 };
            minutes.record(back, reading(second * 10_000_000, 0));
        }
        assert!(minutes.unsent().iter().all(|(_, usage)| usage.check().is_ok()));
    }

    #[test]
    fn usage_minute_is_sent_again_until_received() {
        let mut minutes = UsageRecorder::default();
        minutes.record(at(0), reading(0, 0));
        minutes.record(at(40_000), reading(40, 0));
        let first = minutes.unsent();
        minutes.record(at(50_000), reading(50, 0));
        minutes.mark_sent(&first);
        assert_eq!(minutes.unsent()[0].1.cpu_us, 50, "the whole minute again, since it has grown");
        minutes.mark_sent(&minutes.unsent());
        assert_eq!(minutes.unsent(), []);
        for minute in 1..40 {
            minutes.record(at(minute * 60_000), reading(50 + minute, 0));
        }
        assert_eq!(minutes.unsent().len(), MAX_MINUTES);
        assert_eq!(minutes.dropped(), 39 - MAX_MINUTES as u64);
    }
}
