//! Routes a call: chooses its target, timeouts and actions.

use std::{ptr, sync::Arc, time::Duration};

use fairmesh_model::ServiceName;
use fairmesh_router::{Headers, PickError, PickParams, RequestView, Step};

use super::{
    context::{CallContext, CallStart},
    state::{Call, SnapshotGuard},
    timeouts::{CallTimeouts, TimeoutParams, shorter},
};
use crate::{
    discovery::{EndpointTransport, ServiceState, Subscription, state_fault},
    fault::{Fault, FaultKind},
};

/// Why no attempt can begin. Boxed, so that the common result is returned in registers.
#[derive(Debug)]
pub enum Unresolved<T> {
    /// The state of this service may change soon: the caller must wait for a newer one.
    Waiting(Arc<Subscription<T>>, Arc<ServiceState<T>>),
    /// The call has ended with this fault.
    Fault(Fault),
}

impl<T: EndpointTransport> Call<'_, T> {
    /// Finds the route of the call, and with it the target and the timeouts. The returned snapshot decides the first
    /// attempt.
    ///
    /// # Errors
    /// The service is not known yet; the caller then calls this again with the same start once it is known. Or a rate
    /// limit refuses the call.
    #[inline]
    pub fn route<H: Headers + ?Sized>(
        &mut self,
        request: &RequestView<'_, H>,
        context: &CallContext,
        start: CallStart,
    ) -> Result<SnapshotGuard<T>, Box<Unresolved<T>>> {
        let state = self.service.borrow_state();
        let ServiceState::Ready(ready) = &**state else {
            return Err(unresolved(self.service, state));
        };
        let is_empty = |name: &ServiceName| ready.is_empty_backend(name);
        let routed = ready.upstream.route_past_empty(request, start.seed, is_empty);
        self.route_backend = ready.route_backend(routed.route_backend);
        self.timeouts = CallTimeouts::new(&TimeoutParams {
            timeouts: &routed.timeouts,
            total: shorter(shorter(routed.timeouts.total, context.timeout), start.limit),
            began: start.now,
            grpc: request.grpc,
            is_stream: self.is_stream,
        });
        // Nearly always the very same name, so that its text need not be compared.
        let is_own = ptr::eq(routed.target, ready.upstream.name());
        let backend = if is_own { None } else { ready.split(routed.target) };
        // The route may give the calls of an empty backend to another one. Nothing is counted before that is decided.
        if let Some(waiting) = backend.and_then(waiting) {
            return Err(waiting);
        }
        if let Err(wait) = ready.upstream.admit(&routed, start.now) {
            return Err(rate_limited(self.service, wait));
        }
        self.idempotent = context.idempotent || routed.idempotent || is_idempotent(request);
        self.actions = routed.actions.cloned();
        self.class = routed.class.cloned();
        self.seed = start.seed;
        self.service.retry_budget.deposit();
        if context.key.is_none() {
            self.policy_key = ready.upstream.key(request);
        }
        // Almost always the very same name, so that its text need not be compared.
        if is_own {
            return Ok(state);
        }
        self.target_override = backend.cloned();
        Ok(self.snapshot())
    }

    /// Explains [`route`](Self::route), for traces.
    #[cold]
    pub(crate) fn explain_route<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        context: &CallContext,
        start: CallStart,
    ) -> Vec<Step> {
        match &**self.service.borrow_state() {
            ServiceState::Ready(ready) => {
                let ask =
                    PickParams { key: context.key, role: context.role.as_ref(), ..PickParams::default() };
                let (at, empty) = ((start.now, start.seed), ready.empty_backends());
                ready.upstream.explain_route(request, &ask, at, &empty).steps
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the result for a call whose service has no snapshot.
#[cold]
pub(super) fn unresolved<T>(service: &Arc<Subscription<T>>, state: SnapshotGuard<T>) -> Box<Unresolved<T>> {
    Box::new(match state_fault(service, &state) {
        Some(fault) => Unresolved::Fault(fault),
        None => Unresolved::Waiting(Arc::clone(service), state.into_owned()),
    })
}

/// Wait for the records of a backend; `None` if they have arrived.
fn waiting<T>(backend: &Arc<Subscription<T>>) -> Option<Box<Unresolved<T>>> {
    let state = backend.borrow_state();
    let is_waiting = matches!(&**state, ServiceState::Waiting);
    is_waiting.then(|| Box::new(Unresolved::Waiting(Arc::clone(backend), state.into_owned())))
}

#[cold]
fn rate_limited<T>(service: &Subscription<T>, wait: Duration) -> Box<Unresolved<T>> {
    let name = service.name();
    // Rounded up to milliseconds.
    let rest = Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
    let message = format!(
        "{name}: its policy allows this caller no more calls for {rest:?}; call later, or raise the limit"
    );
    Box::new(Unresolved::Fault(Fault::new(FaultKind::RateLimited, message).with_retry_after(wait)))
}

#[cold]
pub(super) fn unroutable<T>(service: &Subscription<T>, why: &PickError) -> Box<Unresolved<T>> {
    Box::new(Unresolved::Fault(Fault::new(why.into(), format!("{}: {why}", service.name()))))
}

/// Whether the method is idempotent (RFC 9110 9.2.2). gRPC sends everything as POST.
fn is_idempotent<H: Headers + ?Sized>(request: &RequestView<'_, H>) -> bool {
    !request.grpc && matches!(request.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}
