//! Observes single requests, in addition to counters: access log, spans, records for the admin pages, and
//! explain headers. Most requests need none of these, and pay only for the checks.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_calls::{
    ServiceName, Trace,
    forwarding::{BodyEnd, BodyObserver as _, Principal},
    observe::trace_with_reasons,
};
use fairmesh_wire::transport::Transport;
use http::{HeaderMap, request::Parts};
use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};
use tokio::time::{Instant, timeout_at};

use crate::{
    observe::{
        access_log::{AccessLogConfig, AccessLogger, entry::AccessLogEntry},
        completion::{CompletionWatch, ObservedRequest},
        endpoint_metrics::EndpointMetrics,
        explain_header,
        recent_requests::RecentRequests,
        request_info::{Arrival, CompletedRequest, InPlaceResponse, RequestInfo, RequestOutcome},
        request_observation::Observation,
        served_metrics::ServedCaller,
        spans::{TraceConfig, Tracer, take_decision},
        tap::Taps,
    },
    services::target::Target,
};

/// Observes requests.
#[derive(Debug)]
pub struct RequestObserver {
    /// The access log.
    pub access: AccessLogger,
    pub(crate) tracer: Option<Tracer>,
    /// Recent requests, if the admin pages show them.
    pub recent_requests: Option<RecentRequests>,
    /// Metrics by endpoint, if enabled.
    pub endpoints: Option<Arc<EndpointMetrics>>,
    /// Readers of live requests (`fairmesh tap`).
    pub taps: Arc<Taps>,
}

/// Configuration of the observer.
#[derive(Debug, Default)]
pub struct ObserverConfig {
    /// The access log.
    pub log: AccessLogConfig,
    /// Export of requests as spans; `None` exports none.
    pub traces: Option<TraceConfig>,
    /// The identity with which spans are sent to a control plane.
    pub transport: Transport,
    /// Metrics by endpoint, if enabled.
    pub endpoints: Option<Arc<EndpointMetrics>>,
    /// Whether admin pages show recent requests.
    pub pages: bool,
}

impl RequestObserver {
    /// Starts the writer of the access log and the exporter of spans. Must be called within a tokio runtime.
    pub fn start(config: ObserverConfig) -> Arc<Self> {
        Arc::new(Self {
            access: AccessLogger::start(config.log),
            tracer: config.traces.as_ref().map(|traces| Tracer::start(traces, config.transport)),
            recent_requests: config.pages.then(RecentRequests::new),
            endpoints: config.endpoints,
            taps: Arc::default(),
        })
    }

    /// Whether servers receive trace headers for the proxy's spans.
    pub fn adds_headers(&self) -> bool {
        self.tracer.is_some()
    }

    /// Begins the observation of a request. Returns `None` if the request need not be observed. The headers
    /// of a traced request then refer to the proxy's span.
    #[inline]
    pub(crate) fn begin(
        self: &Arc<Self>,
        parts: &mut Parts,
        target: &Arc<Target>,
        arrival: Arrival,
    ) -> Option<Box<Observation>> {
        // Callers of a gateway get no explanation: addresses of other tenants do not concern them.
        let explain = explain_header::take_request(&mut parts.headers)
            && parts.extensions.get::<Arc<Principal>>().is_none();
        let is_recorded = self
            .recent_requests
            .as_ref()
            .is_some_and(|recent_requests| recent_requests.is_due(&target.last, arrival.began));
        if arrival.is_outside {
            take_decision(&mut parts.headers, self.tracer.is_some());
        }
        let span =
            self.tracer.as_ref().and_then(|tracer| tracer.begin(&mut parts.headers, arrival.is_outside));
        let is_tapped = self.taps.wants(target.handle.name());
        if !explain && !is_recorded && span.is_none() && !is_tapped && !self.access.is_enabled() {
            return None;
        }
        let parent = span.as_ref().map(|span| span.own);
        let trace = match parent {
            parent if is_recorded => Some(trace_with_reasons(parent)),
            Some(parent) => Some(Trace::within(parent)),
            None => explain.then(Trace::new),
        };
        let request = RequestInfo::new(parts, arrival, unix_time());
        let observed = ObservedRequest {
            observer: Arc::clone(self),
            service: target.handle.name().clone(),
            request,
            span,
        };
        let target = Arc::clone(target);
        Some(Box::new(Observation { observed: Some(observed), target, trace, explain, is_recorded }))
    }

