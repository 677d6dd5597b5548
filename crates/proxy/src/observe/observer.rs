//! What is seen of single requests beside what is counted of all: a line in the log, spans, why the last one went where it
//! went, and what its program asked to be told. Nearly every request needs none of it, and pays a look for each.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_client::Trace;
use fairmesh_otlp::Counts;
use http::request::Parts;
use tokio::time::Instant;

use crate::{
    forward::target::Target,
    observe::{
        access_log::{AccessLogConfig, AccessLogger, entry::AccessLogEntry},
        completion::ObservedRequest,
        endpoint_metrics::EndpointMetrics,
        explain_header,
        observation::Observation,
        recent_requests::RecentRequests,
        request_info::{Arrival, RequestInfo},
        spans::{TraceConfig, Tracer},
    },
};

/// Who looks at requests.
#[derive(Debug)]
pub(crate) struct RequestObserver {
    pub(crate) access: AccessLogger,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) recent_requests: Option<RecentRequests>,
    pub(crate) endpoints: Option<Arc<EndpointMetrics>>,
}

/// What is seen, where.
#[derive(Debug, Default)]
pub(crate) struct ObserverConfig {
    pub(crate) log: AccessLogConfig,
    pub(crate) traces: Option<TraceConfig>,
    pub(crate) endpoints: Option<Arc<EndpointMetrics>>,
    /// Whether there are pages that show the last requests.
    pub(crate) pages: bool,
}

impl RequestObserver {
    /// Starts what writes and what exports; must be called within a tokio runtime.
    pub(crate) fn start(config: ObserverConfig) -> Arc<Self> {
        Arc::new(Self {
            access: AccessLogger::start(config.log),
            tracer: config.traces.as_ref().map(Tracer::start),
            recent_requests: config.pages.then(RecentRequests::new),
            endpoints: config.endpoints,
        })
    }

    /// Looks at a request that has come; `None` where nobody wants to see more of it. A request that is traced goes on as the
    /// proxy's own span has it.
    #[inline]
    pub(crate) fn begin(
        self: &Arc<Self>,
        parts: &mut Parts,
        target: &Arc<Target>,
        arrival: Arrival,
    ) -> Option<Box<Observation>> {
        let explain = explain_header::take_request(&mut parts.headers);
        let is_recorded = self
            .recent_requests
            .as_ref()
            .is_some_and(|recent_requests| recent_requests.is_due(&target.last, arrival.began));
        let span = self.tracer.as_ref().and_then(|tracer| tracer.begin(&mut parts.headers));
        if !explain && !is_recorded && span.is_none() && !self.access.is_enabled() {
            return None;
        }
        let parent = span.as_ref().map(|span| span.own);
        let trace = (explain || is_recorded || parent.is_some()).then(|| Trace::within(parent, is_recorded));
        let request = RequestInfo::new(parts, arrival, unix_time());
        let observed =
            ObservedRequest { observer: Arc::clone(self), target: Arc::clone(target), request, span };
        Some(Box::new(Observation { observed: Some(observed), trace, explain, is_recorded }))
    }

    /// Whether every request is to be seen.
    pub(crate) fn observes_all(&self) -> bool {
        self.access.is_enabled() || self.tracer.is_some()
    }

    /// Whether a request that comes now is to be seen whatever it says, so that [`begin`](Self::begin) has to be asked.
    #[inline]
    pub(crate) fn may_observe(&self, target: &Target, now: Instant) -> bool {
        self.observes_all()
            || self
                .recent_requests
                .as_ref()
                .is_some_and(|recent_requests| recent_requests.may_be_due(&target.last, now))
    }

    /// Logs a connection that became a tunnel, or none.
    pub(crate) fn log_tunnel(&self, failed: bool, entry: impl FnOnce() -> AccessLogEntry) {
        if self.access.selects(failed) {
            self.log(entry());
        }
    }

    pub(crate) fn log(&self, entry: AccessLogEntry) {
        self.access.write(entry);
    }

    /// What became of the spans so far, where any are made.
    pub(crate) fn spans(&self) -> Option<Counts> {
        self.tracer.as_ref().map(Tracer::counts)
    }

    /// Takes what is left of the spans to the collector, at most until then.
    pub(crate) async fn stop(&self, deadline: Instant) {
        if let Some(tracer) = &self.tracer {
            tracer.stop(deadline).await;
        }
    }
}

/// The time now, since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "what is told of a request says when, and nothing is decided by it"
)]
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
