use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use fairmesh_connections::{
    BorrowedExchange, BorrowedOutcome, EndpointPool, EndpointResponse, IdleTimeout, SendError,
};
use fairmesh_http::h1::{BorrowedResponse, ReceivedResponse};
use fairmesh_model::ResponseClass;
use fairmesh_router::EndpointTarget;
use tokio::time::Instant;

use super::slow_call::{SlowCall, Stage};
use crate::{
    call::{AttemptOutcome, Call, CallStart},
    discovery::RouteBackendIndex,
    dispatch::{attempt::Attempt, retry::FirstAttempt},
    load_report::LoadRecorder,
    service::handle::Handle,
};

/// A call whose borrowed request was sent.
pub struct FastCall<'a> {
    pub(super) handle: &'a Handle,
    pub(super) call: Call<'a, Arc<EndpointPool>>,
    pub(super) start: CallStart,
    pub(super) attempt: Attempt,
    pub(super) exchange: BorrowedExchange,
    pub(super) until: Instant,
    /// Whether the request body was dropped.
    pub(super) is_body_dropped: bool,
    /// A response that could not be borrowed, or the error. Boxed, since both are rare and each connection reserves
    /// memory for this value.
    pub(super) owned: Option<Box<Result<ReceivedResponse, SendError>>>,
}

impl<'a> FastCall<'a> {
    /// Drops the body if the request would not be sent again in any case. That decision is then fixed for the whole
    /// call. Returns whether the body's memory can be reused for the next request.
    #[must_use]
    pub fn drop_body(&mut self) -> bool {
        self.is_body_dropped = !self.call.may_be_sent_twice(&self.call.snapshot(), &self.handle.context);
        self.is_body_dropped
    }

    /// Waits for the response. Returns the result of `read` for a borrowed response, and `None` for any other
    /// response.
    #[inline]
    pub fn poll<T>(
        &mut self,
        read: impl FnOnce(&BorrowedResponse<'_>, &EndpointTarget, &mut Context<'_>) -> T,
        context: &mut Context<'_>,
    ) -> Poll<Option<T>> {
        let (call, pool, clock) = (&self.call, &*self.attempt.pool, self.handle.mesh.clock);
        let read = |response: &BorrowedResponse<'_>, context: &mut Context<'_>| {
            call.record_bytes(response.body.len());
            call.report_response(ResponseClass::of_status(response.status.as_u16()));
            LoadRecorder { pool, clock }.record_borrowed(response);
            read(response, pool.target(), context)
        };
        let owned = match ready!(self.exchange.poll(self.until, read, context)) {
            Ok(BorrowedOutcome::Borrowed(result)) => return Poll::Ready(Some(result)),
            Ok(BorrowedOutcome::Owned(response)) => Ok(response),
            Err(error) => Err(error),
        };
        self.owned = Some(Box::new(owned));
        Poll::Ready(None)
    }

    /// The call's route and backend.
    #[inline]
    pub fn route_backend(&self) -> RouteBackendIndex {
        self.call.route_backend()
    }

    /// Ends the call after its response was read.
    #[inline]
    pub fn end(self) {
        let Self { handle, mut call, attempt, exchange, .. } = self;
        let mesh = &handle.mesh;
        attempt.record_latency(mesh, true);
        attempt.poll_load(mesh, &call);
        call.end(AttemptOutcome::Responded);
        attempt.pool.keep_borrowed(exchange);
    }

    /// Continues as a slow call because the response could not be borrowed. The request may be sent again.
    #[cold]
    pub fn into_slow(self) -> SlowCall<'a> {
        let Self { handle, call, start, attempt, exchange, is_body_dropped, owned, .. } = self;
        let result = match owned.map(|owned| *owned) {
            Some(Ok(response)) => Ok(EndpointResponse::H1(exchange.into_response(response))),
            Some(Err(SendError::TimedOut)) | None if handle.mesh.clock.now() < call.deadline() => {
                Err(SendError::Idle(IdleTimeout::Response(call.response_header_timeout())))
            }
            Some(Err(error)) => Err(error),
            None => Err(SendError::TimedOut),
        };
        let stage = Stage::Begun(FirstAttempt::Completed(attempt, Box::new(result)));
        let mut slow = SlowCall::new(handle, call, start, stage);
        slow.is_body_dropped = is_body_dropped;
        slow
    }
}

impl fmt::Debug for FastCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastCall").field("endpoint", self.attempt.pool.target()).finish_non_exhaustive()
    }
}
