//! Counts of calls as processes report them, and views of them for operators.

use std::{
    cmp::Reverse,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_call_history::{CallHistory, HistoryLimits, RowSum};
use fairmesh_model::{CountReport, ServiceName, Tenant};
use fairmesh_signals::{CountInbox, IDLE_INTERVAL_MS, REPORT_INTERVAL_MS, SumLimits};
use fairmesh_wire::{convert::counts, v1};
use prost::Message as _;

use crate::monotonic_clock::MonotonicClock;

/// How long processes report at the short interval after a look.
const LOOK_MS: u64 = 60_000;
/// The window of a request without one.
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);
/// The longest window.
const MAX_WINDOW: Duration = Duration::from_secs(3_600);
/// Bytes of the rows of a response, which a message has room for.
const MAX_ROWS_BYTES: usize = 3 << 20;
/// The most rows of denied calls in a response.
const MAX_DENIED: usize = 1_024;

/// The history of calls of the whole mesh.
#[derive(Debug)]
pub(crate) struct CallViews {
    clock: MonotonicClock,
    began_ms: u64,
    taken: Mutex<Taken>,
    looked_until_ms: AtomicU64,
}

#[derive(Debug)]
struct Taken {
    inbox: CountInbox,
    history: CallHistory,
}

/// Which calls a view has.
#[derive(Clone, Debug)]
pub(crate) enum CallScope {
    All,
    /// From and to services of a tenant.
    Tenant(Tenant),
    /// From and to a service.
    Service(ServiceName),
}

impl CallScope {
    fn has(&self, service: &ServiceName) -> bool {
        match self {
            Self::All => true,
            Self::Tenant(tenant) => service.tenant == *tenant,
            Self::Service(name) => name == service,
        }
    }
}

impl CallViews {
    /// History begins now.
    pub(crate) fn new(clock: MonotonicClock) -> Self {
        let history = CallHistory::new(HistoryLimits::CONTROL_PLANE);
        let taken = Mutex::new(Taken { inbox: CountInbox::new(SumLimits::TREE.reporters), history });
        Self { clock, began_ms: clock.now_ms(), taken, looked_until_ms: AtomicU64::new(0) }
    }

    /// Takes a report. The response says when its sender should report again.
    pub(crate) fn record(&self, report: CountReport) -> v1::ReportSignalsResponse {
        let now_ms = self.clock.now_ms();
        let mut taken = self.taken();
        if taken.inbox.is_new(&report, now_ms) {
            taken.history.leave_out(report.left_out);
            for interval in report.intervals {
                taken.history.record(interval, now_ms);
            }
        }
        let is_looked_at = now_ms < self.looked_until_ms.load(Relaxed);
        let next = if is_looked_at { REPORT_INTERVAL_MS } else { IDLE_INTERVAL_MS };
        v1::ReportSignalsResponse { next_report_ms: next as u32, ..Default::default() }
    }

    /// The calls of a scope over a window. Processes report more often from now on, for a minute.
    pub(crate) fn read(&self, scope: &CallScope, window_s: u32, has_series: bool) -> v1::ReadCallsResponse {
        let now_ms = self.clock.now_ms();
        self.looked_until_ms.fetch_max(now_ms.saturating_add(LOOK_MS), Relaxed);
        let window = match window_s {
            0 => DEFAULT_WINDOW,
            seconds => Duration::from_secs(seconds.into()).min(MAX_WINDOW),
        };
        let taken = self.taken();
        let history = &taken.history;
        let (mut sums, other) = history.read(window, now_ms, |path| {
            scope.has(&path.service) || path.caller.as_ref().is_some_and(|caller| scope.has(caller))
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
        let denied = history.denied(window, now_ms).filter(|(path, _)| scope.has(&path.service));
        v1::ReadCallsResponse {
            not_shown: u32::try_from(found - rows.len()).unwrap_or(u32::MAX),
            rows,
            other: other.filter(|_| matches!(scope, CallScope::All)).map(|sum| write(sum, has_series)),
            history_ms: now_ms.saturating_sub(self.began_ms),
            left_out: history.left_out(),
            denied: most_denied(denied.map(|(path, count)| counts::write_denied(path, count)).collect()),
            step_ms: u32::try_from(CallHistory::step(window).as_millis()).unwrap_or(u32::MAX),
        }
    }

    /// Paths, bytes and reporters of the history.
    pub(super) fn size(&self) -> (usize, usize, usize) {
        let taken = self.taken();
        (taken.history.rows(), taken.history.bytes(), taken.inbox.reporters())
    }

    /// Each of the values is consistent at any time.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn most_denied(mut denied: Vec<v1::DeniedCalls>) -> Vec<v1::DeniedCalls> {
    denied.sort_by_key(|row| Reverse(row.count));
    denied.truncate(MAX_DENIED);
    denied
}

fn write(sum: RowSum<'_>, has_series: bool) -> v1::CallsRow {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let calls = match sum.path {
        Some(path) => counts::write_calls(path, &sum.counts),
        None => counts::write_counts(&sum.counts),
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
    use fairmesh_model::{CallCounts, CountedBy, CountedInterval, CountedPath, DeniedPath};

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
            (DeniedPath { service: name(service), caller: None, rule: None, is_audit: true }, 2)
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

    #[tokio::test(start_paused = true)]
    async fn view_has_the_calls_of_its_scope_and_each_report_once() {
        let views = CallViews::new(MonotonicClock::start());
        assert_eq!(views.record(report(1)).next_report_ms, IDLE_INTERVAL_MS as u32);
        views.record(report(1));
        let read = |scope| {
            let view = views.read(&scope, 0, false);
            let calls = view.rows.iter().map(|row| row.calls.as_ref().unwrap().calls);
            (calls.collect::<Vec<_>>(), view.denied.len())
        };
        assert_eq!(read(CallScope::All), (vec![9, 4, 2], 2));
        assert_eq!(read(CallScope::Tenant(name("shop/any").tenant)), (vec![4, 2], 1));
        assert_eq!(read(CallScope::Service(name("shop/web"))), (vec![4], 0));
        assert_eq!(
            views.record(report(2)).next_report_ms,
            REPORT_INTERVAL_MS as u32,
            "since it is looked at"
        );
        assert_eq!(read(CallScope::All), (vec![18, 8, 4], 2));
    }
}
