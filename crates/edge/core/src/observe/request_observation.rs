//! Observes one request until its response begins.

use std::{sync::Arc, time::Duration};

use fairmesh_calls::{
    Body, Fault, Trace,
    forwarding::{BodyEnd, BodyObserver, CallInfo, observe_body, route_backend_name},
    observe::{AttemptRecord, Step, take_reasons, take_unfinished},
};
use fairmesh_metrics::TraceExemplar;
use http::{HeaderMap, Response, StatusCode};

use crate::{
    observe::{
        completion::{CompletionWatch, ObservedRequest},
        explain_header,
        request_info::RequestOutcome,
    },
    services::target::{GrpcStatusWatch, Target},
};

/// Status of requests whose client disconnected before the response, in logs and records only, as in nginx.
pub(crate) const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The observation of a request until its response begins. If it is dropped earlier, the client has disconnected, and
/// the request is reported with that outcome.
#[derive(Debug)]
pub(crate) struct Observation {
    /// `None` once the response has begun.
    pub(crate) observed: Option<ObservedRequest>,
    pub(crate) target: Arc<Target>,
    pub(crate) trace: Option<Trace>,
    /// Whether the client requested the explain headers.
    pub(crate) explain: bool,
    /// Whether the request is recorded for the admin pages.
    pub(crate) is_recorded: bool,
}

/// End of a call: everything except its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallEnd<'a> {
    pub(crate) fault: Option<&'a Fault>,
    pub(crate) call_info: &'a CallInfo,
}

impl Observation {
    /// The exported span, which metrics link to as an exemplar.
    pub(crate) fn exemplar(&self) -> Option<TraceExemplar> {
        self.observed.as_ref().and_then(ObservedRequest::exemplar)
    }

    /// The trace in which the library stores the attempts.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Reports what is known when the response begins, and the rest when the response ends. `status_watch` is set if
    /// the gRPC status follows in the trailers.
    pub(crate) fn response_started(
        mut self: Box<Self>,
        http_response: &mut Response<Body>,
        call: CallEnd<'_>,
        status_watch: Option<GrpcStatusWatch>,
    ) {
        let Some(observed) = self.observed.take() else { return };
        let outcome = self.outcome_of(&observed, http_response, call);
        if self.explain {
            let RequestOutcome { attempt_log, attempts, .. } = &outcome;
            explain_header::write(&observed.service, attempt_log, *attempts, http_response.headers_mut());
        }
        if let Some(recent_requests) = observed.observer.recent_requests.as_ref().filter(|_| self.is_recorded)
        {
            let target = &self.target;
            let last = target.is_labelled.then_some(&target.last);
            recent_requests.insert(target.handle.name(), last, &observed.request, &outcome);
        }
        let is_logged = observed.observer.access.selects(outcome.failed());
        let is_tapped = observed.observer.taps.wants(&observed.service);
        let watch: Arc<dyn BodyObserver> = match is_logged || is_tapped || observed.span.is_some() {
            true => Arc::new(CompletionWatch::new(
                observed,
                outcome,
                is_logged,
                status_watch,
                http_response.headers(),
            )),
            false => match status_watch {
                Some(watch) => Arc::new(watch),
                None => return,
            },
        };
        observe_body(http_response.body_mut(), watch);
    }

    fn outcome_of(
        &self,
        observed: &ObservedRequest,
        http_response: &Response<Body>,
        CallEnd { fault, call_info }: CallEnd<'_>,
    ) -> RequestOutcome {
        let took = observed.request.began.elapsed();
        let (tried, reasons) = self.take_attempts(took);
        let server = http_response.body().responder();
        // Once a tunnel was opened, the response no longer names its server.
        let last = tried.last().filter(|tried| tried.outcome.is_ok()).map(|tried| &tried.endpoint);
        RequestOutcome {
            status: http_response.status(),
            route_backend: Some(route_backend_name(&self.target.handle, call_info.route_backend())),
            injected: call_info.injected(),
            fault: fault.map(|fault| fault.kind().label()),
            message: fault.map(ToString::to_string),
            attempts: server.map(|(_, tries)| tries).or(fault.map(Fault::attempts)).unwrap_or(tried.len()),
            server: server.map(|(target, _)| target).or(last).cloned(),
            took,
            attempt_log: tried,
            decision_steps: reasons,
        }
    }

    fn take_attempts(&self, age: Duration) -> (Vec<AttemptRecord>, Vec<Step>) {
        let Some(trace) = &self.trace else { return Default::default() };
        let mut tried = trace.take();
        tried.extend(take_unfinished(trace, age));
        (tried, take_reasons(trace))
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let Some(observed) = self.observed.take() else { return };
        let took = observed.request.began.elapsed();
        let (tried, reasons) = self.take_attempts(took);
        let outcome = RequestOutcome {
            status: StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or_default(),
            // The call was dropped, and its route and backend with it.
            route_backend: None,
            injected: None,
            fault: Some("given_up"),
            message: Some("the client disconnected before the response".into()),
            server: None,
            attempts: tried.len(),
            took,
            attempt_log: tried,
            decision_steps: reasons,
        };
        if let Some(recent_requests) = observed.observer.recent_requests.as_ref().filter(|_| self.is_recorded)
        {
            let target = &self.target;
            let last = target.is_labelled.then_some(&target.last);
            recent_requests.insert(target.handle.name(), last, &observed.request, &outcome);
        }
        let is_logged = observed.observer.access.selects(true);
        CompletionWatch::new(observed, outcome, is_logged, None, &HeaderMap::new()).ended(BodyEnd::Complete);
    }
}
