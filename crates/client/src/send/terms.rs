//! What a call was begun with, for what is said of it later: which limit ended it, and what became of its tries.

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_model::ServiceName;
use fairmesh_router::EndpointTarget;

use super::HeadersView;
use crate::{
    CallContext, Fault, FaultKind,
    core::{Call, Chosen, Moment, Start, View, nanos},
    observer::TryEnded,
    service::Handle,
    trace::Trace,
    transport::{Head, Line, Reply, Slot},
};
use fairmesh_headers::TRACEPARENT;

/// What one call was begun with.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) handle: &'a Handle,
    pub(super) context: &'a CallContext,
    pub(super) start: Start,
    /// Where the caller wants to read what became of the tries.
    pub(super) trace: Option<&'a Trace>,
}

/// The shortest of what bounds the time of a call.
enum Limit {
    /// A deadline that the handle or the request carries: of whoever waits for the caller.
    Deadline(Duration),
    /// What the caller set on its handle.
    Timeout(Duration),
    Policy(Duration),
    Route(Duration),
}

impl Terms<'_> {
    /// The fault of a call whose `deadline`, in nanoseconds of the clock, has passed; `sent` says how far it came.
    #[cold]
    pub(super) fn late(&self, deadline: u64, sent: &str) -> Fault {
        let limit = self.ended_by(deadline.saturating_sub(self.start.now));
        let name = self.handle.subscription.name();
        Fault::new(FaultKind::Deadline, format!("{name}: {limit}; {sent}"))
    }

    /// Writes down why the call is routed as it is, where anybody wants to know.
    #[inline]
    pub(super) fn routed(&self, call: &Call<'_, Arc<Line>>, head: &Head) {
        if let Some(trace) = self.trace.filter(|trace| trace.wants_reasons()) {
            let headers = HeadersView(&head.headers);
            trace.reasoned(call.explain_route(&head.view(&headers), self.context, self.start));
        }
    }

    /// Writes down why the next try is about to go where it goes, where anybody wants to know.
    #[inline]
    pub(super) fn decides(&self, call: &Call<'_, Arc<Line>>, view: &View<Arc<Line>>, at: Moment) {
        if let Some(trace) = self.trace.filter(|trace| trace.wants_reasons()) {
            trace.reasoned(call.explain_pick(view, self.context, at));
        }
    }

    /// Keeps where a try is about to go, where anybody wants to know.
    #[inline]
    pub(super) fn chose(&self, call: &Call<'_, Arc<Line>>, line: &Line, chosen: &Chosen<Arc<Line>>) {
        if let Some(trace) = self.trace {
            let now = self.handle.mesh.clock.now();
            let after = Duration::from_nanos(now.saturating_sub(self.start.now));
            trace.begins((call.target().name(), line.target()), chosen.revision(), after);
        }
    }

    /// Tells the server which span is its parent, where there is one for this try.
    #[inline]
    pub(super) fn mark(&self, slot: &mut Slot) {
        if let (Some(told), Some(request)) = (self.trace.and_then(Trace::told), slot) {
            request.head.headers.insert(TRACEPARENT, told.header());
        }
    }

    /// Keeps what became of a try that was decided at `begun`, in nanoseconds of the clock, where anybody wants to know.
    #[inline]
    pub(super) fn tried(
        &self,
        call: &Call<'_, Arc<Line>>,
        (line, begun): (&Line, u64),
        answer: &Result<Reply, Fault>,
    ) {
        if self.trace.is_some() || self.handle.mesh.observer.is_some() {
            self.tell(call.target().name(), (line.target(), begun), answer);
        }
    }

    #[cold]
    fn tell(
        &self,
        service: &ServiceName,
        (endpoint, begun): (&EndpointTarget, u64),
        answer: &Result<Reply, Fault>,
    ) {
        let took = Duration::from_nanos(self.handle.mesh.clock.now().saturating_sub(begun));
        if let Some(observer) = &self.handle.mesh.observer {
            let outcome = answer.as_ref().map(|reply| reply.head().0).map_err(Fault::kind);
            observer.tried(&TryEnded { service, endpoint, outcome, took });
        }
        if let Some(trace) = self.trace {
            trace.ended(endpoint, took, answer.as_ref().map(|reply| reply.head().0));
        }
    }

    /// Worked out when the call is over, since nearly every call ends in time.
    fn ended_by(&self, total: u64) -> Limit {
        let is_it = |limit: &Duration| nanos(*limit) == total;
        let timeout = self.context.timeout.filter(is_it).map(Limit::Timeout);
        let own = timeout.or_else(|| self.start.limit.filter(is_it).map(Limit::Deadline));
        own.unwrap_or_else(|| match &*self.handle.subscription.view() {
            View::Ready(ready) if ready.upstream.policy().timeouts.total.as_ref().is_some_and(is_it) => {
                Limit::Policy(Duration::from_nanos(total))
            }
            _ => Limit::Route(Duration::from_nanos(total)),
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It came with whatever is left of it, down to the nanosecond.
            Self::Deadline(left) if left.is_zero() => f.write_str("the caller's deadline had passed"),
            Self::Deadline(left) => {
                write!(f, "the caller's deadline passed, {} ms after the call began", left.as_millis())
            }
            Self::Timeout(timeout) => write!(f, "the caller's own timeout of {timeout:?} ran out"),
            Self::Policy(timeout) => write!(f, "its policy's timeout of {timeout:?} ran out"),
            Self::Route(timeout) => write!(f, "its route's timeout of {timeout:?} ran out"),
        }
    }
}
