//! Observes requests to the program behind a proxy: counters by caller, access log and spans.
//!
//! Used by both `proxy --inbound` and `register`. For requests to services see
//! [`observer`](crate::observe::observer).

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_calls::{
    Body, FaultKind, ServiceName,
    forwarding::{BodyEnd, BodyObserver, observe_body},
};
use fairmesh_headers::{is_distance_probe, is_grpc, is_load_poll};
use fairmesh_metrics::{CallOutcome, TraceExemplar, known_method};
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body::Frame;
use tokio::time::Instant;

use crate::observe::{
    completion::{CompletionWatch, ObservedRequest},
    grpc_status,
    observer::{RequestObserver, unix_time},
    request_info::{Arrival, RequestInfo, RequestOutcome},
    request_observation::CLIENT_CLOSED_REQUEST,
    served_metrics::{CallerSeries, ServedCaller, ServedMetrics},
};

/// Observes the requests of all callers of a program.
#[derive(Debug)]
pub struct ServedObserver {
    service: ServiceName,
    metrics: Arc<ServedMetrics>,
    /// Observer that writes the access log and spans. Set once the process has opened these outputs, since callers
    /// may be served earlier.
    observer: OnceLock<Arc<RequestObserver>>,
}

/// Request extension that counts the bytes of the request body.
#[derive(Clone, Debug, Default)]
pub struct ReceivedBytes(Arc<AtomicU64>);

impl ReceivedBytes {
    /// Adds the bytes of a body frame.
    pub fn count(&self, frame: &Frame<Bytes>) {
        self.0.fetch_add(frame.data_ref().map_or(0, |data| data.len() as u64), Relaxed);
    }
}

/// Observation of a request until its response begins. If it is dropped earlier, the caller has disconnected, and the
/// request is counted and logged with status 499.
#[derive(Debug)]
pub struct ServedRequest(Option<PendingRequest>);

#[derive(Debug)]
struct PendingRequest {
    metrics: Arc<ServedMetrics>,
    began: Instant,
    /// The method, as a label of durations.
    method: &'static str,
    is_grpc: bool,
    /// The caller, as authenticated by its connection.
    peer: Option<Arc<ServedCaller>>,
    /// The caller of the accepted request; the inner `None` means a caller without an identity. Unset until the
    /// request is accepted.
    accepted: OnceLock<Option<Arc<ServedCaller>>>,
    received: ReceivedBytes,
    /// The request to be logged or traced, if it is observed.
    observed: Option<ObservedRequest>,
}

impl ServedObserver {
    /// Creates an observer for the program behind `service`, with counters at zero.
    pub fn new(service: ServiceName) -> Self {
        let metrics = Arc::new(ServedMetrics::new(&service));
        Self { service, metrics, observer: OnceLock::new() }
    }

    /// The counters by caller.
    pub fn metrics(&self) -> &Arc<ServedMetrics> {
        &self.metrics
    }

    /// Sets the observer that logs and traces requests from now on.
    pub fn set_observer(&self, observer: Arc<RequestObserver>) {
        // Only the first proxy of a process stands in front of the program.
        let _ = self.observer.set(observer);
    }

    /// Begins the observation of a request on a connection of `peer`. Returns `None` for load polls, which are not
    /// calls. The headers of a traced request then refer to the span. The caller of this function must count the
    /// request body with the [`ReceivedBytes`] in the extensions.
    pub fn begin<B>(
        &self,
        request: Request<B>,
        arrival: Arrival,
        peer: Option<Arc<ServedCaller>>,
    ) -> (Request<B>, Option<ServedRequest>) {
        if is_load_poll(&request) || is_distance_probe(&request) {
            return (request, None);
        }
        let (mut parts, body) = request.into_parts();
        let observed = self.observer.get().and_then(|observer| self.observe(observer, &mut parts, arrival));
        let received = ReceivedBytes::default();
        parts.extensions.insert(received.clone());
        let pending = PendingRequest {
            metrics: Arc::clone(&self.metrics),
            began: arrival.began,
            method: known_method(parts.method.as_str()),
            is_grpc: is_grpc(&parts.headers),
            peer,
            accepted: OnceLock::new(),
            received,
            observed,
        };
        (Request::from_parts(parts, body), Some(ServedRequest(Some(pending))))
    }

    fn observe(
        &self,
        observer: &Arc<RequestObserver>,
        parts: &mut Parts,
        arrival: Arrival,
    ) -> Option<ObservedRequest> {
        let span =
            observer.tracer.as_ref().and_then(|tracer| tracer.begin(&mut parts.headers, arrival.is_outside));
        if span.is_none() && !observer.access.is_enabled() && !observer.taps.wants(&self.service) {
            return None;
        }
        let request = RequestInfo { is_served: true, ..RequestInfo::new(parts, arrival, unix_time()) };
        let (observer, service) = (Arc::clone(observer), self.service.clone());
        Some(ObservedRequest { observer, service, request, span })
    }
}

