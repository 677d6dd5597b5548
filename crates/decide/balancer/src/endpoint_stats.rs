use std::sync::{
    Mutex, OnceLock, PoisonError, RwLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use fairmesh_model::BalancingPolicy;

use crate::{
    BalancerConfig, LoadReport, Outcome, ReceivedReport,
    index_allocator::IndexAllocator,
    load_report::ReportCell,
    outlier::OutlierState,
    pool_means::{PoolMeans, ReportUpdate},
};

mod hot_block;
mod hot_stats;
mod last_successes;

use hot_block::HotBlock;
use hot_block::SharedMemory;
pub use hot_block::{BLOCK_ENDPOINTS, SharedBlock, SharedStats};
pub(crate) use hot_stats::{HotStats, LoadEstimate, decay};
use last_successes::LastSuccesses;

/// Length of the first segment; each further segment doubles the total.
const FIRST_SEGMENT: usize = BLOCK_ENDPOINTS;
/// Segments after the first, enough for more than 2^31 endpoints.
const FURTHER_SEGMENTS: usize = 26;
/// Latencies are stored in units of 2^8 ns, so that 32 bits hold minutes.
const LATENCY_SHIFT: u32 = 8;

/// A client's measurements of one service's endpoints: counts, load reports and failures by index, shared by all
/// snapshots.
///
/// The storage only grows and entries never move, so readers need neither a lock nor `unsafe`. An instance keeps its
/// index across snapshots ([`assign_indices`](Self::assign_indices)), so a call may begin on one snapshot and finish
/// on another.
///
/// In a program that calls many services, cache misses dominate the cost of a pick. So the data that a pick reads of
/// an endpoint (`HotStats`) fills a quarter of a cache line, and data that only responses write is stored elsewhere.
/// Padding each count to its own cache line was rejected: it helps many cores that call one service, but slows down
/// calls to all other services.
///
/// Counts are relaxed atomics: each is exact by itself, and a slightly stale value makes an equally good pick.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct EndpointStats {
    /// Hot entries of the first segment. This field comes first, so that groups of four entries align with cache
    /// lines.
    first: HotBlock,
    /// Shared memory that replaces `first` once the statistics are shared with other processes.
    shared: OnceLock<SharedMemory>,
    /// Number of endpoints with a non-neutral outlier state. While 0, picks skip outlier states.
    suspects: AtomicU32,
    /// Hot entries of the further segments, allocated with the first endpoint beyond the first segment.
    further: OnceLock<Box<FurtherSegments>>,
    pub(crate) pool_means: PoolMeans,
    /// Outlier states, allocated with the first failure, since most services have none.
    outliers: OnceLock<Box<OutlierSegments>>,
    /// Load reports, allocated with the first report, since many servers send none.
    reports: OnceLock<Box<ReportSegments>>,
    /// Balancing configuration of the newest snapshot. It applies to all responses, even of calls that began on an
    /// older snapshot.
    config: RwLock<BalancerConfig>,
    last_successes: LastSuccesses,
    pub(crate) index_allocator: Mutex<IndexAllocator>,
}

type FurtherSegments = [OnceLock<Box<[HotStats]>>; FURTHER_SEGMENTS];
type OutlierSegments = [OnceLock<Box<[OutlierState]>>; FURTHER_SEGMENTS + 1];
type ReportSegments = [OnceLock<Box<[ReportCell]>>; FURTHER_SEGMENTS + 1];

impl EndpointStats {
    /// Number of calls in flight at `index`, excluding streams; 0 for an unassigned index.
    #[inline]
    pub fn outstanding(&self, index: u32) -> u32 {
        self.hot(index).map_or(0, HotStats::calls)
    }

    /// Number of [streams](Self::convert_to_stream) in flight at `index`.
    pub fn streams(&self, index: u32) -> u32 {
        self.hot(index).map_or(0, HotStats::streams)
    }

    /// Number of consecutive failures at `index`.
    pub fn consecutive_failures(&self, index: u32) -> u32 {
        self.outlier(index).map_or(0, OutlierState::consecutive_failures)
    }

    /// When the endpoint's ejection for recent failures ends, in nanoseconds of the caller's clock; 0 if not ejected.
    pub fn ejected_until(&self, index: u32) -> u64 {
        self.outlier(index).map_or(0, |outlier| outlier.ejected_until(false))
    }

