//! Counts of calls as processes report them, and operators' views of these counts.

use std::{
    cmp::Reverse,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_call_history::{CallHistory, HistoryLimits, RegionSteps, RowSum};
use fairmesh_controllers::MonotonicClock;
use fairmesh_model::{CallCounts, CountReport, CountedBy, CpuBy, CpuPath, Egress, Region, ServiceName};
use fairmesh_planner::EgressTotals;
use fairmesh_signals::{CountInbox, IDLE_INTERVAL_MS, REPORT_INTERVAL_MS, ReportSource, SumLimits};
use fairmesh_views::Scope;
use fairmesh_wire::{convert::call_counts, v1};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::attributed_cpu::{self, CostTotals};

/// Time for which processes report at the short interval after an operator viewed calls, in milliseconds.
const LOOK_MS: u64 = 60_000;
/// Window of a request that gives none, in seconds.
const DEFAULT_WINDOW_S: u32 = 60;
/// Maximum window, in seconds.
const MAX_WINDOW_S: u32 = 3_600;
/// Maximum bytes of the rows in a response, so that it fits in a message.
const MAX_ROWS_BYTES: usize = 3 << 20;
/// Time for which a view is reused for further requests, in milliseconds.
const VIEW_MS: u64 = 1_000;
/// Maximum number of cached views.
const MAX_VIEWS: usize = 8;
/// Maximum number of rows of denied calls in a response.
const MAX_DENIED: usize = 1_024;

/// The call history of the whole mesh.
#[derive(Debug)]
pub(crate) struct CallViews {
    clock: MonotonicClock,
    began_ms: u64,
    taken: Mutex<Taken>,
    looked_until_ms: AtomicU64,
    /// The last views, so that many operators cost no more than one.
    views: Mutex<Vec<(View, u64, v1::ReadCallsResponse)>>,
    /// Semaphore with one permit: one report is recorded at a time.
    turn: Arc<Semaphore>,
}

/// Key of a view: the services from and to which it has calls, its window in seconds, and whether it has series.
type View = (Scope, u32, bool);

#[derive(Debug)]
struct Taken {
    inbox: CountInbox,
    history: CallHistory,
    egress: EgressTotals,
    cost: CostTotals,
}

impl CallViews {
    /// Creates an empty history that starts now.
    pub(crate) fn new(clock: MonotonicClock) -> Self {
        let history = CallHistory::new(HistoryLimits::CONTROL_PLANE);
        let inbox = CountInbox::new(SumLimits::TREE);
        let taken = Mutex::new(Taken {
            inbox,
            history,
            egress: EgressTotals::default(),
            cost: CostTotals::default(),
        });
        let looked_until_ms = AtomicU64::new(0);
        Self {
            clock,
            began_ms: clock.now_ms(),
            taken,
            looked_until_ms,
            views: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for the permit to record a report. Hold the permit while [`record`](Self::record) runs: each `record`
    /// that waits for a view blocks a thread.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.turn).acquire_owned().await.ok()
    }

    /// Records a report of `source`. `prices` are egress prices between known regions. The response says when the sender should
    /// report again. Blocks while a view is read.
    pub(crate) fn record(
        &self,
        source: &ReportSource,
        report: CountReport,
        prices: &Egress,
        is_known: impl Fn(&Region) -> bool,
    ) -> v1::ReportSignalsResponse {
        let now_ms = self.clock.now_ms();
        let mut guard = self.taken();
        let taken = &mut *guard;
        if taken.inbox.is_new(source, &report, now_ms) {
            taken.history.leave_out(report.left_out);
            for interval in report.intervals {
                for (path, counts) in &interval.calls {
                    taken.egress.add(path, counts, prices, &is_known);
                }
                taken.cost.add(&interval);
                taken.history.record(interval, now_ms);
            }
        }
        let is_looked_at = now_ms < self.looked_until_ms.load(Relaxed);
        let next = if is_looked_at { REPORT_INTERVAL_MS } else { IDLE_INTERVAL_MS };
        v1::ReportSignalsResponse { next_report_ms: next as u32, ..Default::default() }
    }

    /// Returns the calls of a scope over a window, at most a second old. For the next minute, processes report more
    /// often. Takes up to a tenth of a second in a large mesh, so do not call it on threads that serve connections.
    pub(crate) fn read(&self, (scope, window_s, has_series): View) -> v1::ReadCallsResponse {
        let view = (scope, whole_steps(window_s), has_series);
        let now_ms = self.clock.now_ms();
        self.looked_until_ms.fetch_max(now_ms.saturating_add(LOOK_MS), Relaxed);
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.retain(|(_, at_ms, _)| now_ms.saturating_sub(*at_ms) < VIEW_MS);
        if let Some((_, _, known)) = views.iter().find(|(known, _, _)| *known == view) {
            return known.clone();
        }
        let response = self.read_anew(&view, now_ms);
        if views.len() < MAX_VIEWS {
            views.push((view, now_ms, response.clone()));
        }
        response
    }

    fn read_anew(&self, (scope, window_s, has_series): &View, now_ms: u64) -> v1::ReadCallsResponse {
        let (window, has_series) = (Duration::from_secs((*window_s).into()), *has_series);
        let taken = self.taken();
        let history = &taken.history;
        let (mut sums, other) = history.read(window, now_ms, |path| {
            scope.contains(&path.service) || path.caller.as_ref().is_some_and(|caller| scope.contains(caller))
        });
        sums.sort_unstable_by_key(|row| (Reverse(row.counts.calls()), row.path));
        let found = sums.len();
        let mut room = MAX_ROWS_BYTES;
        let rows = sums.into_iter().map(|sum| write(sum, has_series)).take_while(|row| {
            let is_within = row.encoded_len() <= room;
            room = room.saturating_sub(row.encoded_len());
            is_within
        });
        let rows: Vec<_> = rows.collect();
        v1::ReadCallsResponse {
            not_shown: u32::try_from(found - rows.len()).unwrap_or(u32::MAX),
            rows,
            other: other.filter(|_| matches!(scope, Scope::All)).map(|sum| write(sum, has_series)),
            history_ms: now_ms.saturating_sub(self.began_ms),
            left_out: history.left_out(),
            denied: most_denied(history, scope, (window, now_ms)).map(|(row, _)| row).collect(),
            step_ms: u32::try_from(CallHistory::step(window).as_millis()).unwrap_or(u32::MAX),
        }
    }

    /// Calls that rules do not allow, with the number of minutes since the last one.
    pub(crate) fn denied(&self, scope: &Scope, window: Duration) -> Vec<(v1::DeniedCalls, u64)> {
        most_denied(&self.taken().history, scope, (window, self.clock.now_ms())).collect()
    }

    /// The CPU of a service over a window in seconds, by caller or by origin.
    pub(crate) fn cost(&self, service: &ServiceName, by: CpuBy, window_s: u32) -> v1::ReadCostResponse {
        let now_ms = self.clock.now_ms();
        let taken = self.taken();
        let is_selected = |path: &CpuPath| path.service == *service && path.by == by;
        let cpu = taken.history.cpu(attributed_cpu::window(window_s), now_ms, is_selected);
        v1::ReadCostResponse {
            rows: attributed_cpu::rows(cpu),
            history_ms: now_ms.saturating_sub(self.began_ms),
        }
    }

    /// Total CPU by caller and service.
    pub(super) fn cost_totals(&self) -> CostTotals {
        self.taken().cost.clone()
    }

    /// Total bytes between regions, and their cost.
    pub(super) fn egress(&self) -> EgressTotals {
        self.taken().egress.clone()
    }

    /// Calls to a service in each step of the last `window`, as counted by its callers, or by its servers if callers
    /// counted none.
    pub(crate) fn steps(
        &self,
        service: &ServiceName,
        window: Duration,
    ) -> Vec<Option<(CallCounts, Duration)>> {
        let (now_ms, history) = (self.clock.now_ms(), &self.taken().history);
        let counted_by = |by| history.steps(window, now_ms, |path| path.service == *service && path.by == by);
        let by_callers = counted_by(CountedBy::Caller);
        if by_callers.iter().any(Option::is_some) { by_callers } else { counted_by(CountedBy::Server) }
    }

    /// Calls between regions to the services of a scope, in each step of the last `window`.
    pub(crate) fn region_steps(&self, scope: &Scope, window: Duration) -> RegionSteps {
        let now_ms = self.clock.now_ms();
        self.taken().history.region_steps(window, now_ms, |service| scope.contains(service))
    }

    /// Number of paths, bytes and reporters in the history.
    pub(super) fn size(&self) -> (usize, usize, usize) {
        let taken = self.taken();
        (taken.history.rows(), taken.history.bytes(), taken.inbox.reporters())
    }

    /// Locks the state and ignores poisoning, since its values are consistent at any time.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a window in seconds, rounded up to whole steps: windows with the same steps share a view.
fn whole_steps(window_s: u32) -> u32 {
    let window_s = if window_s == 0 { DEFAULT_WINDOW_S } else { window_s.min(MAX_WINDOW_S) };
    let step = CallHistory::step(Duration::from_secs(window_s.into())).as_secs();
    window_s.next_multiple_of(u32::try_from(step).unwrap_or(1).max(1))
}

/// The most frequent denied calls to services of a scope, with the number of minutes since the last one.
fn most_denied(
    history: &CallHistory,
    scope: &Scope,
    (window, now_ms): (Duration, u64),
) -> impl Iterator<Item = (v1::DeniedCalls, u64)> {
    let denied = history.denied(window, now_ms).filter(|(path, ..)| scope.contains(&path.service));
    let rows = denied.map(|(path, count, minutes)| (call_counts::write_denied(path, count), minutes));
    let mut denied: Vec<_> = rows.collect();
    denied.sort_by_key(|(row, _)| Reverse(row.count));
    denied.into_iter().take(MAX_DENIED)
}

fn write(sum: RowSum<'_>, has_series: bool) -> v1::CallsRow {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let calls = match sum.path {
        Some(path) => call_counts::write_calls(path, &sum.counts),
        None => call_counts::write_counts(&sum.counts),
    };
    let step = |calls: Option<u64>| calls.map_or(-1, |calls| i64::try_from(calls).unwrap_or(i64::MAX));
    v1::CallsRow {
        calls: Some(calls),
        covered_ms: millis(sum.covered),
        age_ms: millis(sum.age),
        series: if has_series { sum.series.into_iter().map(step).collect() } else { Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{CountedInterval, CountedPath, DeniedPath};

    use super::*;

    fn name(text: &str) -> ServiceName {
        ServiceName::new(text).unwrap()
    }

    fn report(number: u64) -> CountReport {
        let row = |caller: &str, service: &str, calls| {
            let path = CountedPath {
                service: name(service),
                caller: Some(name(caller)),
                by: CountedBy::Caller,
                class: None,
                from: None,
                to: None,
                from_zone: None,
                to_zone: None,
            };
            (path, CallCounts::ZERO.with_totals([calls, 0, 0, 0, 0]))
        };
        let denied = |service: &str| {
            let (method, path) = ("GET".to_owned(), "/items".to_owned());
            (DeniedPath { service: name(service), caller: None, rule: None, is_audit: true, method, path }, 2)
        };
        let interval = CountedInterval {
            span: Duration::from_secs(1),
            calls: [
                row("shop/web", "shop/cart", 4),
                row("ads/bid", "shop/cart", 2),
                row("ads/bid", "ads/db", 9),
            ]
            .into(),
            denied: [denied("shop/cart"), denied("ads/db")].into(),
            ..CountedInterval::default()
        };
        CountReport { reporter: 1, number, intervals: vec![interval], left_out: 0 }
    }

    #[test]
    fn call_windows_are_rounded_up_to_shared_history_steps() {
        assert_eq!([0, 1, 10, 11, 599, 601, 9_999].map(whole_steps), [60, 10, 10, 20, 600, 660, 3_600]);
    }

    #[tokio::test(start_paused = true)]
    async fn call_view_has_calls_of_its_scope_and_counts_each_report_once() {
        let views = CallViews::new(MonotonicClock::start());
        // Not at the boundary of a minute: reports are of the time before.
        tokio::time::advance(Duration::from_secs(30)).await;
        let record = |report| views.record(&ReportSource::of_mesh(), report, &Egress::default(), |_| true);
        assert_eq!(record(report(1)).next_report_ms, IDLE_INTERVAL_MS as u32);
        record(report(1));
        let read = |scope| {
            let view = views.read((scope, 0, false));
            let calls = view.rows.iter().map(|row| row.calls.as_ref().unwrap().calls);
            (calls.collect::<Vec<_>>(), view.denied.len())
        };
        assert_eq!(read(Scope::All), (vec![9, 4, 2], 2));
        assert_eq!(read(Scope::Tenant(name("shop/any").tenant)), (vec![4, 2], 1));
        assert_eq!(read(Scope::Service(name("shop/web"))), (vec![4], 0));
        let last = views.denied(&Scope::Service(name("shop/cart")), Duration::from_secs(60));
        assert_eq!((last.len(), last[0].1), (1, 0), "in this minute");
        assert_eq!(record(report(2)).next_report_ms, REPORT_INTERVAL_MS as u32, "since it is looked at");
        assert_eq!(read(Scope::All), (vec![9, 4, 2], 2), "a view answers for a second");
        tokio::time::advance(Duration::from_millis(VIEW_MS)).await;
        assert_eq!(read(Scope::All), (vec![18, 8, 4], 2));
    }
}
