use std::sync::{
    Mutex, OnceLock, PoisonError, RwLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use fairmesh_model::BalancingPolicy;

use crate::{
    BalancerConfig, LoadReport, Outcome, ReceivedReport,
    index_allocator::IndexAllocator,
    outlier::OutlierState,
    pool_means::{PoolMeans, ReportUpdate},
    report::ReportCell,
};

mod hot_stats;

pub(crate) use hot_stats::{HotStats, LoadEstimate, decay};

/// Slots of the first segment; each further one doubles what there is.
const FIRST_SEGMENT: usize = 32;
/// Segments after the first, enough for 2^31 slots and more.
const FURTHER_SEGMENTS: usize = 26;
/// A latency is kept in 2^8 ns, so that 32 bits hold minutes.
const LATENCY_SHIFT: u32 = 8;

/// What this client knows of the endpoints of one service by its own calls and their answers: one slot an index, shared
/// by all snapshots.
///
/// It only ever grows, and a slot never moves, so readers need neither a lock nor `unsafe`. An instance keeps its index
/// from snapshot to snapshot ([`assign`](Self::assign)): a call that began on one may end on another.
///
/// A program calls many services, and most of the time of a pick is memory that is far away. So what a pick reads of an
/// endpoint is a quarter of a cache line, and what only answers write lies elsewhere. Padding each count to a line of
/// its own was rejected: what it saves where many cores hit one service, every call to the others pays.
///
/// Counts are relaxed atomics: each is right by itself, and a pick that reads one a moment late is as good a guess.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct EndpointStats {
    /// Calls begun in turn (round robin).
    round_robin: AtomicU32,
    /// Endpoints that failures are held against, so that no pick looks for them while there is none.
    suspects: AtomicU32,
    /// So that the segments that a thousand endpoints lie in do not straddle cache lines: a pick waits for one of them.
    _padding: u64,
    further: [OnceLock<Box<[HotStats]>>; FURTHER_SEGMENTS],
    first: [HotStats; FIRST_SEGMENT],
    pub(crate) pool_means: PoolMeans,
    outliers: [OnceLock<Box<[OutlierState]>>; FURTHER_SEGMENTS + 1],
    /// Made with the first report, since many servers send none.
    reports: [OnceLock<Box<[ReportCell]>>; FURTHER_SEGMENTS + 1],
    /// The rule of the newest snapshot, by which answers are learnt from: calls that began on an older one end here too.
    config: RwLock<BalancerConfig>,
    pub(crate) index_allocator: Mutex<IndexAllocator>,
}

impl EndpointStats {
    /// Calls begun at `index` and not finished, without streams; 0 where nobody was given that index.
    #[inline]
    pub fn outstanding(&self, index: u32) -> u32 {
        self.hot(index).map_or(0, HotStats::calls)
    }

    /// Calls at `index` that turned out to be [streams](Self::call_becomes_stream) and have not ended.
    pub fn streams(&self, index: u32) -> u32 {
        self.hot(index).map_or(0, HotStats::streams)
    }

    /// Failures in a row at `index`.
    pub fn consecutive_failures(&self, index: u32) -> u32 {
        self.outlier(index).map_or(0, OutlierState::consecutive_failures)
    }

    /// Until when the endpoint is avoided for recent failures, in nanoseconds of the caller's clock; 0 means that it is not.
    pub fn ejected_until(&self, index: u32) -> u64 {
        self.outlier(index).map_or(0, |outlier| outlier.ejected_until(false))
    }

    /// Counts a call that begins at `index`.
    #[inline]
    pub fn begin(&self, index: u32) {
        if let Some(hot) = self.hot(index) {
            hot.begin();
        }
    }

    /// Counts one of the calls under way at `index` as a stream from now on (Uber, assisted balancing): it then ends with
    /// [`finish_stream`](Self::finish_stream). `false` where there are too many of them; then it stays a call.
    pub fn convert_to_stream(&self, index: u32) -> bool {
        self.hot(index).is_some_and(HotStats::convert_to_stream)
    }

