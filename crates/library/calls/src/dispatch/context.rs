//! The context of one call: its handle, options and start, used for faults, traces and observers.

use std::{fmt, sync::Arc, time::Duration};

use fairmesh_connections::{EndpointPool, EndpointResponse, Head, PendingRequest};
use fairmesh_headers::{HeaderMapView, TRACEPARENT};
use tokio::time::timeout;

use super::{attempt::Attempt, request::route_view};
use crate::{
    call::{Call, CallContext, CallStart, DecisionContext, Pick, nanos},
    discovery::{ServiceState, Subscription, unknown_state_fault},
    fault::{Fault, FaultKind},
    observe::{AttemptEnd, AttemptStart, CallInfo, Trace},
    service::handle::Handle,
};

/// Progress message of a call whose deadline passed before it was sent.
pub(super) const NOTHING_SENT: &str = "nothing was sent";
/// Progress message of a call that may have reached a server.
pub(super) const MAYBE_PROCESSED: &str = "it may have been processed";

#[derive(Clone, Copy)]
pub(super) struct DispatchContext<'a> {
    pub(super) handle: &'a Handle,
    pub(super) options: &'a CallContext,
    pub(super) start: CallStart,
    /// Records attempts in this trace, if the caller displays them.
    pub(super) trace: Option<&'a Trace>,
    /// Information about the call for the proxy.
    pub(super) call_info: &'a CallInfo,
}

/// The shortest of the time limits that apply to a call.
enum TimeLimit {
    /// A deadline from the handle or the request. It is the deadline of the program's own caller.
    Deadline(Duration),
    /// A timeout set on the handle.
    Timeout(Duration),
    Policy(Duration),
    Route(Duration),
}

impl DispatchContext<'_> {
    /// Returns the fault of a call whose `deadline`, in nanoseconds of the clock, has passed. `progress` says whether
    /// the request was sent.
    #[cold]
    pub(super) fn deadline_fault(&self, deadline: u64, progress: &str) -> Fault {
        let limit = self.limit_of(deadline.saturating_sub(self.start.now));
        let name = self.handle.subscription.name();
        Fault::new(FaultKind::Deadline, format!("{name}: {limit}; {progress}"))
    }

    /// Waits until `service` leaves the state `seen`, and returns the time.
    ///
    /// # Errors
    /// The time that the call has for what precedes its request passes first.
    #[cold]
    pub(super) async fn wait_for_change(
        &self,
        call: &Call<'_, Arc<EndpointPool>>,
        (service, seen): (&Subscription<Arc<EndpointPool>>, &Arc<ServiceState<Arc<EndpointPool>>>),
        now: u64,
    ) -> Result<u64, Fault> {
        let left = call.left_before_request(now);
        if Box::pin(timeout(left, service.changed(seen))).await.is_ok() {
            return Ok(self.handle.mesh.clock.now());
        }
        let progress = if call.attempts() == 0 { NOTHING_SENT } else { MAYBE_PROCESSED };
        Err(match call.has_deadline() {
            true => self.deadline_fault(call.deadline(), progress),
            false => unknown_state_fault(service),
        })
    }

    /// Records the explanation of a route in the trace.
    #[inline]
    pub(super) fn trace_route(&self, call: &Call<'_, Arc<EndpointPool>>, head: &Head) {
        if let Some(trace) = self.trace.filter(|trace| trace.wants_reasons()) {
            let headers = HeaderMapView(&head.headers);
            trace.add_reasons(call.explain_route(&route_view(head, &headers), self.options, self.start));
        }
    }

    /// Records the explanation of the next pick in the trace.
    #[inline]
    pub(super) fn trace_pick(
        &self,
        call: &Call<'_, Arc<EndpointPool>>,
        state: &ServiceState<Arc<EndpointPool>>,
        at: DecisionContext,
    ) {
        if let Some(trace) = self.trace.filter(|trace| trace.wants_reasons()) {
            trace.add_reasons(call.explain_pick(state, self.options, at));
        }
    }

    /// Records the beginning of an attempt in the trace.
    #[inline]
    pub(super) fn trace_attempt(
        &self,
        call: &Call<'_, Arc<EndpointPool>>,
        pool: &EndpointPool,
        pick: &Pick<Arc<EndpointPool>>,
    ) {
        if let Some(trace) = self.trace {
            let now = self.handle.mesh.clock.now();
            trace.attempt_began(&AttemptStart {
                service: call.target().name(),
                endpoint: pool.target(),
                revision: pick.revision(),
                after: Duration::from_nanos(now.saturating_sub(self.start.now)),
            });
        }
    }

    /// Sets `traceparent` to the span of this attempt, if there is one.
    #[inline]
    pub(super) fn write_traceparent(&self, pending: &mut PendingRequest) {
        if let (Some(span), Some(request)) = (self.trace.and_then(Trace::span_to_send), pending) {
            request.head.headers.insert(TRACEPARENT, span.header());
        }
    }

    /// Reports the end of an attempt to the trace and the observer.
    #[inline]
    pub(super) fn attempt_ended(
        &self,
        call: &Call<'_, Arc<EndpointPool>>,
        attempt: &Attempt,
        result: &Result<EndpointResponse, Fault>,
    ) {
        if self.trace.is_some() || self.handle.mesh.observer.is_some() {
            self.report_end(call, attempt, result);
        }
    }

    #[cold]
    fn report_end(
        &self,
        call: &Call<'_, Arc<EndpointPool>>,
        attempt: &Attempt,
        result: &Result<EndpointResponse, Fault>,
    ) {
        let (service, endpoint) = (call.target().name(), attempt.pool.target());
        let took = Duration::from_nanos(self.handle.mesh.clock.now().saturating_sub(attempt.began));
        let status = result.as_ref().map(EndpointResponse::status);
        if let Some(observer) = &self.handle.mesh.observer {
            let outcome = status.map_err(Fault::kind);
            observer.attempt_ended(&AttemptEnd { service, endpoint, outcome, took });
        }
        if let Some(trace) = self.trace {
            trace.attempt_ended(endpoint, took, status);
        }
    }

    /// Returns the time limit that equals `total`. Evaluated only after the call, since almost all calls end in time.
    fn limit_of(&self, total: u64) -> TimeLimit {
        let is_it = |limit: &Duration| nanos(*limit) == total;
        let timeout = self.options.timeout.filter(is_it).map(TimeLimit::Timeout);
        let own = timeout.or_else(|| self.start.limit.filter(is_it).map(TimeLimit::Deadline));
        own.unwrap_or_else(|| match &*self.handle.subscription.state() {
            ServiceState::Ready(ready)
                if ready.upstream.policy().timeouts.total.as_ref().is_some_and(is_it) =>
            {
                TimeLimit::Policy(Duration::from_nanos(total))
            }
            _ => TimeLimit::Route(Duration::from_nanos(total)),
        })
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Deadlines have arbitrary lengths, down to the nanosecond.
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
