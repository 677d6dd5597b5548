//! A service that is called through the proxy.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed},
        },
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_calls::{
    Region, ServiceHandle, ServiceName,
    discovery::ServiceState,
    forwarding::{BodyEnd, BodyObserver, Principal, RouteBackendIndex, service_state},
};
use fairmesh_metrics::{CallOutcome, TraceExemplar};
use http::{HeaderMap, Response};
use http_body::Frame;
use tokio::time::Instant;

use crate::observe::{grpc_status, recent_requests::LastRequest, service_metrics::ServiceMetrics};

/// A called service with its counters.
#[derive(Debug)]
pub struct Target {
    /// Handle through which calls are made.
    pub handle: ServiceHandle,
    /// Counters of the service.
    pub metrics: ServiceMetrics,
    /// The last recorded request.
    pub last: LastRequest,
    /// Whether the service has its own metric series.
    pub(crate) is_labelled: bool,
    /// Whether the service stays in the table even without calls.
    pub(crate) is_pinned: AtomicBool,
    pub(crate) activity: Mutex<Activity>,
    pub(crate) forgotten: AtomicBool,
}

impl Target {
    pub(crate) fn new(handle: ServiceHandle, is_labelled: bool) -> Self {
        Self {
            handle,
            metrics: ServiceMetrics::default(),
            last: LastRequest::default(),
            is_labelled,
            is_pinned: AtomicBool::new(false),
            activity: Mutex::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Whether the service was removed from the table, so that its name must be looked up again.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Acquire)
    }

    /// The caller's region and the revision of the records, once known.
    pub fn home_and_revision(&self) -> Option<(Region, u64)> {
        match &*service_state(&self.handle) {
            ServiceState::Ready(ready) => Some((ready.upstream.home().clone(), ready.revision)),
            _ => None,
        }
    }
}

impl Target {
    /// Other services to which the service's routes send calls.
    pub fn backends(&self) -> BTreeSet<ServiceName> {
        match &*service_state(&self.handle) {
            ServiceState::Ready(ready) => {
                let backends = ready.upstream.route_backends().map(|(_, backend)| backend);
                backends.filter(|backend| *backend != self.handle.name()).cloned().collect()
            }
            _ => BTreeSet::new(),
        }
    }
}

/// Number of requests at the last check, and when that number last changed.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    pub(crate) requests: u64,
    pub(crate) since: Option<Instant>,
}

impl Target {
    /// Whether the service was not called for `idle_for`. Derived from request counters, so that requests need not
    /// store a timestamp.
    pub(crate) fn is_idle(&self, now: Instant, idle_for: Duration) -> bool {
        let requests = self.metrics.responses.classes().iter().sum();
        let mut activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        if activity.requests != requests || self.metrics.in_flight.load(Relaxed) > 0 {
            *activity = Activity { requests, since: Some(now) };
        }
        let since = *activity.since.get_or_insert(now);
        !self.is_pinned.load(Acquire) && now.duration_since(since) >= idle_for
    }
}

/// A gRPC call whose status is not known yet.
#[derive(Debug)]
pub(crate) struct GrpcCall {
    pub(crate) began: Instant,
    pub(crate) index: RouteBackendIndex,
    /// The caller that a gateway accepted.
    pub(crate) principal: Option<Arc<Principal>>,
    /// The exported trace of the call, as an exemplar of metrics.
    pub(crate) exemplar: Option<TraceExemplar>,
}

/// Counts the gRPC status of one response for its service, and for the call's route and backend.
#[derive(Debug)]
pub(crate) struct GrpcStatusWatch {
    target: Arc<Target>,
    call: GrpcCall,
    /// Whether the HTTP status already counts the response as failed.
    is_failed: bool,
}

impl GrpcStatusWatch {
    /// Counts the status in the headers of a response and returns `None`. If the headers have no status, returns a
    /// watch for the trailers.
    pub(crate) fn begin<B>(target: &Arc<Target>, call: GrpcCall, response: &Response<B>) -> Option<Self> {
        let is_failed = response.status().is_server_error();
        let watch = Self { target: Arc::clone(target), call, is_failed };
        (!watch.record(response.headers())).then_some(watch)
    }

    /// Counts the status in headers or trailers. Returns whether there was one.
    fn record(&self, headers: &HeaderMap) -> bool {
        let recorded = self.target.metrics.grpc_statuses.record(headers);
        self.record_failure(recorded == Some(true));
        if let Some(name) = grpc_status::named_in(headers) {
            self.record_duration(name);
        }
        recorded.is_some()
    }

    fn record_duration(&self, status: &'static str) {
        let GrpcCall { began, principal, exemplar, .. } = &self.call;
        let caller = principal.as_ref().map(|principal| principal.caller.path());
        self.target.metrics.calls.record(caller, CallOutcome::Grpc(status), began.elapsed(), *exemplar);
    }

    fn record_failure(&self, fails: bool) {
        if fails && !self.is_failed {
            self.target.metrics.responses.record_grpc_failure(self.call.index);
        }
    }
}

/// Counts the status in the trailers.
impl BodyObserver for GrpcStatusWatch {
    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_ref() {
            self.record(trailers);
        }
    }

    fn ended(&self, end: BodyEnd) {
        if end != BodyEnd::Complete {
            self.target.metrics.grpc_statuses.record_missing();
            self.record_duration(if end == BodyEnd::Cancelled { "CANCELLED" } else { "UNKNOWN" });
            // A cancellation by the client is no failure of the server.
            self.record_failure(end == BodyEnd::Failed);
        }
    }
}
