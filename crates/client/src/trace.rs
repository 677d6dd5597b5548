use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::{ServiceName, arith::mix64};
use fairmesh_router::{EndpointTarget, Step};
use http::StatusCode;

use crate::{Fault, FaultKind};
use fairmesh_headers::SpanContext;

/// Reasons that are kept of one call; the rest of a long story is left out.
const MOST_STEPS: usize = 64;

/// What became of each try of a call, for tools that show it: a clone in the extensions of a request keeps what is then
/// read here. Calls without one pay nothing for it.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reasons: bool,
    parent: Option<SpanContext>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    steps: Vec<Step>,
    begun: u64,
    under_way: Vec<UnderWay>,
    tries: Vec<Tried>,
}

/// A try that has been decided and has not ended: all of it that is known by then.
#[derive(Debug)]
struct UnderWay(Tried);

/// One try that has ended.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Who was asked.
    pub endpoint: EndpointTarget,
    /// Of which service: another one than was called where a route sends the call there.
    pub service: ServiceName,
    /// The revision of the routing information that it was decided by; 0 when that came from disk.
    pub revision: u64,
    /// The span that the server was told is its parent; 0 without [`Trace::within`].
    pub span: u64,
    /// From the beginning of the call to the decision of this try.
    pub after: Duration,
    /// From its decision to the head of its answer, or to its failure.
    pub took: Duration,
    /// The answer's status, or what went wrong.
    pub outcome: Result<StatusCode, String>,
    /// Which fault that was, where it went wrong and not just late.
    pub fault: Option<FaultKind>,
}

impl Trace {
    /// One that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that also keeps the [reasons](Self::take_reasons) of each decision, and tells each server of a span of its own
    /// within `parent`, where there is one: the header `traceparent` of the request is replaced.
    pub fn within(parent: Option<SpanContext>, reasons: bool) -> Self {
        Self(Arc::new(Inner { reasons, parent, seen: Mutex::default() }))
    }

    /// Takes the tries seen so far, in their order.
    pub fn take(&self) -> Vec<Tried> {
        mem::take(&mut self.seen().tries)
    }

    /// Takes the reasons written down so far, in the order of the decisions, where they were asked for.
    pub fn take_reasons(&self) -> Vec<Step> {
        mem::take(&mut self.seen().steps)
    }

    pub(crate) fn wants_reasons(&self) -> bool {
        self.0.reasons
    }

    pub(crate) fn reasoned(&self, steps: Vec<Step>) {
        let mut seen = self.seen();
        let room = MOST_STEPS.saturating_sub(seen.steps.len());
        seen.steps.extend(steps.into_iter().take(room));
    }

    /// Takes the tries that have not ended when the call is this old: the slower one of two made beside each other, or the
    /// one that is under way while the caller gives up.
    pub fn take_unfinished(&self, age: Duration) -> Vec<Tried> {
        let given_up = |UnderWay(tried): UnderWay| {
            let outcome = Err("it was given up before it answered".to_owned());
            Tried { took: age.saturating_sub(tried.after), outcome, ..tried }
        };
        mem::take(&mut self.seen().under_way).into_iter().map(given_up).collect()
    }

    /// Keeps where a try is about to go.
    pub(crate) fn begins(
        &self,
        (service, endpoint): (&ServiceName, &EndpointTarget),
        revision: u64,
        after: Duration,
    ) {
        let mut seen = self.seen();
        seen.begun += 1;
        // Zero stands for none.
        let span = self.0.parent.map_or(0, |parent| mix64(parent.span.wrapping_add(seen.begun)).max(1));
        let (endpoint, service) = (endpoint.clone(), service.clone());
        let (took, outcome, fault) = (Duration::ZERO, Ok(StatusCode::OK), None);
        seen.under_way.push(UnderWay(Tried {
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

    /// What the try that was decided last tells its server.
    pub(crate) fn told(&self) -> Option<SpanContext> {
        let parent = self.0.parent?;
        let span = self.seen().under_way.last()?.0.span;
        Some(SpanContext { span, ..parent })
    }

    /// Keeps how the try that goes to this endpoint ended.
    pub(crate) fn ended(
        &self,
        endpoint: &EndpointTarget,
        took: Duration,
        outcome: Result<StatusCode, &Fault>,
    ) {
        let mut seen = self.seen();
        let is_it = |UnderWay(tried): &UnderWay| tried.endpoint.instance == endpoint.instance;
        if let Some(at) = seen.under_way.iter().position(is_it) {
            let UnderWay(tried) = seen.under_way.swap_remove(at);
            let fault = outcome.err().map(Fault::kind);
            let outcome = outcome.map_err(ToString::to_string);
            seen.tries.push(Tried { took, outcome, fault, ..tried });
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