impl ServedRequest {
    /// Notes that the request was accepted from this caller and is forwarded.
    pub fn accept(&self, caller: Option<Arc<ServedCaller>>) {
        if let Some(pending) = &self.0 {
            // Set only once, since a request is forwarded once.
            let _ = pending.accepted.set(caller);
        }
    }

    /// Counts the response, and reports the request when the response ends. A [`FaultKind`] in the extensions
    /// says why the program did not respond.
    pub fn response_started(mut self, response: &mut Response<Body>) {
        let Some(pending) = self.0.take() else { return };
        let fault = response.extensions().get::<FaultKind>().map(|fault| fault.label());
        let watch = pending.into_watch(response.status(), fault, response.headers());
        observe_body(response.body_mut(), Arc::new(watch));
    }
}

impl Drop for ServedRequest {
    fn drop(&mut self) {
        let Some(pending) = self.0.take() else { return };
        let status = StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or_default();
        let watch = pending.into_watch(status, Some("given_up"), &HeaderMap::new());
        if watch.awaits_status {
            watch.call.record_missing_status(BodyEnd::Cancelled);
            let _ = watch.has_status.set(());
        }
        watch.ended(BodyEnd::Complete);
    }
}

impl PendingRequest {
    /// Counts the start of the response, and returns the watch that follows it to its end.
    fn into_watch(self, status: StatusCode, fault: Option<&'static str>, headers: &HeaderMap) -> ServedWatch {
        let Self { metrics, began, method, is_grpc, peer, accepted, received, observed } = self;
        let caller = accepted.get().cloned();
        let series = match &caller {
            Some(accepted) => metrics.accepted(accepted.as_deref()),
            None => metrics.refused(peer.as_deref()),
        };
        series.responses.record(status, began.elapsed());
        let exemplar = observed.as_ref().and_then(ObservedRequest::exemplar);
        let call = ServedCall { series, began, exemplar };
        let awaits_status = is_grpc && !call.record_status(headers);
        if !is_grpc {
            call.record(CallOutcome::Http { method, status: status.as_u16() });
        }
        let completion = observed.and_then(|mut observed| {
            observed.request.served_caller = caller.unwrap_or(peer);
            completion_watch(observed, RequestOutcome::of_program(status, fault, began.elapsed()), headers)
        });
        let (has_status, sent) = (OnceLock::new(), AtomicU64::new(0));
        ServedWatch { call, awaits_status, has_status, received, sent, completion }
    }
}

/// Logs and traces the request when its response ends, if it is selected.
fn completion_watch(
    observed: ObservedRequest,
    outcome: RequestOutcome,
    headers: &HeaderMap,
) -> Option<CompletionWatch> {
    let is_logged = observed.observer.access.selects(outcome.failed());
    let is_reported = is_logged || observed.span.is_some() || observed.observer.taps.wants(&observed.service);
    is_reported.then(|| CompletionWatch::new(observed, outcome, is_logged, None, headers))
}

/// A call whose response has begun.
#[derive(Debug)]
struct ServedCall {
    series: Arc<CallerSeries>,
    began: Instant,
    /// The exported span of the call, if there is one.
    exemplar: Option<TraceExemplar>,
}

impl ServedCall {
    /// Records the duration from the request to now.
    fn record(&self, outcome: CallOutcome) {
        self.series.durations.record(None, outcome, self.began.elapsed(), self.exemplar);
    }

    /// Counts the gRPC status in headers or trailers. Returns whether there was one.
    fn record_status(&self, headers: &HeaderMap) -> bool {
        let Some(status) = grpc_status::named_in(headers) else { return false };
        self.series.grpc_statuses.record(headers);
        self.record(CallOutcome::Grpc(status));
        true
    }

    /// Counts a gRPC call that ended without a status.
    fn record_missing_status(&self, end: BodyEnd) {
        self.series.grpc_statuses.record_missing();
        let status = if end == BodyEnd::Cancelled { "CANCELLED" } else { "UNKNOWN" };
        self.record(CallOutcome::Grpc(status));
    }
}

/// Follows a response to its end.
#[derive(Debug)]
struct ServedWatch {
    call: ServedCall,
    /// Whether the gRPC status is expected in the trailers.
    awaits_status: bool,
    has_status: OnceLock<()>,
    received: ReceivedBytes,
    sent: AtomicU64,
    completion: Option<CompletionWatch>,
}

impl BodyObserver for ServedWatch {
    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.sent.fetch_add(data.len() as u64, Relaxed);
        }
        if self.awaits_status
            && let Some(trailers) = frame.trailers_ref()
            && self.call.record_status(trailers)
        {
            // Trailers end the body.
            let _ = self.has_status.set(());
        }
        if let Some(completion) = &self.completion {
            completion.frame(frame);
        }
    }

    fn ended(&self, end: BodyEnd) {
        if self.awaits_status && self.has_status.get().is_none() {
            self.call.record_missing_status(end);
        }
        let series = &self.call.series;
        series.received.fetch_add(self.received.0.load(Relaxed), Relaxed);
        series.sent.fetch_add(self.sent.load(Relaxed), Relaxed);
        if let Some(completion) = &self.completion {
            completion.ended(end);
        }
    }
}
