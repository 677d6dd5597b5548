//! Counters of requests to the program behind a proxy, by caller.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::ServiceName;
use fairmesh_metrics::{CallOutcome, CallRow, CallSeries, UNKNOWN};
use fairmesh_model::{CallerId, SpiffePath};
use http::StatusCode;
use tokio::time::Instant;

use crate::observe::{grpc_status::GrpcStatusCounts, response_metrics::RegionMetrics};

/// Maximum number of callers that have their own series. Further callers are counted together.
const MAX_CALLERS: usize = 64;
/// Time for which a caller's series are kept without a request. It exceeds any scrape interval, and the pauses of
/// callers that call every few minutes, whose counters would otherwise restart each time.
const MAX_IDLE: Duration = Duration::from_secs(3600);
/// Caller labels that are not names: accepted requests without an identity, refused requests of callers
/// without a series, and callers beyond the maximum.
const ANONYMOUS: &str = "(none)";
const REFUSED: &str = "(refused)";
const OVERFLOW: &str = "(other)";

/// Caller of a request, by the identity that it proved or that an intermediary stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedCaller {
    id: String,
    label: String,
}

impl ServedCaller {
    /// Returns a caller with a verified identity. Its label is its service, `fairmesh/ROLE` for a process of the mesh
    /// (because each machine has one), or the full id for a caller of another trust domain.
    pub fn new(caller: &CallerId) -> Self {
        let label = match &caller.id().path {
            _ if caller.is_federated() => caller.as_str().to_owned(),
            SpiffePath::Service(_) => caller.path().to_owned(),
            SpiffePath::Mesh(role, _) => format!("fairmesh/{}", role.as_str()),
        };
        Self { id: caller.as_str().to_owned(), label }
    }

    /// The full SPIFFE id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }
}

/// Counts requests by caller. Only accepted callers get their own series, so that no peer can create series. A series
/// ends after an hour without a request.
#[derive(Debug)]
pub struct ServedMetrics {
    pub(crate) service: String,
    began: Instant,
    anonymous: Arc<CallerSeries>,
    refused: Arc<CallerSeries>,
    overflow: Arc<CallerSeries>,
    callers: RwLock<BTreeMap<String, Arc<CallerSeries>>>,
}

/// The requests of one caller.
#[derive(Debug, Default)]
pub(crate) struct CallerSeries {
    pub(crate) responses: RegionMetrics,
    pub(crate) grpc_statuses: GrpcStatusCounts,
    /// Durations of calls, by outcome.
    pub(crate) durations: CallSeries,
    /// Bytes of request bodies and of response bodies.
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Time of the last use, in seconds since the metrics were created.
    used: AtomicU64,
}

impl ServedMetrics {
    /// Creates counters at zero.
    pub fn new(service: &ServiceName) -> Self {
        let [anonymous, refused, overflow] = [(); 3].map(|()| Arc::default());
        let callers = RwLock::default();
        Self { service: service.to_string(), began: Instant::now(), anonymous, refused, overflow, callers }
    }

    /// Counts a response of the program that no proxy in front of it has seen. `took` is the time to its headers.
    pub fn record_unseen(
        &self,
        caller: &ServedCaller,
        (method, status): (&'static str, StatusCode),
        took: Duration,
    ) {
        let series = self.accepted(Some(caller));
        series.responses.record(status, took);
        let outcome = CallOutcome::Http { method, status: status.as_u16() };
        series.durations.record(None, outcome, took, None);
    }

    /// The series of an accepted caller; with `None`, of accepted requests without an identity.
    pub(crate) fn accepted(&self, caller: Option<&ServedCaller>) -> Arc<CallerSeries> {
        let Some(caller) = caller else { return Arc::clone(&self.anonymous) };
        if let Some(known) = self.find(caller) {
            return known;
        }
        let now = self.now();
        // No code that holds the lock panics.
        let mut callers = self.callers.write().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, series| series.is_used(now));
        if callers.len() >= MAX_CALLERS && !callers.contains_key(caller.label()) {
            return Arc::clone(&self.overflow);
        }
        let series = callers.entry(caller.label().to_owned()).or_default();
        series.used.store(now, Relaxed);
        Arc::clone(series)
    }

    /// The series of a refused request: its caller's, if earlier requests of the caller were accepted, otherwise the
    /// common series.
    pub(crate) fn refused(&self, caller: Option<&ServedCaller>) -> Arc<CallerSeries> {
        caller.and_then(|caller| self.find(caller)).unwrap_or_else(|| Arc::clone(&self.refused))
    }

    fn find(&self, caller: &ServedCaller) -> Option<Arc<CallerSeries>> {
        let callers = self.callers.read().unwrap_or_else(PoisonError::into_inner);
        let known = callers.get(caller.label())?;
        known.used.store(self.now(), Relaxed);
        Some(Arc::clone(known))
    }