    /// As [`finish`](Self::finish) for a call that became a stream.
    pub fn finish_stream(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(hot) = self.hot(index) else { return };
        self.update_outlier(hot, index, outcome, now);
        hot.finish_stream();
    }

    /// Counts a call that ends at `index` and learns from its outcome; `now` as in every pick.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(hot) = self.hot(index) else { return };
        // Before the count, since an index with calls under way stays with its instance.
        self.update_outlier(hot, index, outcome, now);
        hot.finish();
    }

    #[inline]
    fn update_outlier(&self, hot: &HotStats, index: u32, outcome: Outcome, now: u64) {
        match outcome {
            Outcome::Ok if hot.load().suspect => self.record_success(index),
            Outcome::Ok | Outcome::Unknown => {}
            Outcome::Overloaded => self.record_overload(hot, index, now),
            Outcome::Failed | Outcome::Unreachable => self.record_failure(hot, index, outcome, now),
        }
    }

    /// Learns what the server at `index` said of its load in a good answer that came at `now`; a report that says nothing,
    /// or for an index that nobody was given, is dropped.
    #[inline]
    pub fn record_report(&self, index: u32, load: LoadReport, now: u64) {
        self.store_report(index, load, true, now);
    }

    /// As [`report`](Self::report), for what finished no request, and so earns no reward (Uber, assisted balancing): an answer that is a failure, or
    /// one to a question for the load alone.
    pub fn record_unrewarded_report(&self, index: u32, load: LoadReport, now: u64) {
        self.store_report(index, load, false, now);
    }

    /// As [`record_unrewarded_report`](Self::report_unearned), for a server that was asked without a call: it counts all that is under
    /// way there, while an answer leaves out the call that it belongs to, and is learnt from as such.
    pub fn record_polled_report(&self, index: u32, load: LoadReport, now: u64) {
        let own = u32::from(self.outstanding(index) > 0);
        let requests = load.requests.map(|requests| requests.saturating_sub(own));
        self.record_unrewarded_report(index, LoadReport { requests, ..load }, now);
    }

    #[inline]
    fn store_report(&self, index: u32, load: LoadReport, is_rewarded: bool, now: u64) {
        let Some(hot) = self.hot(index).filter(|_| load != LoadReport::default()) else { return };
        let (segment, offset) = segment_of(index);
        if let Some(reports) = self.reports.get(segment) {
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

    /// Takes the endpoints that this client keeps to, with their weights, and gives those that are new a load to begin
    /// with (Uber, assisted balancing): as much above the mean as the rule says. It ages like a report, so a window of time is needed nowhere.
    ///
    /// From now on, answers are learnt from by this rule. Called once for each snapshot; an endpoint is new until a pick has
    /// looked at it.
    pub fn set_members(&self, members: &[(u32, u32)], config: &BalancerConfig) {
        let previous =
            std::mem::replace(&mut *self.config.write().unwrap_or_else(PoisonError::into_inner), *config);
        if previous.policy() != config.policy() {
            // What one policy keeps of an endpoint means nothing to another.
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

    /// Sets the first turn, which should differ between callers.
    pub fn start_round_robin_at(&self, counter: u32) {
        self.round_robin.store(counter, Relaxed);
    }

    /// The rule of the newest snapshot.
    pub fn config(&self) -> BalancerConfig {
        *self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many endpoints failures are held against.
    #[inline]
    pub(crate) fn suspects(&self) -> u32 {
        self.suspects.load(Relaxed)
    }

    /// Whether nothing is under way at `index`.
    pub(crate) fn is_idle(&self, index: u32) -> bool {
        self.hot(index).is_none_or(HotStats::is_idle)
    }

    /// Keeps how long the server at `index` took for an answer that came at `now`, in nanoseconds; only
    /// [`BalancingPolicy::PeakEwma`] goes by it.
    ///
    /// A latency above what is known counts at once, one below moves it by the part that the time since then is of a
    /// half-life.
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

    /// The next call's number in turn.
    #[inline]
    pub(crate) fn round_robin_counter(&self) -> u32 {
        self.round_robin.load(Relaxed)
    }

    /// Counts a call that was chosen in turn.
    #[inline]
    pub fn advance_round_robin(&self) {
        self.round_robin.fetch_add(1, Relaxed);
    }

    /// What the server at `index` last said of its load, and when.
    #[inline]
    pub fn last_report(&self, index: u32) -> Option<ReceivedReport> {
        self.report_cell(index)?.get()
    }

    #[inline]
    fn report_cell(&self, index: u32) -> Option<&ReportCell> {
        let (segment, offset) = segment_of(index);
        self.reports.get(segment)?.get()?.get(offset)
    }

    /// Forgets what the instance that had `index` before said and did.
    pub(crate) fn reset(&self, index: u32) {
        self.clear_failures(index);
        if let Some(hot) = self.hot(index) {
            hot.reset();
        }
        if let Some(cell) = self.report_cell(index) {
            cell.clear();
        }
    }

    /// Forgets the failures at `index`.
    #[cold]
    pub(crate) fn clear_failures(&self, index: u32) {
        let (Some(hot), Some(outlier)) = (self.hot(index), self.outlier(index)) else { return };
        outlier.reset();
        if hot.set_suspect(false) {
            self.suspects.fetch_sub(1, Relaxed);
        }
    }

    /// Counts a good answer of an endpoint that has failures.
    #[cold]
    fn record_success(&self, index: u32) {
        let config = self.config();
        if self.outlier(index).is_some_and(|outlier| outlier.record_success(&config)) {
            self.clear_failures(index);
        }
    }

    #[cold]
    fn record_failure(&self, hot: &HotStats, index: u32, outcome: Outcome, now: u64) {
        let Some(outlier) = self.outlier(index) else { return };
        let config = &self.config();
        if hot.set_suspect(true) {
            self.suspects.fetch_add(1, Relaxed);
        }
        outlier.record_failure(outcome, now, config);
        if let Some(rate) = outlier.failure_rate(config) {
            // Those without failures have a share of none, and there is no need to have counted their answers.
            let known = self.outliers.iter().filter_map(OnceLock::get).flatten();
            let rates: u64 = known.filter_map(|other| other.failure_rate(config)).sum();
            let others = u64::from(self.pool_means.members()).saturating_sub(1);
            outlier.compare_failure_rate(rate, (rates - rate.min(rates), others), now, config);
        }
    }

    /// Leaves an endpoint alone for a moment that has no room. Without that, who refuses at once would look idle.
    #[cold]
    fn record_overload(&self, hot: &HotStats, index: u32, now: u64) {
        let Some(outlier) = self.outlier(index) else { return };
        if hot.set_suspect(true) {
            self.suspects.fetch_add(1, Relaxed);
        }
        outlier.record_overload(now);
    }

    #[inline]
    pub(crate) fn hot(&self, index: u32) -> Option<&HotStats> {
        // First without arithmetic: a usual subset has its slots there, and every pick waits for this.
        self.first.get(index as usize).or_else(|| {
            let (segment, offset) = segment_of(index);
            self.further.get(segment.checked_sub(1)?)?.get()?.get(offset)
        })
    }

    pub(crate) fn outlier(&self, index: u32) -> Option<&OutlierState> {
        let (segment, offset) = segment_of(index);
        self.outliers.get(segment)?.get()?.get(offset)
    }

    /// Makes sure that there is a slot at `index`, below 2^31.
    pub(crate) fn ensure(&self, index: u32) {
        let (segment, _) = segment_of(index);
        let len = FIRST_SEGMENT << segment;
        self.outliers[segment].get_or_init(|| (0..len).map(|_| OutlierState::default()).collect());
        if let Some(further) = segment.checked_sub(1) {
            self.further[further].get_or_init(|| (0..len).map(|_| HotStats::default()).collect());
        }
    }
}

/// Segment `s` holds `FIRST_SEGMENT << s` slots and starts at index `FIRST_SEGMENT * (2^s - 1)`.
#[inline]
fn segment_of(index: u32) -> (usize, usize) {
    let shifted = index as usize + FIRST_SEGMENT;
    let segment = (shifted.ilog2() - FIRST_SEGMENT.ilog2()) as usize;
    (segment, shifted - (FIRST_SEGMENT << segment))
}

#[cfg(test)]
mod tests;
