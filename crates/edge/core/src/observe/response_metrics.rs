//! Rate, errors and duration of responses by region of the server. The counters are found without a lock.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{Region, forwarding::RouteBackendIndex};
use http::StatusCode;

use crate::counter::increment;

/// Upper bounds of histogram buckets, in microseconds.
pub(crate) const BUCKET_BOUNDS_US: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// Maximum number of regions per service that have their own series; few policies allow calls to more regions.
const MAX_REGIONS: usize = 16;
/// Region labels of responses without a server, and of regions beyond the maximum. They are not valid names.
const NO_SERVER: &str = "(none)";
const OVERFLOW: &str = "(other)";

/// Counters of responses from one region, or to one caller.
#[derive(Debug, Default)]
pub struct RegionMetrics {
    /// Counts by status class: 1xx to 5xx.
    classes: [AtomicU64; 5],
    /// Histogram of the times to the response headers: one count per bucket, and one beyond the last bound.
    buckets: [AtomicU64; BUCKET_BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// Counters of responses by route and backend, and by region.
#[derive(Debug)]
pub struct ResponseMetrics {
    /// Counters by the number of the route and backend.
    route_backends: [OnceLock<Box<BackendMetrics>>; RouteBackendIndex::COUNT],
}

/// Counters of responses by region.
#[derive(Debug, Default)]
pub struct BackendMetrics {
    /// Counters in the order of each region's first response. The nearest region is usually first, so searches are
    /// short.
    regions: [OnceLock<Box<(Region, RegionMetrics)>>; MAX_REGIONS],
    overflow: OnceLock<Box<RegionMetrics>>,
    no_server: RegionMetrics,
    /// Responses below 500 whose gRPC status is a failure of the server.
    grpc_failures: AtomicU64,
}

impl RegionMetrics {
    /// Counts a response. `took` is the time to its headers.
    #[inline]
    pub fn record(&self, status: StatusCode, took: Duration) {
        if let Some(class) = self.classes.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            increment(class);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        increment(&self.buckets[BUCKET_BOUNDS_US.partition_point(|bound| *bound < us)]);
        self.sum_us.fetch_add(us, Relaxed);
    }

    fn add(&self, other: &Self) {
        let to = self.classes.iter().chain(&self.buckets).chain([&self.sum_us]);
        let from = other.classes.iter().chain(&other.buckets).chain([&other.sum_us]);
        for (to, from) in to.zip(from) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
    }

    /// Number of responses of each status class.
    pub fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|class| class.load(Relaxed))
    }

    /// Number of responses.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Upper bound in seconds and count of each bucket, of which the last has no bound; and the sum of all times in
    /// seconds.
    pub fn durations(&self) -> (Vec<(f64, u64)>, f64) {
        let bounds = BUCKET_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let counts = bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Relaxed)));
        (counts.collect(), self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}

impl Default for ResponseMetrics {
    fn default() -> Self {
        Self { route_backends: [const { OnceLock::new() }; RouteBackendIndex::COUNT] }
    }
}

impl ResponseMetrics {
    /// Counts a response to a call by this route and backend. `from` is the server's region; `None` for a
    /// response of the proxy itself.
    #[inline]
    pub fn record(
        &self,
        index: RouteBackendIndex,
        from: Option<&Region>,
        status: StatusCode,
        took: Duration,
    ) {
        let metrics = self.of(index);
        from.map_or(&metrics.no_server, |region| metrics.region(region)).record(status, took);
    }

    /// Counts a response below 500 whose gRPC status is a failure of the server.
    pub(crate) fn record_grpc_failure(&self, index: RouteBackendIndex) {
        increment(&self.of(index).grpc_failures);
    }

    #[inline]
    fn of(&self, index: RouteBackendIndex) -> &BackendMetrics {
        self.route_backends[index.index()].get_or_init(Box::default)
    }

    /// Adds the counts of another service. Its routes have other names.
    pub(crate) fn add(&self, other: &Self) {
        other.route_backends().for_each(|(_, metrics)| self.of(RouteBackendIndex::OTHER).add(metrics));
    }

    /// Each route and backend that had a response.
    pub fn route_backends(&self) -> impl Iterator<Item = (RouteBackendIndex, &BackendMetrics)> {
        RouteBackendIndex::all()
            .zip(&self.route_backends)
            .filter_map(|(index, slot)| Some((index, &**slot.get()?)))
    }

