//! Calls whose request another component has already sent: waits for the response, and makes any further attempts
//! itself.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_connections::{EndpointPool, OwnedConnection, PendingRequest};
use http::Response;
use tokio::time::Instant;

use super::{
    CallFuture,
    attempt::Attempt,
    context::DispatchContext,
    request::{RequestCopy, pending_request},
    retry::{FirstAttempt, retry_loop},
    route::Routed,
};
use crate::{
    call::Call,
    discovery::ServiceState,
    fault::{Fault, FaultKind},
    response_body::Body,
    service::exported_service::CountedCall,
};

/// Extension of a request that was already sent. Shared, since extensions must be `Clone` and connections are not.
#[derive(Clone)]
pub struct SentRequest {
    began: Instant,
    /// Whether the body may be sent again.
    has_body: bool,
    sent: Arc<Mutex<Option<SentAttempt>>>,
}

/// The attempt that was sent.
pub(super) struct SentAttempt {
    pub(super) began: Instant,
    /// Random seed of the pick, so that the call is routed by the same decision.
    pub(super) seed: u64,
    has_body: bool,
    counted: CountedCall,
    connection: OwnedConnection,
}

impl SentRequest {
    pub(crate) fn new(counted: CountedCall, connection: OwnedConnection, began: Instant, seed: u64) -> Self {
        let sent = SentAttempt { began, seed, has_body: true, counted, connection };
        Self { began, has_body: true, sent: Arc::new(Mutex::new(Some(sent))) }
    }

    /// Declares that the body is a placeholder, because only the server has the real one. The call then has a single
    /// attempt.
    #[must_use]
    pub fn without_body(self) -> Self {
        if let Some(sent) = &mut *self.sent.lock().unwrap_or_else(PoisonError::into_inner) {
            sent.has_body = false;
        }
        Self { has_body: false, ..self }
    }

    /// When the request was sent.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Takes the attempt. Works only once.
    ///
    /// # Errors
    /// The attempt was already taken, and the request cannot be sent like any other.
    pub(super) fn take(self) -> Result<Option<SentAttempt>, Fault> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner).take();
        if sent.is_none() && !self.has_body {
            return Err(Fault::new(FaultKind::Invalid, "the request was sent, and its body was not kept"));
        }
        Ok(sent)
    }
}

impl fmt::Debug for SentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentRequest").field("began", &self.began).finish_non_exhaustive()
    }
}

/// Waits for the response of the first attempt, which was sent earlier. Makes further attempts if the policy allows.
pub(super) fn execute_sent<'a>(
    dispatch: DispatchContext<'a>,
    routed: Routed,
    call: &'a mut Call<'_, Arc<EndpointPool>>,
    pending: &'a mut PendingRequest,
    sent: SentAttempt,
) -> CallFuture<'a> {
    Box::pin(receive(dispatch, routed, call, pending, sent))
}

async fn receive(
    dispatch: DispatchContext<'_>,
    routed: Routed,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pending: &mut PendingRequest,
    SentAttempt { began, has_body, counted, connection, .. }: SentAttempt,
) -> Result<Response<Body>, Fault> {
    let mesh = &dispatch.handle.mesh;
    let needs_copy = has_body && call.may_be_sent_twice(&routed.snapshot, dispatch.options);
    let request = pending_request(pending)?;
    let (copy, method) = (RequestCopy::of(request, needs_copy), request.head.method.clone());
    *pending = None;
    let now = routed.now;
    let pool = Arc::clone(counted.pool());
    take_over(dispatch, routed, call, counted, mesh.clock.at(began));
    let attempt = Attempt::begin(dispatch.handle, call, pool, now);
    let timeouts = attempt.timeouts(mesh, call);
    let result = attempt.pool.receive(connection, &method, timeouts).await;
    let first = FirstAttempt::Completed(attempt, Box::new(result));
    let result = retry_loop(dispatch, first, call, pending, copy.as_ref()).await;
    result.map_err(|fault| fault.after(call.attempts()))
}

/// Turns the counted request into this call's attempt, unless its endpoint no longer belongs to the service.
fn take_over(
    dispatch: DispatchContext<'_>,
    Routed { snapshot, .. }: Routed,
    call: &mut Call<'_, Arc<EndpointPool>>,
    counted: CountedCall,
    began: u64,
) {
    let mesh = &dispatch.handle.mesh;
    let ServiceState::Ready(ready) = &**snapshot else { return };
    if ready.opened_transport(counted.index()).is_some_and(|pool| Arc::ptr_eq(pool, counted.pool())) {
        let (pool, index) = (Arc::clone(counted.pool()), counted.index());
        counted.hand_over();
        let picked = call.take_over(snapshot, index, mesh.clock, began);
        dispatch.trace_attempt(call, &pool, &picked);
    }
}
