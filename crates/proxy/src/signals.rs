//! What is counted of answers by the region that they come from: rate, errors, duration. Counters only, found without a lock.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::Region;
use http::StatusCode;

use crate::metrics::count;

/// Upper bounds of the buckets of times, in microseconds.
pub(crate) const BOUNDS_US: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// Regions of one service that are told apart; a policy seldom lets calls into more, and each is a set of series.
const MOST_REGIONS: usize = 16;
/// The region of answers that no server gave, and of those beyond the bound; neither is a name that a region can have.
const NOBODY: &str = "(none)";
const OTHERS: &str = "(other)";

/// Answers of one region.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// By class: 1xx to 5xx.
    classes: [AtomicU64; 5],
    /// Times to the head of the answer: in each bucket, and beyond the last.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// Answers by region.
#[derive(Debug, Default)]
pub(crate) struct ByRegion {
    /// In the order in which they first answered; mostly the nearest is the first, so that looking for it is short.
    regions: [OnceLock<Box<(Region, Signals)>>; MOST_REGIONS],
    others: OnceLock<Box<Signals>>,
    nobody: Signals,
}

impl Signals {
    #[inline]
    fn answered(&self, status: StatusCode, took: Duration) {
        if let Some(class) = self.classes.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            count(class);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        count(&self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)]);
        self.sum_us.fetch_add(us, Relaxed);
    }

    fn add(&self, other: &Self) {
        let to = self.classes.iter().chain(&self.buckets).chain([&self.sum_us]);
        let from = other.classes.iter().chain(&other.buckets).chain([&other.sum_us]);
        for (to, from) in to.zip(from) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
    }

    /// How many answers of each class there were.
    pub(crate) fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|class| class.load(Relaxed))
    }

    /// How many took at most so many seconds and more than the bound before, for each bound; the last is without one. And all
    /// seconds together.
    pub(crate) fn times(&self) -> (Vec<(f64, u64)>, f64) {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let counts = bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Relaxed)));
        (counts.collect(), self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}

impl ByRegion {
    /// Counts an answer of a server there, or of nobody.
    #[inline]
    pub(crate) fn answered(&self, from: Option<&Region>, status: StatusCode, took: Duration) {
        from.map_or(&self.nobody, |region| self.of(region)).answered(status, took);
    }

    #[inline]
    fn of(&self, region: &Region) -> &Signals {
        for place in &self.regions {
            let (known, signals) = &**place.get_or_init(|| Box::new((region.clone(), Signals::default())));
            if known == region {
                return signals;
            }
        }
        self.others.get_or_init(Box::default)
    }

    /// Adds what another one counted.
    pub(crate) fn add(&self, other: &Self) {
        self.nobody.add(&other.nobody);
        let regions = other.regions.iter().filter_map(|place| place.get());
        regions.for_each(|known| self.of(&known.0).add(&known.1));
        if let Some(others) = other.others.get() {
            self.others.get_or_init(Box::default).add(others);
        }
    }

    /// Each region with its answers: those that nobody gave first.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, &Signals)> {
        let regions = self.regions.iter().filter_map(|place| place.get());
        let regions = regions.map(|known| (known.0.as_str(), &known.1));
        let others = self.others.get().map(|others| (OTHERS, &**others));
        std::iter::once((NOBODY, &self.nobody)).chain(regions).chain(others)
    }

    /// How many answers of each class there were.
    pub(crate) fn classes(&self) -> [u64; 5] {
        self.each().fold([0; 5], |sums, (_, signals)| {
            let more = signals.classes();
            std::array::from_fn(|class| sums[class] + more[class])
        })
    }

    /// How many seconds the heads of answers took on average; `None` before the first.
    pub(crate) fn mean(&self) -> Option<f64> {
        let (mut answers, mut seconds) = (0, 0.0);
        for (_, signals) in self.each() {
            let (buckets, sum) = signals.times();
            answers += buckets.iter().map(|(_, count)| count).sum::<u64>();
            seconds += sum;
        }
        (answers > 0).then(|| seconds / answers as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_class_and_time() {
        let signals = Signals::default();
        signals.answered(StatusCode::OK, Duration::from_micros(250));
        signals.answered(StatusCode::NOT_FOUND, Duration::from_micros(251));
        signals.answered(StatusCode::from_u16(999).unwrap(), Duration::from_secs(60));
        assert_eq!(signals.classes(), [0, 1, 0, 1, 0]);
        let (times, sum) = signals.times();
        assert_eq!((times[0].1, times[1].1, times[BOUNDS_US.len()].1), (1, 1, 1));
        assert!((sum - 60.000_501).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn regions_are_told_apart_up_to_a_bound_by_all_threads_alike() {
        let by_region = ByRegion::default();
        let region = |number| Region::new(format!("region-{number}")).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in (0..MOST_REGIONS + 3).cycle().take(1_000 * (MOST_REGIONS + 3)) {
                        by_region.answered(Some(&region(number)), StatusCode::OK, Duration::ZERO);
                    }
                });
            }
        });
        by_region.answered(None, StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO);
        let each: Vec<_> = by_region.each().map(|(name, signals)| (name, signals.classes()[1])).collect();
        assert_eq!(each.len(), MOST_REGIONS + 2, "{each:?}");
        assert_eq!((each[0], each[MOST_REGIONS + 1]), (("(none)", 0), ("(other)", 12_000)));
        assert!(each[1..=MOST_REGIONS].iter().all(|(_, count)| *count == 4_000), "{each:?}");
        assert_eq!(by_region.classes(), [0, 76_000, 0, 0, 1]);
    }
}
