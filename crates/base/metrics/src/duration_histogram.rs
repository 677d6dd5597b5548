//! Histograms of durations in buckets that grow by a constant factor: Prometheus native histograms and OpenTelemetry
//! exponential histograms.

use std::{
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Resolution: each octave has `2^SCHEMA` buckets, so a quantile is off by at most 4.4 %.
pub const SCHEMA: i32 = 3;
const BUCKETS: usize = 1 << SCHEMA;
/// Base-2 logarithm of the lower bound of the first octave, in seconds. The octaves range from 1 µs to more than an
/// hour. Shorter and longer durations count in the first and the last bucket.
const FIRST_OCTAVE: i32 = -20;
const OCTAVES: usize = 32;
/// Range of octaves whose upper bounds are bounds of the classic buckets: from 0.24 ms to 32 s.
const CLASSIC: std::ops::RangeInclusive<i32> = -13..=4;
/// Upper bounds of the buckets in an octave, relative to the octave's upper bound: `2^(-1 + i/8)`.
#[expect(clippy::unreadable_literal, reason = "the digits that Prometheus has")]
const BOUNDS: [f64; BUCKETS] = [
    0.5,
    0.5452538663326288,
    0.5946035575013605,
    0.6484197773255048,
    0.7071067811865475,
    0.7711054127039704,
    0.8408964152537144,
    0.9170040432046711,
];
/// Counts durations without a lock. An octave is allocated with its first duration.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    octaves: [OnceLock<Box<Octave>>; OCTAVES],
    sum_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Octave {
    counts: [AtomicU64; BUCKETS],
    exemplar: Mutex<Option<(f64, TraceExemplar)>>,
}

/// Trace of one of the counted durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceExemplar {
    /// Trace id; not zero.
    pub trace: u128,
    /// Span id; not zero.
    pub span: u64,
    /// Time since the Unix epoch.
    pub at: Duration,
}

/// The counts of a histogram at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationSnapshot {
    /// Counts by bucket in ascending order, without empty buckets. Bucket `i` has durations in `(2^((i-1)/8), 2^(i/8)]` seconds.
    counts: Vec<(i32, u64)>,
    seconds: f64,
    /// Exemplars with their durations in seconds, in ascending order. At most one per octave.
    exemplars: Vec<(f64, TraceExemplar)>,
}

impl DurationHistogram {
    /// Counts a duration. `exemplar` is the trace of the measured call, if that trace is exported.
    #[inline]
    pub fn record(&self, took: Duration, exemplar: Option<TraceExemplar>) {
        let seconds = took.as_secs_f64();
        let octave = self.add(bucket(seconds), 1);
        self.sum_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        if let Some(exemplar) = exemplar
            // If a reader or another request holds the lock, the exemplar is dropped: the other one serves as well.
            && let Ok(mut last) = octave.exemplar.try_lock()
        {
            *last = Some((seconds, exemplar));
        }
    }

    /// Adds the counts in `other`, without its exemplars.
    pub fn merge(&self, other: &Self) {
        for (index, count) in other.snapshot().counts {
            self.add(index, count);
        }
        self.sum_ns.fetch_add(other.sum_ns.load(Relaxed), Relaxed);
    }

    #[inline]
    fn add(&self, index: i32, count: u64) -> &Octave {
        // Within bounds, since `bucket` clamps.
        let position = (index - 1 - FIRST_OCTAVE * BUCKETS as i32) as usize;
        let octave = self.octaves[position / BUCKETS].get_or_init(Box::default);
        octave.counts[position % BUCKETS].fetch_add(count, Relaxed);
        octave
    }

    /// Returns the present counts.
    pub fn snapshot(&self) -> DurationSnapshot {
        let mut snapshot = DurationSnapshot {
            seconds: self.sum_ns.load(Relaxed) as f64 / 1e9,
            ..DurationSnapshot::default()
        };
        for (position, octave) in self.octaves.iter().enumerate() {
            let Some(octave) = octave.get() else { continue };
            let first = (FIRST_OCTAVE + position as i32) * BUCKETS as i32 + 1;
            let counts = octave.counts.iter().map(|count| count.load(Relaxed));
            snapshot.counts.extend((first..).zip(counts).filter(|(_, count)| *count > 0));
            let exemplar = octave.exemplar.try_lock().ok().and_then(|exemplar| *exemplar);
            snapshot.exemplars.extend(exemplar);
        }
        snapshot
    }
}

