use std::collections::BTreeMap;

use crate::{Minute, Usage, usage::MINUTE_MS};

/// How many minutes are kept for a receiver that is away; as late as it takes them.
const MAX_MINUTES: usize = crate::LATENESS as usize + 1;

/// The longest time between two readings that says something about each minute in it, in milliseconds.
const MAX_GAP_MS: u64 = 5 * MINUTE_MS as u64;

/// What counters say at one moment. They only grow; one that falls was begun anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPU time ever used, in microseconds.
    pub cpu_us: u64,
    /// How much CPU may be used at once, in thousandths of a core.
    pub limit_millicores: u32,
    /// Calls ever begun.
    pub requests: u64,
}

/// A moment by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// By one that never jumps, in milliseconds since any beginning.
    pub elapsed_ms: u64,
    /// By the one that names minutes, in milliseconds since 1970 (UTC). It may jump: how much time has passed is never
    /// taken from it, so that a jump moves usage to another minute and makes none.
    pub clock_ms: u64,
}

/// Makes minutes of the readings of one instance.
///
/// What is used between two readings is spread evenly over the time between them. A reading that comes late thus spreads
/// its usage over the minutes that it is about; counting it where it arrives would make a spike there, which p99s are
/// all about.
#[derive(Clone, Debug, Default)]
pub struct Minutes {
    last: Option<(Moment, Reading)>,
    kept: BTreeMap<Minute, Kept>,
    lost: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    usage: Usage,
    /// What of it the receiver has, by the time covered: it only grows.
    sent_ms: u32,
}

