use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits for the number of calls in flight. A server never has a million calls of one caller in flight.
const CALLS_BITS: u32 = 20;
const CALLS: u64 = (1 << CALLS_BITS) - 1;
/// Mask of the time, which is kept modulo 2⁴⁴ microseconds (203 days).
const TIME: u64 = u64::MAX >> CALLS_BITS;

/// Measures the time in which calls are in flight, summed over calls: two calls during one second give two seconds.
///
/// One word holds the number of calls in flight, and the sum of end times minus the sum of begin times. A call costs
/// one atomic addition at its begin and one at its end, and a reader sees both values at the same moment. Two words
/// were rejected: a reader between two additions would be wrong by the whole uptime of the process.
#[derive(Debug, Default)]
pub struct InFlightMeter(AtomicU64);

/// A reading of an [`InFlightMeter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightTime(u64);

impl InFlightMeter {
    /// Counts the begin of a call. All times are microseconds of the same monotonic clock.
    #[inline]
    pub fn begin(&self, now_us: u64) {
        self.0.fetch_add((now_us.wrapping_neg() << CALLS_BITS).wrapping_add(1), Relaxed);
    }

    /// Counts the end of a call that [began](Self::begin).
    #[inline]
    pub fn end(&self, now_us: u64) {
        self.0.fetch_add((now_us << CALLS_BITS).wrapping_sub(1), Relaxed);
    }

    /// Reads the time in flight until `now_us`.
    pub fn read(&self, now_us: u64) -> InFlightTime {
        let word = self.0.load(Relaxed);
        InFlightTime((word >> CALLS_BITS).wrapping_add((word & CALLS).wrapping_mul(now_us)) & TIME)
    }
}

impl InFlightTime {
    /// Returns the time in flight since an earlier reading, in microseconds. Returns zero if the time seems to
    /// decrease, which happens when a call begins during a reading.
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
        /// Holds for any begin times, end times and reading times.
        #[test]
        fn in_flight_readings_add_up_to_time_of_all_calls(
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
    fn call_that_begins_after_reading_time_adds_no_time_in_flight() {
        let meter = InFlightMeter::default();
        let first = meter.read(100);
        meter.begin(105);
        let early = meter.read(103);
        assert_eq!(early.since(first), 0);
        meter.end(125);
        assert_eq!(meter.read(200).since(early), 22, "which corrects the one before");
    }
}