/// Returns the bucket of a duration. Searches by mantissa and exponent, as the Go client library of Prometheus does.
#[inline]
fn bucket(seconds: f64) -> i32 {
    let bits = seconds.to_bits();
    // `seconds` is `fraction * 2^exponent`, with `fraction` in 0.5..1.
    let exponent = ((bits >> 52) & 0x7ff) as i32 - 1022;
    let fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1022 << 52);
    let within = BOUNDS.partition_point(|bound| *bound < fraction) as i32;
    let first = FIRST_OCTAVE * BUCKETS as i32;
    let index = (exponent - 1).saturating_mul(BUCKETS as i32) + within;
    index.clamp(first + 1, first + (OCTAVES * BUCKETS) as i32)
}

impl DurationSnapshot {
    /// Number of counted durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Sum of the durations, in seconds.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Exemplars with their durations in seconds, in ascending order. At most one per octave.
    pub fn exemplars(&self) -> &[(f64, TraceExemplar)] {
        &self.exemplars
    }

    /// Upper bounds in seconds with their counts, for formats without native buckets. The last bound is infinite.
    pub fn classic(&self) -> Vec<(f64, u64)> {
        let bounds = CLASSIC.map(|octave| 2_f64.powi(octave + 1)).chain([f64::INFINITY]);
        let mut buckets: Vec<_> = bounds.map(|bound| (bound, 0)).collect();
        for (index, count) in &self.counts {
            buckets[classic_position(*index)].1 += count;
        }
        buckets
    }

    /// Spans and deltas of a native histogram: runs of consecutive buckets as (gap, length), and the difference of
    /// each bucket's count from the previous one.
    pub fn spans(&self) -> (Vec<(i32, u32)>, Vec<i64>) {
        let (mut spans, mut deltas) = (Vec::<(i32, u32)>::new(), Vec::with_capacity(self.counts.len()));
        let (mut next, mut last) = (0, 0);
        for (index, count) in &self.counts {
            match spans.last_mut() {
                Some((_, length)) if *index == next => *length += 1,
                _ => spans.push((index - next, 1)),
            }
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            deltas.push(count - last);
            (next, last) = (index + 1, count);
        }
        (spans, deltas)
    }
}

fn classic_position(index: i32) -> usize {
    let octave = (index - 1).div_euclid(BUCKETS as i32);
    // Not negative.
    (octave.clamp(*CLASSIC.start(), *CLASSIC.end() + 1) - CLASSIC.start()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_counted_in_histogram_bucket_that_contains_it() {
        for (seconds, index) in [(1.0, 0), (1.000_001, 1), (2.0, 8), (0.5, -8), (0.001, -79), (3.0, 13)] {
            assert_eq!(bucket(seconds), index, "{seconds}");
            let [low, high] = [index - 1, index].map(|index| 2_f64.powf(f64::from(index) / 8.0));
            assert!(low < seconds && seconds <= high, "{low} < {seconds} <= {high}");
        }
        assert_eq!((bucket(0.0), bucket(1e9)), (-159, 96));
    }

    #[test]
    fn native_histogram_has_bucket_spans_and_count_deltas() {
        let histogram = DurationHistogram::default();
        for (seconds, count) in [(1.0, 3), (1.05, 1), (2.0, 2)] {
            (0..count).for_each(|_| histogram.record(Duration::from_secs_f64(seconds), None));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.spans(), (vec![(0, 2), (6, 1)], vec![3, -2, 1]));
        assert_eq!((snapshot.count(), snapshot.seconds()), (6, 8.05));
        let classic = snapshot.classic();
        assert_eq!((classic[12], classic[13], classic.len()), ((1.0, 3), (2.0, 3), 19));
    }

    #[test]
    fn histogram_keeps_last_exemplar_of_each_octave() {
        let histogram = DurationHistogram::default();
        let trace = |trace| Some(TraceExemplar { trace, span: 1, at: Duration::from_secs(1) });
        histogram.record(Duration::from_millis(1_500), trace(7));
        histogram.record(Duration::from_millis(1_600), trace(8));
        histogram.record(Duration::from_millis(1_700), None);
        histogram.record(Duration::from_hours(9), trace(9));
        let traces: Vec<_> =
            histogram.snapshot().exemplars.iter().map(|(at, one)| (*at, one.trace)).collect();
        assert_eq!(traces, [(1.6, 8), (32_400.0, 9)]);
        let merged = DurationHistogram::default();
        merged.merge(&histogram);
        let sum = merged.snapshot();
        assert_eq!((sum.count(), sum.seconds(), sum.exemplars.len()), (4, 32_404.8, 0));
    }

    #[test]
    fn concurrent_recording_loses_no_histogram_duration() {
        let histogram = DurationHistogram::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let histogram = &histogram;
                scope.spawn(move || {
                    (0..1_000).for_each(|n| histogram.record(Duration::from_micros(n * 50 + thread), None));
                });
            }
        });
        assert_eq!(histogram.snapshot().count(), 4_000);
    }
}
