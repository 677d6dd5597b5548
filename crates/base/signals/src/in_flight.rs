use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of the number of calls in flight: a server has no million of one caller.
const CALLS_BITS: u32 = 20;
const CALLS: u64 = (1 << CALLS_BITS) - 1;
/// Times are modulo 2⁴⁴ microseconds, which are 203 days.
const TIME: u64 = u64::MAX >> CALLS_BITS;

/// The time in which calls are in flight, added up over calls: of two calls during one second, two seconds.
///
/// One word holds the number of calls in flight, and the times at which calls ended less those at which calls began. A call costs one
/// addition at each end, and a reader sees both of the same moment. Two words were rejected: a reader between two additions would be wrong
/// by the whole time since the process began.
#[derive(Debug, Default)]
pub struct InFlightMeter(AtomicU64);

/// A reading of an [`InFlightMeter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightTime(u64);

impl InFlightMeter {
    /// Counts a call that begins. All times are of one clock that only advances, in microseconds.
    #[inline]
    pub fn begin(&self, now_us: u64) {
        self.0.fetch_add((now_us.wrapping_neg() << CALLS_BITS).wrapping_add(1), Relaxed);
    }

    /// Counts the end of a call that [began](Self::begin).
    #[inline]
    pub fn end(&self, now_us: u64) {
        self.0.fetch_add((now_us << CALLS_BITS).wrapping_sub(1), Relaxed);
    }

    /// The time until now.
    pub fn read(&self, now_us: u64) -> InFlightTime {
        let word = self.0.load(Relaxed);
        InFlightTime((word >> CALLS_BITS).wrapping_add((word & CALLS).wrapping_mul(now_us)) & TIME)
    }
}

impl InFlightTime {
    /// The time since an earlier reading, in microseconds. Zero if calls begin at the moment of a reading, which then seems to go back.
    pub fn since(self, before: Self) -> u64 {
        let since = self.0.wrapping_sub(before.0) & TIME;
        if since > TIME / 2 { 0 } else { since }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whenever the calls begin and end, and whenever it is read.
        #[test]
        fn readings_add_up_to_the_time_of_all_calls(
            start in any::<u64>(),
            calls in prop::collection::vec((0_u64..5_000_000, 0_u64..5_000_000), 0..40),
            reads in prop::collection::vec(0_u64..10_000_000, 1..10),
        ) {
            let start = start >> 1;
            let meter = InFlightMeter::default();
            let begins = calls.iter().map(|(at, _)| (*at, 0));
            let ends = calls.iter().map(|(at, took)| (at + took, 1));
            let reads = reads.into_iter().chain([10_000_000]).map(|at| (at, 2));
            let mut events: Vec<_> = begins.chain(ends).chain(reads).collect();
            events.sort_unstable();
            let (mut last, mut sum) = (meter.read(start), 0);
            for (at, kind) in events {
                match kind {
                    0 => meter.begin(start + at),
                    1 => meter.end(start + at),
                    _ => {
                        let now = meter.read(start + at);
                        sum += now.since(last);
                        last = now;
                    }
                }
            }
            prop_assert_eq!(sum, calls.iter().map(|(_, took)| took).sum::<u64>());
        }
    }

    #[test]
    fn call_that_begins_after_the_time_of_a_reading_adds_nothing_to_it() {
        let meter = InFlightMeter::default();
        let first = meter.read(100);
        meter.begin(105);
        let early = meter.read(103);
        assert_eq!(early.since(first), 0);
        meter.end(125);
        assert_eq!(meter.read(200).since(early), 22, "which corrects the one before");
    }
}
