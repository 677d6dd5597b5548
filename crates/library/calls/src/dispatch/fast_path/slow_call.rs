use std::{fmt, sync::Arc};

use bytes::Bytes;
use fairmesh_connections::{EndpointPool, RequestBody};
use fairmesh_http::BoxError;
use http::{Request, Response};

use crate::{
    call::{Call, CallStart},
    dispatch::{
        context::DispatchContext,
        execute::execute_routed,
        request::{RequestCopy, body_error, pending_request, take_head, write_origin},
        retry::{FirstAttempt, retry_loop},
        route::Routed,
    },
    fault::Fault,
    observe::{CallInfo, count},
    response_body::Body,
    service::handle::Handle,
};

/// A call that began on the fast path and continues with a parsed request.
pub struct SlowCall<'a> {
    handle: &'a Handle,
    call: Call<'a, Arc<EndpointPool>>,
    start: CallStart,
    stage: Stage,
    /// Whether the request body was dropped. If so, it was sent once and must not be sent again.
    pub(super) is_body_dropped: bool,
}

/// Stage that the call reached on the fast path.
pub(super) enum Stage {
    /// A rate limit refused the call. Routing it again would count it again.
    Refused(Fault),
    Routed,
    Begun(FirstAttempt),
}

impl<'a> SlowCall<'a> {
    pub(super) fn new(
        handle: &'a Handle,
        call: Call<'a, Arc<EndpointPool>>,
        start: CallStart,
        stage: Stage,
    ) -> Self {
        Self { handle, call, start, stage, is_body_dropped: false }
    }

    /// Continues like [`send_noted`](crate::forwarding::send_noted). `request` has no body if the body was dropped.
    ///
    /// # Errors
    /// As for [`send_noted`](crate::forwarding::send_noted).
    pub async fn send<B>(self, request: Request<B>, call_info: &CallInfo) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mesh = &self.handle.mesh;
        let result = self.execute(request, call_info).await;
        if result.is_err() {
            count(&mesh.counters.faults);
        }
        result
    }

    async fn execute<B>(self, request: Request<B>, call_info: &CallInfo) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Self { handle, mut call, start, stage, is_body_dropped } = self;
        let (mut parts, body) = request.into_parts();
        let body = RequestBody::take_unpin(body).await.map_err(body_error)?;
        let dispatch = DispatchContext { handle, options: &handle.context, start, trace: None, call_info };
        call_info.set_route_backend(call.route_backend());
        let mut head = take_head(handle, &mut parts)?;
        write_origin(&mut head, call.origin());
        let mut pending = Some(fairmesh_connections::Request::new(head, body));
        let result = match stage {
            Stage::Refused(fault) => Err(fault),
            Stage::Routed => {
                let routed = Routed { now: start.now, snapshot: call.snapshot() };
                execute_routed(dispatch, &mut call, routed, &mut pending).await
            }
            Stage::Begun(first) => {
                let is_repeatable = call.may_be_sent_twice(&call.snapshot(), dispatch.options);
                let copy = RequestCopy::of(pending_request(&mut pending)?, !is_body_dropped && is_repeatable);
                if !first.is_unsent() {
                    pending = None;
                }
                retry_loop(dispatch, first, &mut call, &mut pending, copy.as_ref()).await
            }
        };
        let result = result.map_err(|fault| fault.after(call.attempts()));
        result.inspect_err(|fault| call.report_fault(fault.kind().into()))
    }
}

impl fmt::Debug for SlowCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowCall").field("service", self.call.target().name()).finish_non_exhaustive()
    }
}
