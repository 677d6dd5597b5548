//! Records of recent requests and their routing decisions: for each service at most one request every 100 ms.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{
    ServiceName,
    observe::{AttemptRecord, Step},
};
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use crate::observe::{
    access_log::entry::{millis, seconds},
    request_info::{RequestInfo, RequestOutcome},
};

/// Minimum interval between recorded requests of a service.
const SAMPLE_INTERVAL_MS: u64 = 100;
/// Maximum number of records for all services together, besides the last record of each labelled service.
const MAX_RECORDS: usize = 128;
/// Maximum length of a decision step in bytes. Longer lists of regions or candidates are cut off.
const MAX_DETAIL: usize = 600;

/// The last recorded request of a service.
#[derive(Debug, Default)]
pub struct LastRequest {
    /// Time from which on the next request is recorded, in milliseconds since the start of the proxy.
    due: AtomicU64,
    record: Mutex<Option<Arc<RequestRecord>>>,
}

/// The last recorded requests of all services.
#[derive(Debug)]
pub struct RecentRequests {
    start: Instant,
    records: Mutex<VecDeque<Arc<RequestRecord>>>,
}

/// A request, its routing decision and its outcome.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRecord {
    /// Seconds since the Unix epoch, with milliseconds.
    pub time: f64,
    /// The called service.
    pub service: String,
    method: String,
    path: String,
    caller: String,
    status: u16,
    ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    reasons: Vec<DecisionStep>,
    attempts: Vec<AttemptEntry>,
}

/// A step of the routing decision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DecisionStep {
    step: &'static str,
    detail: String,
}

/// An attempt of a recorded request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttemptEntry {
    service: String,
    instance: String,
    address: String,
    region: String,
    /// Revision of the records by which the attempt was routed.
    revision: u64,
    ms: f64,
    outcome: String,
}

impl RecentRequests {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), records: Mutex::default() }
    }

    /// Whether to record a request of the service that begins at `now`.
    #[inline]
    pub(crate) fn is_due(&self, last: &LastRequest, now: Instant) -> bool {
        let ms = now.saturating_duration_since(self.start).as_millis() as u64;
        let due = last.due.load(Relaxed);
        // Only one of several simultaneous requests wins.
        ms >= due && last.due.compare_exchange(due, ms + SAMPLE_INTERVAL_MS, Relaxed, Relaxed).is_ok()
    }

    /// Whether [`is_due`](Self::is_due) may return `true`.
    #[inline]
    pub(crate) fn may_be_due(&self, last: &LastRequest, now: Instant) -> bool {
        now.saturating_duration_since(self.start).as_millis() as u64 >= last.due.load(Relaxed)
    }

    pub(crate) fn insert(
        &self,
        service: &ServiceName,
        last: Option<&LastRequest>,
        request: &RequestInfo,
        outcome: &RequestOutcome,
    ) {
        let record = Arc::new(RequestRecord::of(service, request, outcome));
        if let Some(last) = last {
            *last.record.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&record));
        }
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.truncate(MAX_RECORDS - 1);
        records.push_front(record);
    }

    /// All records, newest first.
    pub fn all(&self) -> Vec<Arc<RequestRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl LastRequest {
    /// The last recorded request, if there is one.
    pub fn record(&self) -> Option<Arc<RequestRecord>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RequestRecord {
    fn of(service: &ServiceName, request: &RequestInfo, outcome: &RequestOutcome) -> Self {
        Self {
            time: seconds(request.time),
            service: service.to_string(),
            method: request.method.to_string(),
            path: request.path().to_owned(),
            caller: request.caller.to_string(),
            status: outcome.status.as_u16(),
            ms: millis(outcome.took),
            fault: outcome.message.clone(),
            reasons: outcome.decision_steps.iter().map(DecisionStep::of).collect(),
            attempts: outcome.attempt_log.iter().map(AttemptEntry::of).collect(),
        }
    }
}

impl DecisionStep {
    fn of(step: &Step) -> Self {
        let mut detail: String = step.detail.chars().take(MAX_DETAIL).collect();
        if detail.len() < step.detail.len() {
            detail.push('…');
        }
        Self { step: step.title, detail }
    }
}

impl AttemptEntry {
    fn of(tried: &AttemptRecord) -> Self {
        let endpoint = &tried.endpoint;
        Self {
            service: tried.service.to_string(),
            instance: endpoint.instance.to_string(),
            address: endpoint.address.to_string(),
            region: endpoint.location.region.to_string(),
            revision: tried.revision,
            ms: millis(tried.took),
            outcome: tried.outcome.as_ref().map_or_else(Clone::clone, |status| status.as_u16().to_string()),
        }
    }
}

impl fmt::Display for RequestRecord {
    /// Writes one line for the request, and one for each step and each attempt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, method, path, caller, status, ms, .. } = self;
        let time = Timestamp::from_millisecond((self.time * 1e3) as i64).unwrap_or_default();
        // Escaped, since a path may contain any characters.
        writeln!(f, "{service} at {time:.3}: {method} {path:?} from {caller}: {status} after {ms:.1} ms")?;
        for DecisionStep { step, detail } in &self.reasons {
            writeln!(f, "  {step:<8} {detail}")?;
        }
        for (nth, tried) in (1..).zip(&self.attempts) {
            let AttemptEntry { service, instance, address, region, revision, ms, outcome } = tried;
            let took = Duration::from_micros((ms * 1e3) as u64);
            writeln!(
                f,
                "  attempt {nth:<4} {instance} of {service} at {address} in {region}: {outcome} after \
                 {took:.1?}, by revision {revision}"
            )?;
        }
        self.fault.iter().try_for_each(|fault| writeln!(f, "  {:<8} {fault:?}", "fault"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn recent_requests_are_sampled_by_interval() {
        let (recent_requests, last) = (RecentRequests::new(), LastRequest::default());
        let due = || recent_requests.is_due(&last, Instant::now());
        assert_eq!([due(), due()], [true, false]);
        tokio::time::advance(Duration::from_millis(SAMPLE_INTERVAL_MS - 1)).await;
        assert!(!due());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!([due(), due()], [true, false]);
    }

    #[test]
    fn long_explanation_step_of_request_is_cut_at_character_boundary() {
        let step = Step { title: "region", detail: "é".repeat(MAX_DETAIL + 1) };
        assert_eq!(DecisionStep::of(&step).detail.chars().count(), MAX_DETAIL + 1);
    }
}