    /// All series in use, with their labels.
    pub(crate) fn series(&self) -> Vec<(String, Arc<CallerSeries>)> {
        let now = self.now();
        let mut callers = self.callers.write().unwrap_or_else(PoisonError::into_inner);
        callers.retain(|_, series| series.is_used(now));
        let reserved = [(ANONYMOUS, &self.anonymous), (REFUSED, &self.refused), (OVERFLOW, &self.overflow)];
        let reserved = reserved.into_iter().filter(|(_, series)| series.responses.count() > 0);
        let reserved = reserved.map(|(label, series)| (label.to_owned(), Arc::clone(series)));
        reserved.chain(callers.iter().map(|(label, series)| (label.clone(), Arc::clone(series)))).collect()
    }

    /// Durations of calls, by the OpenTelemetry semantic conventions.
    pub fn call_rows(&self) -> Vec<CallRow> {
        let series = self.series();
        let rows = series.iter().flat_map(|(label, series)| {
            let caller = if label == ANONYMOUS { UNKNOWN } else { label };
            series.durations.rows(caller, &self.service).collect::<Vec<_>>()
        });
        rows.collect()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_secs()
    }
}

impl CallerSeries {
    /// Whether the series is kept. The caller of this function holds the write lock, so only requests in flight can
    /// hold other references to the series. Such requests still count when they end, however late.
    fn is_used(self: &Arc<Self>, now: u64) -> bool {
        if Arc::strong_count(self) > 1 {
            self.used.store(now, Relaxed);
        }
        now.saturating_sub(self.used.load(Relaxed)) < MAX_IDLE.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(id: &str) -> ServedCaller {
        ServedCaller::new(&CallerId::new(id.parse().unwrap()))
    }

    fn metrics() -> ServedMetrics {
        ServedMetrics::new(&ServiceName::new("shop/cart").unwrap())
    }

    fn call(series: &CallerSeries) {
        series.responses.record(StatusCode::OK, Duration::ZERO);
    }

    fn labels(metrics: &ServedMetrics) -> Vec<String> {
        metrics.series().into_iter().map(|(label, _)| label).collect()
    }

    #[test]
    fn callers_beyond_maximum_share_one_metric_series() {
        let metrics = metrics();
        for number in 0..MAX_CALLERS + 3 {
            call(&metrics.accepted(Some(&caller(&format!("spiffe://prod/shop/caller-{number}")))));
        }
        call(&metrics.accepted(Some(&caller("spiffe://prod/shop/caller-0"))));
        let series = metrics.series();
        assert_eq!(series.len(), MAX_CALLERS + 1);
        let count = |label: &str| series.iter().find(|one| one.0 == label).unwrap().1.responses.count();
        assert_eq!((count("shop/caller-0"), count(OVERFLOW)), (2, 3));
    }

    #[test]
    fn refused_callers_get_no_metric_series_of_their_own() {
        let metrics = metrics();
        let (known, stranger) = (caller("spiffe://prod/shop/web"), caller("spiffe://prod/shop/stranger"));
        call(&metrics.accepted(Some(&known)));
        for refused in [Some(&stranger), None, Some(&known)] {
            call(&metrics.refused(refused));
        }
        let series = metrics.series();
        let counts: Vec<_> =
            series.iter().map(|(label, series)| (&**label, series.responses.count())).collect();
        assert_eq!(counts, [(REFUSED, 2), ("shop/web", 2)]);
    }

    #[test]
    fn caller_labels_distinguish_trust_domains_but_not_machines() {
        let id = |text: &str| text.parse().unwrap();
        let partner = ServedCaller::new(&CallerId::federated(id("spiffe://partner/shop/web")));
        assert_eq!(partner.label(), "spiffe://partner/shop/web");
        assert_eq!(caller("spiffe://prod/shop/web").label(), "shop/web");
        assert_eq!(caller("spiffe://prod/fairmesh/agent/web-1").label(), "fairmesh/agent");
    }

    #[tokio::test(start_paused = true)]
    async fn metric_series_of_silent_caller_expires() {
        let metrics = metrics();
        let (silent, busy) = (caller("spiffe://prod/shop/silent"), caller("spiffe://prod/shop/busy"));
        [&silent, &busy].into_iter().for_each(|caller| call(&metrics.accepted(Some(caller))));
        tokio::time::advance(MAX_IDLE / 2).await;
        call(&metrics.accepted(Some(&busy)));
        tokio::time::advance(MAX_IDLE / 2).await;
        assert_eq!(labels(&metrics), ["shop/busy"]);
    }

    #[tokio::test(start_paused = true)]
    async fn metric_series_with_request_in_flight_does_not_expire() {
        let metrics = metrics();
        let stream = metrics.accepted(Some(&caller("spiffe://prod/shop/stream")));
        call(&stream);
        tokio::time::advance(MAX_IDLE * 2).await;
        assert_eq!(labels(&metrics), ["shop/stream"]);
        stream.sent.fetch_add(7, Relaxed);
        drop(stream);
        tokio::time::advance(MAX_IDLE / 2).await;
        assert_eq!(metrics.series()[0].1.sent.load(Relaxed), 7);
        tokio::time::advance(MAX_IDLE / 2).await;
        assert!(metrics.series().is_empty());
    }
}