    /// Records a request that the kernel sent and whose response went to the caller unchanged. Records it only if a
    /// record is due, or the access log or a tap selects it. Must be called once for each such request that
    /// [`may_observe`](Self::may_observe) selects.
    pub fn observe_completed(
        self: &Arc<Self>,
        target: &Arc<Target>,
        request: RequestInfo,
        outcome: RequestOutcome,
        body_bytes: u64,
    ) {
        let recent_requests = self.recent_requests.as_ref();
        let due = recent_requests.filter(|recent| recent.is_due(&target.last, request.began));
        if let Some(recent_requests) = due {
            let last = target.is_labelled.then_some(&target.last);
            recent_requests.insert(target.handle.name(), last, &request, &outcome);
        }
        let is_logged = self.access.selects(outcome.failed());
        if is_logged || self.taps.wants(target.handle.name()) {
            let observed = ObservedRequest {
                observer: Arc::clone(self),
                service: target.handle.name().clone(),
                request,
                span: None,
            };
            let watch = CompletionWatch::new(observed, outcome, is_logged, None, &HeaderMap::new());
            watch.bytes_out.store(body_bytes, Relaxed);
            watch.ended(BodyEnd::Complete);
        }
    }

    /// Logs the server's side of a request that the kernel sent in place of mutual TLS, as the listener in front of the program
    /// logs those over mutual TLS: only this process knows of the request. Must be called once for each such request.
    pub fn log_in_place(
        &self,
        service: &ServiceName,
        (request, caller): (&RequestInfo, &Arc<ServedCaller>),
        response: InPlaceResponse,
    ) {
        let InPlaceResponse { status, took: [took, total], body_bytes } = response;
        if !self.access.selects(status.is_server_error()) {
            return;
        }
        let request = request.clone().served_in_place(Arc::clone(caller));
        let completed = CompletedRequest {
            service: service.to_string(),
            outcome: &RequestOutcome::of_program(status, None, took),
            grpc_status: None,
            bytes_out: body_bytes.unwrap_or(0),
            end: BodyEnd::Complete,
            took: total,
        };
        let entry = AccessLogEntry::of(&request, &completed, request.context);
        self.log(AccessLogEntry { bytes_out: body_bytes, ..entry });
    }

    /// Whether every request is observed.
    pub(crate) fn observes_all(&self) -> bool {
        self.access.is_enabled() || self.tracer.is_some()
    }

    /// Whether an observation must begin for a request that arrives at `now`, regardless of its headers.
    #[inline]
    pub fn may_observe(&self, target: &Target, now: Instant) -> bool {
        self.observes_all()
            || self.taps.wants(target.handle.name())
            || self
                .recent_requests
                .as_ref()
                .is_some_and(|recent_requests| recent_requests.may_be_due(&target.last, now))
    }

    /// Logs a request for a tunnel.
    pub(crate) fn log_tunnel(&self, failed: bool, entry: impl FnOnce() -> AccessLogEntry) {
        if self.access.selects(failed) {
            self.log(entry());
        }
    }

    pub(crate) fn log(&self, entry: AccessLogEntry) {
        self.access.write(entry);
    }

    /// Registers the number of dropped access log lines, and the outcomes of span exports.
    pub fn register(&self, registry: &mut Registry) {
        let dropped = ConstCounter::new(self.access.dropped());
        registry.register(
            "access_log_lines_dropped",
            "Access log lines dropped because the reader was slow",
            dropped,
        );
        let Some(counts) = self.tracer.as_ref().map(Tracer::counts) else { return };
        for (name, help, count) in [
            ("spans_exported", "Spans accepted by the collector", counts.exported),
            ("spans_dropped", "Spans dropped because the queue was full", counts.dropped),
            ("spans_rejected", "Spans rejected by the collector, or not delivered", counts.refused),
        ] {
            registry.register(name, help, ConstCounter::new(count));
        }
    }

    /// Writes the remaining lines of the access log, and exports the remaining spans, until the deadline.
    pub async fn stop(&self, deadline: Instant) {
        let exported = async {
            if let Some(tracer) = &self.tracer {
                tracer.stop(deadline).await;
            }
        };
        let (written, ()) = tokio::join!(timeout_at(deadline, self.access.flush()), exported);
        if written.is_err() {
            tracing::warn!("the last lines of the access log are lost: standard output does not take them");
        }
    }
}

/// The current time since the Unix epoch.
#[allow(
    clippy::disallowed_methods,
    reason = "what is told of a request says when, and nothing is decided by it"
)]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