    /// Start and end of the ejection in force at `now`; `None` if the endpoint is not ejected.
    pub fn ejection(&self, index: u32, now: u64) -> Option<(u64, u64)> {
        self.outlier(index)?.ejection(now)
    }

    /// Counts a call that begins at `index`.
    #[inline]
    pub fn begin(&self, index: u32) {
        if let Some(hot) = self.hot(index) {
            hot.begin();
        }
    }

    /// Counts one of the calls in flight at `index` as a stream from now on (Uber, assisted balancing). End it with
    /// [`finish_stream`](Self::finish_stream). Returns `false`, and keeps counting a call, if there are too many
    /// streams.
    pub fn convert_to_stream(&self, index: u32) -> bool {
        self.hot(index).is_some_and(HotStats::convert_to_stream)
    }

    /// Like [`finish`](Self::finish), for a call that became a stream.
    pub fn finish_stream(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(hot) = self.hot(index) else { return };
        self.update_outlier(hot, index, outcome, now);
        hot.finish_stream();
    }

    /// Counts the end of a call at `index` and applies its outcome. `now` is from the clock of the picks.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(hot) = self.hot(index) else { return };
        // The outlier is updated before the count: an index with calls in flight stays with its instance.
        self.update_outlier(hot, index, outcome, now);
        hot.finish();
    }

    #[inline]
    fn update_outlier(&self, hot: &HotStats, index: u32, outcome: Outcome, now: u64) {
        match outcome {
            Outcome::Ok => {
                self.last_successes.note(index, now);
                if hot.load().suspect {
                    self.record_success(index);
                }
            }
            Outcome::Unknown => {}
            Outcome::Overloaded => self.record_overload(hot, index, now),
            Outcome::Failed | Outcome::Unreachable => self.record_failure(hot, index, outcome, now),
        }
    }

    /// Records the load report of a successful response that arrived at `now`. Ignores an empty report and an
    /// unassigned index.
    #[inline]
    pub fn record_report(&self, index: u32, load: LoadReport, now: u64) {
        self.store_report(index, load, true, now);
    }

    /// Like [`record_report`](Self::record_report), but without a reward (Uber, assisted balancing). For reports in
    /// failed responses and in responses to polls, neither of which completed a request.
    pub fn record_unrewarded_report(&self, index: u32, load: LoadReport, now: u64) {
        self.store_report(index, load, false, now);
    }

    /// Like [`record_unrewarded_report`](Self::record_unrewarded_report), for a poll. A polled report counts all
    /// requests in flight, while a report in a response excludes its own call.
    pub fn record_polled_report(&self, index: u32, load: LoadReport, now: u64) {
        let own = u32::from(self.outstanding(index) > 0);
        let requests = load.requests.map(|requests| requests.saturating_sub(own));
        self.record_unrewarded_report(index, LoadReport { requests, ..load }, now);
    }

    #[inline]
    fn store_report(&self, index: u32, load: LoadReport, is_rewarded: bool, now: u64) {
        let Some(hot) = self.hot(index).filter(|_| load != LoadReport::default()) else { return };
        let (segment, offset) = segment_of(index);
        let segments =
            self.reports.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER_SEGMENTS + 1]));
        if let Some(reports) = segments.get(segment) {
            let reports = reports
                .get_or_init(|| (0..FIRST_SEGMENT << segment).map(|_| ReportCell::default()).collect());
            reports[offset].put(load, now);
            let config = self.config();
            if config.policy() == BalancingPolicy::Score {
                let (cell, tick) = (&reports[offset], config.pick_config.tick(now));
                self.pool_means.apply_report(
                    hot,
                    &ReportUpdate { report: load, is_rewarded, cell, config: &config, tick },
                );
            }
        }
    }

    /// Sets the endpoints of this client's subset, with their weights. A new endpoint gets an initial load, as far
    /// above the mean as configured (slow start; Uber, assisted balancing). The initial load decays like a report, so
    /// no slow-start window is needed.
    ///
    /// Also sets the `config` that evaluates responses from now on. Called once per snapshot. An endpoint is new
    /// until the first pick that considers it.
    pub fn set_members(&self, members: &[(u32, u32)], config: &BalancerConfig) {
        let previous =
            std::mem::replace(&mut *self.config.write().unwrap_or_else(PoisonError::into_inner), *config);
        if previous.policy() != config.policy() {
            // Stored loads are not comparable between policies.
            self.pool_means.reset();
            members.iter().filter_map(|&(index, _)| self.hot(index)).for_each(HotStats::reset_load);
        }
        self.pool_means.set_members(members.len() as u32);
        let total: u64 = members.iter().map(|&(_, weight)| u64::from(weight.max(1))).sum();
        let mean = total / members.len().max(1) as u64;
        let weight_ratio = |weight: u32| {
            let weight_ratio = (mean << LoadEstimate::WEIGHT_RATIO_BITS) / u64::from(weight.max(1));
            weight_ratio.clamp(1, u16::MAX.into()) as u16
        };
        let entries =
            || members.iter().filter_map(|&(index, weight)| Some((self.hot(index)?, weight_ratio(weight))));
        let known = || entries().filter(|(hot, _)| hot.updated_tick() != 0);
        let own: u64 = known()
            .map(|(hot, weight_ratio)| {
                (hot.own_load() * u64::from(weight_ratio)) >> LoadEstimate::WEIGHT_RATIO_BITS
            })
            .sum();
        let own = own / known().count().max(1) as u64;
        let others = self.pool_means.others();
        let initial = match config.policy() {
            BalancingPolicy::PeakEwma => others * u64::from(config.warm_up) / 100,
            _ => config.initial_excess(own, others),
        };
        let initial = i32::try_from(initial).unwrap_or(i32::MAX);
        for (hot, weight_ratio) in entries() {
            let is_new = hot.updated_tick() == 0;
            hot.update_load(0, |load| LoadEstimate {
                weight_ratio,
                excess: if is_new { initial } else { load.excess },
                ..load
            });
        }
    }

    /// Sets the first round-robin counter, which should differ between callers.
    pub fn start_round_robin_at(&self, counter: u32) {
        self.block().round_robin.store(counter, Relaxed);
    }

    /// The configuration of the newest snapshot.
    pub fn config(&self) -> BalancerConfig {
        *self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of endpoints with a non-neutral outlier state, an upper bound of the number of ejected endpoints.
    #[inline]
    pub fn suspects(&self) -> u32 {
        self.suspects.load(Relaxed)
    }

    /// Whether no call is in flight at `index`.
    pub(crate) fn is_idle(&self, index: u32) -> bool {
        self.hot(index).is_none_or(HotStats::is_idle)
    }

    /// Records the latency of a response that arrived at `now`, in nanoseconds; only [`BalancingPolicy::PeakEwma`] uses
    /// it.
    ///
    /// A higher latency replaces the stored one. A lower latency moves it in proportion to the time since the
    /// previous response, relative to a half-life.
    pub fn record_latency(&self, index: u32, latency: u64, now: u64) {
        let Some(hot) = self.hot(index) else { return };
        let config = self.config();
        if config.policy() != BalancingPolicy::PeakEwma {
            return;
        }
        let tick = config.pick_config.tick(now);
        let age = hot.age(tick);
        let latency = i64::try_from(latency >> LATENCY_SHIFT).unwrap_or(i64::MAX).clamp(1, i32::MAX.into());
        self.pool_means.add_latency(latency.unsigned_abs(), age);
        hot.update_load(tick, |load| {
            let previous = i64::from(load.excess);
            let below = previous - latency;
            let excess = if below > 0 { latency + decay(below, age) } else { latency };
            LoadEstimate { excess: excess as i32, ..load }
        });
    }

    /// The round-robin counter of the next call.
    #[inline]
    pub(crate) fn round_robin_counter(&self) -> u32 {
        self.block().round_robin.load(Relaxed)
    }

    /// Counts a call that was picked by round robin.
    #[inline]
    pub fn advance_round_robin(&self) {
        self.block().round_robin.fetch_add(1, Relaxed);
    }

    /// The last load report of the server at `index`, and when it arrived.
    #[inline]
    pub fn last_report(&self, index: u32) -> Option<ReceivedReport> {
        self.report_cell(index)?.get()
    }

    #[inline]
    fn report_cell(&self, index: u32) -> Option<&ReportCell> {
        let (segment, offset) = segment_of(index);
        self.reports.get()?.get(segment)?.get()?.get(offset)
    }

    /// Clears the records of the previous instance at `index`.
    pub(crate) fn reset(&self, index: u32) {
        self.clear_failures(index);
        self.last_successes.clear(index);
        if let Some(hot) = self.hot(index) {
            hot.reset();
        }
        if let Some(cell) = self.report_cell(index) {
            cell.clear();
        }
    }

    /// Clears the failures at `index`.
    #[cold]
    pub(crate) fn clear_failures(&self, index: u32) {
        let (Some(hot), Some(outlier)) = (self.hot(index), self.outlier(index)) else { return };
        outlier.reset();
        self.share_penalty(index);
        if hot.set_suspect(false) {
            self.suspects.fetch_sub(1, Relaxed);
        }
    }

    /// Counts a successful response from a suspect endpoint.
    #[cold]
    fn record_success(&self, index: u32) {
        let config = self.config();
        if self.outlier(index).is_some_and(|outlier| outlier.record_success(&config)) {
            self.clear_failures(index);
        }
        self.share_penalty(index);
    }

    #[cold]
    fn record_failure(&self, hot: &HotStats, index: u32, outcome: Outcome, now: u64) {
        let Some(outlier) = self.ensure_outlier(index) else { return };
        let config = &self.config();
        if hot.set_suspect(true) {
            self.suspects.fetch_add(1, Relaxed);
        }
        outlier.record_failure(outcome, now, config);
        if let Some(rate) = outlier.failure_rate(config) {
            // Endpoints without failures have a failure rate of 0, so their responses need not be counted.
            let segments = self.outliers.get().into_iter().flat_map(|segments| segments.iter());
            let known = segments.filter_map(OnceLock::get).flatten();
            let rates: u64 = known.filter_map(|other| other.failure_rate(config)).sum();
            let others = u64::from(self.pool_means.members()).saturating_sub(1);
            outlier.compare_failure_rate(rate, (rates - rate.min(rates), others), now, config);
        }
        self.share_penalty(index);
    }

    /// Ejects an overloaded endpoint briefly. Without the ejection, a server that refuses at once would look idle.
    #[cold]
    fn record_overload(&self, hot: &HotStats, index: u32, now: u64) {
        let Some(outlier) = self.ensure_outlier(index) else { return };
        if hot.set_suspect(true) {
            self.suspects.fetch_add(1, Relaxed);
        }
        outlier.record_overload(now);
        self.share_penalty(index);
    }

    #[inline]
    pub(crate) fn hot(&self, index: u32) -> Option<&HotStats> {
        // The first block is tried without index arithmetic: it holds a typical subset, and every pick waits for this
        // lookup.
        self.block().hot.get(index as usize).or_else(|| {
            let (segment, offset) = segment_of(index);
            self.further.get()?.get(segment.checked_sub(1)?)?.get()?.get(offset)
        })
    }

    pub(crate) fn outlier(&self, index: u32) -> Option<&OutlierState> {
        let (segment, offset) = segment_of(index);
        self.outliers.get()?.get(segment)?.get()?.get(offset)
    }

    /// Like `outlier`, but allocates the segment if this is its first failure.
    fn ensure_outlier(&self, index: u32) -> Option<&OutlierState> {
        let (segment, offset) = segment_of(index);
        let segments =
            self.outliers.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER_SEGMENTS + 1]));
        let states = || (0..FIRST_SEGMENT << segment).map(|_| OutlierState::default()).collect();
        segments.get(segment)?.get_or_init(states).get(offset)
    }

    /// Allocates the entries at `index`, which is below 2^31.
    pub(crate) fn ensure(&self, index: u32) {
        let (segment, _) = segment_of(index);
        if let Some(further) = segment.checked_sub(1) {
            let segments =
                self.further.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER_SEGMENTS]));
            let stats = || (0..FIRST_SEGMENT << segment).map(|_| HotStats::default()).collect();
            segments[further].get_or_init(stats);
        }
    }
}

/// Returns the segment of `index` and the position within it. Segment `s` holds `FIRST_SEGMENT << s` entries and
/// starts at index `FIRST_SEGMENT * (2^s - 1)`.
#[inline]
fn segment_of(index: u32) -> (usize, usize) {
    let shifted = index as usize + FIRST_SEGMENT;
    let segment = (shifted.ilog2() - FIRST_SEGMENT.ilog2()) as usize;
    (segment, shifted - (FIRST_SEGMENT << segment))
}

#[cfg(test)]
mod tests;
