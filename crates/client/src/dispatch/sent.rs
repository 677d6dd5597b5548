//! Requests that another component has sent: the call waits for the response, and makes further attempts itself.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::Response;
use tokio::time::Instant;

use super::{
    attempt::Attempt,
    context::DispatchContext,
    request::{RequestCopy, pending_request},
    retry::{FirstAttempt, retry_loop},
    route::Routed,
};
use crate::{
    call::{Call, DecisionContext},
    discovery::ServiceState,
    fault::Fault,
    response_body::Body,
    transport::{EndpointPool, OwnedConnection, PendingRequest},
};

/// Extension of a request that was sent already. Shared, since extensions must be `Clone` and connections are not.
#[derive(Clone)]
pub struct SentRequest {
    began: Instant,
    sent: Arc<Mutex<Option<SentAttempt>>>,
}

/// The attempt that was sent.
pub(super) struct SentAttempt {
    pub(super) began: Instant,
    pool: Arc<EndpointPool>,
    connection: OwnedConnection,
}

impl SentRequest {
    pub(crate) fn new(pool: Arc<EndpointPool>, connection: OwnedConnection, began: Instant) -> Self {
        let sent = SentAttempt { began, pool, connection };
        Self { began, sent: Arc::new(Mutex::new(Some(sent))) }
    }

    /// When it was sent.
    pub fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn take(self) -> Option<SentAttempt> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for SentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentRequest").field("began", &self.began).finish_non_exhaustive()
    }
}

/// Waits for the response of the first attempt, which was sent; makes others where its policy says so.
pub(super) async fn execute_sent(
    dispatch: DispatchContext<'_>,
    routed: Routed,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pending: &mut PendingRequest,
    SentAttempt { pool, connection, .. }: SentAttempt,
) -> Result<Response<Body>, Fault> {
    let mesh = &dispatch.handle.mesh;
    let needs_copy = call.may_be_sent_twice(&routed.snapshot, dispatch.options);
    let request = pending_request(pending)?;
    let (copy, method) = (RequestCopy::of(request, needs_copy), request.head.method.clone());
    *pending = None;
    let now = routed.now;
    count_pick(dispatch, routed, call, &pool);
    let attempt = Attempt::begin(mesh, call, pool, now);
    let timeouts = attempt.timeouts(mesh, call);
    let result = attempt.pool.receive(connection, &method, timeouts).await;
    let first = FirstAttempt::Completed(attempt, Box::new(result));
    let result = retry_loop(dispatch, first, call, pending, copy.as_ref()).await;
    result.map_err(|fault| fault.after(call.attempts()))
}

/// Counts the attempt at its endpoint, unless that is no longer the only one: the pick could be another one then.
fn count_pick(
    dispatch: DispatchContext<'_>,
    Routed { now, snapshot }: Routed,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pool: &Arc<EndpointPool>,
) {
    let mesh = &dispatch.handle.mesh;
    let ServiceState::Ready(ready) = &**snapshot else { return };
    if !ready.sole_transport(&mesh.transport).is_some_and(|sole| Arc::ptr_eq(&sole, pool)) {
        return;
    }
    let at = DecisionContext { clock: mesh.clock, now, seed: mesh.seed() };
    dispatch.trace_pick(call, &snapshot, at);
    if let Ok(picked) = call.pick(snapshot, dispatch.options, at) {
        dispatch.trace_attempt(call, pool, &picked);
    }
}