impl Minutes {
    /// Takes a reading.
    pub fn read(&mut self, at: Moment, now: Reading) {
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
                // A share of a number is no larger than the number.
                cpu_us: share(rest.cpu_us).unwrap_or(rest.cpu_us),
                requests: share(rest.requests).unwrap_or(rest.requests),
                // A part of a minute.
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

    /// The next reading is of other counters: nothing is to be made of the difference to the last.
    pub fn begin_anew(&mut self) {
        self.last = None;
    }

    fn add(&mut self, minute: Minute, piece: Usage) {
        let usage = &mut self.kept.entry(minute).or_default().usage;
        // A clock that was put back comes by the same minute twice; what is beyond it is not of it.
        if usage.covered_ms + piece.covered_ms <= MINUTE_MS {
            usage.cpu_us += piece.cpu_us;
            usage.covered_ms += piece.covered_ms;
            usage.requests += piece.requests;
            usage.limit_millicores = piece.limit_millicores;
        }
        while self.kept.len() > MAX_MINUTES {
            let oldest = self.kept.pop_first();
            self.lost += u64::from(oldest.is_some_and(|(_, kept)| kept.sent_ms < kept.usage.covered_ms));
        }
    }

    /// What the receiver does not have yet, all of each such minute: it takes the place of what was sent of it before.
    pub fn unsent(&self) -> Vec<(Minute, Usage)> {
        let unsent = self.kept.iter().filter(|(_, kept)| kept.sent_ms < kept.usage.covered_ms);
        unsent.map(|(minute, kept)| (*minute, kept.usage)).collect()
    }

    /// The receiver has these.
    pub fn sent(&mut self, sent: &[(Minute, Usage)]) {
        for (minute, usage) in sent {
            if let Some(kept) = self.kept.get_mut(minute) {
                kept.sent_ms = kept.sent_ms.max(usage.covered_ms);
            }
        }
        // The newest may still grow.
        let newest = self.kept.keys().next_back().copied();
        self.kept.retain(|minute, kept| Some(*minute) == newest || kept.sent_ms < kept.usage.covered_ms);
    }

    /// How many minutes were given up, since nobody took them in time.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000 * MINUTE_MS as u64;

    fn at(ms: u64) -> Moment {
        Moment { elapsed_ms: 7_000 + ms, clock_ms: START + ms }
    }

    fn reading(cpu_us: u64, requests: u64) -> Reading {
        Reading { cpu_us, limit_millicores: 2_000, requests }
    }

    #[test]
    fn a_reading_that_comes_late_spreads_over_its_minutes_and_makes_no_spike() {
        let mut minutes = Minutes::default();
        minutes.read(at(30_000), reading(5_000_000, 100));
        // One core for 150 s, read once at the end.
        minutes.read(at(180_000), reading(155_000_000, 400));
        let unsent = minutes.unsent();
        let shape: Vec<_> =
            unsent.iter().map(|(m, u)| (m.0, u.covered_ms, u.millicores(), u.requests)).collect();
        assert_eq!(
            shape,
            [(1_000, 30_000, 1_000, 60), (1_001, 60_000, 1_000, 120), (1_002, 60_000, 1_000, 120)]
        );
    }

    #[test]
    fn what_is_read_is_counted_exactly_however_often() {
        let mut minutes = Minutes::default();
        minutes.read(at(0), reading(0, 0));
        let mut ms = 0;
        for step in 1..500u64 {
            ms += 1 + step * 37 % 1_999;
            minutes.read(at(ms), reading(step * 123_457, step * 7));
        }
        let (cpu, requests, covered) =
            minutes.unsent().iter().fold((0, 0, 0), |(cpu, requests, ms), (_, u)| {
                (cpu + u.cpu_us, requests + u.requests, ms + u64::from(u.covered_ms))
            });
        assert_eq!((cpu, requests, covered), (499 * 123_457, 499 * 7, ms));
    }

    #[test]
    fn counters_that_began_anew_and_long_silences_count_for_nothing() {
        let mut minutes = Minutes::default();
        minutes.read(at(0), reading(50_000_000, 10));
        minutes.read(at(10_000), reading(1_000, 20));
        minutes.read(at(20_000), reading(2_000, 3));
        minutes.read(at(20_000 + MAX_GAP_MS + 1), reading(u64::MAX, 30));
        assert_eq!(minutes.unsent(), []);
    }

    #[test]
    fn a_clock_that_jumps_moves_usage_and_makes_none() {
        let mut minutes = Minutes::default();
        minutes.read(at(0), reading(0, 0));
        minutes.read(at(10_000), reading(10_000_000, 0));
        let hour = 60 * u64::from(MINUTE_MS);
        let ahead = Moment { elapsed_ms: 7_000 + 20_000, clock_ms: START + hour + 20_000 };
        minutes.read(ahead, reading(20_000_000, 0));
        let sum: u64 = minutes.unsent().iter().map(|(_, usage)| usage.cpu_us).sum();
        assert_eq!(sum, 20_000_000);
        assert!(minutes.unsent().iter().all(|(_, usage)| usage.millicores() == 1_000));
        // Back again, by the same minute: never more than a minute of it.
        for second in 3..300 {
            let back = Moment { elapsed_ms: 7_000 + second * 10_000, clock_ms: START + 20_000 };
            minutes.read(back, reading(second * 10_000_000, 0));
        }
        assert!(minutes.unsent().iter().all(|(_, usage)| usage.check().is_ok()));
    }

    #[test]
    fn a_minute_is_sent_until_the_receiver_has_all_of_it_and_kept_for_as_long_as_it_is_taken() {
        let mut minutes = Minutes::default();
        minutes.read(at(0), reading(0, 0));
        minutes.read(at(40_000), reading(40, 0));
        let first = minutes.unsent();
        minutes.read(at(50_000), reading(50, 0));
        minutes.sent(&first);
        assert_eq!(minutes.unsent()[0].1.cpu_us, 50, "all of it again, since it grew meanwhile");
        minutes.sent(&minutes.unsent());
        assert_eq!(minutes.unsent(), []);
        for minute in 1..40 {
            minutes.read(at(minute * 60_000), reading(50 + minute, 0));
        }
        assert_eq!(minutes.unsent().len(), MAX_MINUTES);
        assert_eq!(minutes.lost(), 39 - MAX_MINUTES as u64);
    }
}
