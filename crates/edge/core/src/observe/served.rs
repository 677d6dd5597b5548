//! Observes one request that the proxy forwards to the program that it stands in front of.

use std::sync::Arc;

use fairmesh_calls::{
    Body, FaultKind, ServiceName,
    forwarding::{BodyEnd, BodyObserver as _, observe_body},
};
use http::{HeaderMap, Response, StatusCode, request::Parts};

use crate::observe::{
    completion::{CompletionWatch, ObservedRequest},
    observation::CLIENT_CLOSED_REQUEST,
    observer::{RequestObserver, unix_time},
    request_info::{Arrival, RequestInfo, RequestOutcome, ServedCaller},
};

/// The observation of a request until its response begins. If it is dropped before, the caller has disconnected, which is reported.
#[derive(Debug)]
pub struct ServedRequest(Option<ObservedRequest>);

impl RequestObserver {
    /// Begins the observation of a request for the program behind `service`; `None` if it need not be observed. If it is traced, its
    /// headers then refer to the proxy's span.
    pub fn begin_served(
        self: &Arc<Self>,
        parts: &mut Parts,
        service: &ServiceName,
        arrival: Arrival,
    ) -> Option<ServedRequest> {
        let span = self.tracer.as_ref().and_then(|tracer| tracer.begin(&mut parts.headers));
        if span.is_none() && !self.access.is_enabled() {
            return None;
        }
        let served = Some(ServedCaller::default());
        let request = RequestInfo { served, ..RequestInfo::new(parts, arrival, unix_time()) };
        let observer = Arc::clone(self);
        Some(ServedRequest(Some(ObservedRequest { observer, service: service.clone(), request, span })))
    }
}

impl ServedRequest {
    /// Reports the request when its response ends. `caller` is the identity that the caller proved, and `fault` why the program did not
    /// respond, if the proxy knows.
    pub fn response_started(
        mut self,
        response: &mut Response<Body>,
        caller: Option<String>,
        fault: Option<FaultKind>,
    ) {
        let Some(mut observed) = self.0.take() else { return };
        observed.request.served = Some(ServedCaller { id: caller });
        let outcome = outcome(&observed, response.status(), fault.map(FaultKind::label));
        let is_logged = observed.observer.access.selects(outcome.failed());
        if is_logged || observed.span.is_some() {
            let watch = CompletionWatch::new(observed, outcome, is_logged, None, response.headers());
            observe_body(response.body_mut(), Arc::new(watch));
        }
    }
}

impl Drop for ServedRequest {
    fn drop(&mut self) {
        let Some(observed) = self.0.take() else { return };
        let status = StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or_default();
        let outcome = outcome(&observed, status, Some("given_up"));
        let is_logged = observed.observer.access.selects(true);
        CompletionWatch::new(observed, outcome, is_logged, None, &HeaderMap::new()).ended(BodyEnd::Complete);
    }
}

/// The outcome of a request that was forwarded once, and not routed.
fn outcome(observed: &ObservedRequest, status: StatusCode, fault: Option<&'static str>) -> RequestOutcome {
    RequestOutcome {
        status,
        route_backend: None,
        injected: None,
        fault,
        message: None,
        server: None,
        attempts: 1,
        took: observed.request.began.elapsed(),
        attempt_log: Vec::new(),
        decision_steps: Vec::new(),
    }
}