    /// The metrics of all regions, for all routes and backends.
    fn regions(&self) -> impl Iterator<Item = &RegionMetrics> {
        self.route_backends().flat_map(|(_, metrics)| metrics.iter().map(|(_, region)| region))
    }

    /// The sum of all routes and backends.
    pub fn total(&self) -> BackendMetrics {
        let total = BackendMetrics::default();
        self.route_backends().for_each(|(_, metrics)| total.add(metrics));
        total
    }

    /// Number of responses of each status class.
    pub fn classes(&self) -> [u64; 5] {
        self.regions().fold([0; 5], |sums, metrics| {
            let more = metrics.classes();
            std::array::from_fn(|class| sums[class] + more[class])
        })
    }

    /// Mean time to the response headers in seconds; `None` before the first response.
    pub fn mean_seconds(&self) -> Option<f64> {
        let (mut count, mut seconds) = (0, 0.0);
        for metrics in self.regions() {
            let (buckets, sum) = metrics.durations();
            count += buckets.iter().map(|(_, count)| count).sum::<u64>();
            seconds += sum;
        }
        (count > 0).then(|| seconds / count as f64)
    }
}

impl BackendMetrics {
    #[inline]
    fn region(&self, region: &Region) -> &RegionMetrics {
        for slot in &self.regions {
            let (known, metrics) =
                &**slot.get_or_init(|| Box::new((region.clone(), RegionMetrics::default())));
            if known == region {
                return metrics;
            }
        }
        self.overflow.get_or_init(Box::default)
    }

    fn add(&self, other: &Self) {
        self.no_server.add(&other.no_server);
        self.grpc_failures.fetch_add(other.grpc_failures(), Relaxed);
        let regions = other.regions.iter().filter_map(|slot| slot.get());
        regions.for_each(|known| self.region(&known.0).add(&known.1));
        if let Some(overflow) = other.overflow.get() {
            self.overflow.get_or_init(Box::default).add(overflow);
        }
    }

    /// The number of responses below 500 whose gRPC status is a failure of the server.
    pub fn grpc_failures(&self) -> u64 {
        self.grpc_failures.load(Relaxed)
    }

    /// The number of responses without a server.
    pub fn without_server(&self) -> u64 {
        self.no_server.classes().iter().sum()
    }

    /// The number of responses from 400 to 499 without a server: faults of the mesh, such as an undeclared backend.
    pub fn refused(&self) -> u64 {
        self.no_server.classes()[3]
    }

    /// Each region with its metrics, responses without a server first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RegionMetrics)> {
        let regions = self.regions.iter().filter_map(|slot| slot.get());
        let regions = regions.map(|known| (known.0.as_str(), &known.1));
        let overflow = self.overflow.get().map(|overflow| (OVERFLOW, &**overflow));
        std::iter::once((NO_SERVER, &self.no_server)).chain(regions).chain(overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_metrics_count_by_status_class_and_duration() {
        let metrics = RegionMetrics::default();
        metrics.record(StatusCode::OK, Duration::from_micros(250));
        metrics.record(StatusCode::NOT_FOUND, Duration::from_micros(251));
        metrics.record(StatusCode::from_u16(999).unwrap(), Duration::from_secs(60));
        assert_eq!(metrics.classes(), [0, 1, 0, 1, 0]);
        let (times, sum) = metrics.durations();
        assert_eq!((times[0].1, times[1].1, times[BUCKET_BOUNDS_US.len()].1), (1, 1, 1));
        assert!((sum - 60.000_501).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn response_metrics_bound_regions_equally_in_all_threads() {
        let responses = ResponseMetrics::default();
        let region = |number| Region::new(format!("region-{number}")).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in (0..MAX_REGIONS + 3).cycle().take(1_000 * (MAX_REGIONS + 3)) {
                        responses.record(
                            RouteBackendIndex::default(),
                            Some(&region(number)),
                            StatusCode::OK,
                            Duration::ZERO,
                        );
                    }
                });
            }
        });
        responses.record(RouteBackendIndex::default(), None, StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO);
        let total = responses.total();
        let each: Vec<_> = total.iter().map(|(name, metrics)| (name, metrics.classes()[1])).collect();
        assert_eq!(each.len(), MAX_REGIONS + 2, "{each:?}");
        assert_eq!((each[0], each[MAX_REGIONS + 1]), (("(none)", 0), ("(other)", 12_000)));
        assert!(each[1..=MAX_REGIONS].iter().all(|(_, count)| *count == 4_000), "{each:?}");
        assert_eq!(responses.classes(), [0, 76_000, 0, 0, 1]);
    }
}
