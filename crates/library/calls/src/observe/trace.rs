use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::{ServiceName, arith::mix64};
use fairmesh_router::{EndpointTarget, Step};
use http::StatusCode;

use crate::fault::{Fault, FaultKind};
use fairmesh_headers::SpanContext;

/// Maximum number of reasons that are kept per call.
const MAX_STEPS: usize = 64;

/// Records the attempts of a call, for tools that display them. Put a clone into the extensions of a request, and read
/// the attempts here afterwards. Calls without a trace have no cost.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<TraceState>);

#[derive(Debug, Default)]
struct TraceState {
    reasons: bool,
    parent: Option<SpanContext>,
    recorded: Mutex<Recorded>,
}

#[derive(Debug, Default)]
struct Recorded {
    steps: Vec<Step>,
    begun: u64,
    in_flight: Vec<InFlight>,
    ended: Vec<AttemptRecord>,
}

/// An attempt that was decided and has not yet ended.
#[derive(Debug)]
struct InFlight(AttemptRecord);

/// Properties of an attempt that begins.
pub(crate) struct AttemptStart<'a> {
    pub(crate) service: &'a ServiceName,
    pub(crate) endpoint: &'a EndpointTarget,
    /// RIB revision from which the attempt was decided.
    pub(crate) revision: u64,
    /// Time since the beginning of the call.
    pub(crate) after: Duration,
}

/// One attempt that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// The endpoint that was called.
    pub endpoint: EndpointTarget,
    /// The service of the endpoint. It differs from the called service if a route sent the call to another one.
    pub service: ServiceName,
    /// RIB revision from which the attempt was decided; 0 if the records came from disk.
    pub revision: u64,
    /// Span ID that was sent to the server as its parent; 0 without [`Trace::within`].
    pub span: u64,
    /// Time from the beginning of the call to the decision of this attempt.
    pub after: Duration,
    /// Time from the decision of the attempt to the head of its response, or to its failure.
    pub took: Duration,
    /// Status of the response, or the text of the fault.
    pub outcome: Result<StatusCode, String>,
    /// The kind of fault; `None` for an attempt that was cancelled.
    pub fault: Option<FaultKind>,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a trace that sends each server its own span within `parent`. Replaces the request's `traceparent`
    /// header.
    pub fn within(parent: SpanContext) -> Self {
        Self(Arc::new(TraceState { parent: Some(parent), ..TraceState::default() }))
    }

    /// Takes the attempts recorded so far, in order.
    pub fn take(&self) -> Vec<AttemptRecord> {
        mem::take(&mut self.recorded().ended)
    }

    pub(crate) fn wants_reasons(&self) -> bool {
        self.0.reasons
    }

    pub(crate) fn add_reasons(&self, steps: Vec<Step>) {
        let mut recorded = self.recorded();
        let room = MAX_STEPS.saturating_sub(recorded.steps.len());
        recorded.steps.extend(steps.into_iter().take(room));
    }

    /// Records the beginning of an attempt.
    pub(crate) fn attempt_began(&self, start: &AttemptStart<'_>) {
        let AttemptStart { service, endpoint, revision, after } = *start;
        let mut recorded = self.recorded();
        recorded.begun += 1;
        // Zero means that there is no span.
        let span = self.0.parent.map_or(0, |parent| mix64(parent.span.wrapping_add(recorded.begun)).max(1));
        let (endpoint, service) = (endpoint.clone(), service.clone());
        let (took, outcome, fault) = (Duration::ZERO, Ok(StatusCode::OK), None);
        recorded.in_flight.push(InFlight(AttemptRecord {
            endpoint,
            service,
            revision,
            span,
            after,
            took,
            outcome,
            fault,
        }));
    }

    /// The span that the latest attempt must send to its server.
    pub(crate) fn span_to_send(&self) -> Option<SpanContext> {
        let parent = self.0.parent?;
        let span = self.recorded().in_flight.last()?.0.span;
        Some(SpanContext { span, ..parent })
    }

    /// Records the end of the attempt at this endpoint.
    pub(crate) fn attempt_ended(
        &self,
        endpoint: &EndpointTarget,
        took: Duration,
        outcome: Result<StatusCode, &Fault>,
    ) {
        let mut recorded = self.recorded();
        let is_it = |InFlight(attempt): &InFlight| attempt.endpoint.instance == endpoint.instance;
        if let Some(at) = recorded.in_flight.iter().position(is_it) {
            let InFlight(attempt) = recorded.in_flight.swap_remove(at);
            let fault = outcome.err().map(Fault::kind);
            let outcome = outcome.map_err(ToString::to_string);
            recorded.ended.push(AttemptRecord { took, outcome, fault, ..attempt });
        }
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates an empty trace, within `parent` if there is one, that also records the [reasons](take_reasons) of each
/// decision.
pub fn trace_with_reasons(parent: Option<SpanContext>) -> Trace {
    Trace(Arc::new(TraceState { reasons: true, parent, recorded: Mutex::default() }))
}

/// Takes the reasons recorded so far, in the order of the decisions.
pub fn take_reasons(trace: &Trace) -> Vec<Step> {
    mem::take(&mut trace.recorded().steps)
}

/// Takes the attempts that have not ended when the call has this age. These are the slower of two hedged attempts, or
/// the attempt in flight when the caller cancels the call.
pub fn take_unfinished(trace: &Trace, age: Duration) -> Vec<AttemptRecord> {
    let cancelled = |InFlight(attempt): InFlight| {
        let outcome = Err("cancelled before the response".to_owned());
        AttemptRecord { took: age.saturating_sub(attempt.after), outcome, ..attempt }
    };
    mem::take(&mut trace.recorded().in_flight).into_iter().map(cancelled).collect()
}
