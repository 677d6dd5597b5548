//! Executes one call, from its request to its response.

use std::{mem, sync::Arc};

use fairmesh_connections::{EndpointPool, PendingRequest, Request, RequestBody};
use fairmesh_headers::{SpanContext, WRONG_SHARD};
use http::{Response, request::Parts};

use super::{
    context::{DispatchContext, NOTHING_SENT},
    lookaside_pick::{Decided, apply_lookaside},
    request::{pending_request, take_head, write_key, write_origin},
    retry::execute_attempts,
    route::{Routed, route},
    route_actions,
    sent_request::{SentAttempt, SentRequest, execute_sent},
};
use crate::{
    call::{Call, CallStart},
    fault::{Fault, Retry},
    observe::{CallInfo, Trace},
    response_body::Body,
    service::handle::Handle,
};

pub(super) async fn execute(
    handle: &Handle,
    parts: &mut Parts,
    body: &mut RequestBody,
    call_info: &CallInfo,
) -> Result<Response<Body>, Fault> {
    let clock = handle.mesh.clock;
    let sent = parts.extensions.remove::<SentRequest>().map(SentRequest::take).transpose()?.flatten();
    let now = sent.as_ref().map_or_else(|| clock.now(), |sent| clock.at(sent.began));
    let options = handle.call_options(parts)?;
    let seed = sent.as_ref().map_or_else(|| handle.mesh.seed(), |sent| sent.seed);
    let start = CallStart { now, limit: options.limit, seed };
    let trace = parts.extensions.get::<Trace>().cloned();
    let dispatch =
        DispatchContext { handle, options: &options.context, start, trace: trace.as_ref(), call_info };
    if options.limit.is_some_and(|left| left.is_zero()) {
        return Err(dispatch.deadline_fault(now, NOTHING_SENT).with_retry(Retry::Unsent));
    }
    let body = mem::replace(body, RequestBody::empty());
    let mut pending = Some(Request::new(take_head(handle, parts)?, body));
    let mut call = Call::new(&handle.subscription);
    let request = pending_request(&mut pending)?;
    call.set_request_bytes(request.body.buffered_len());
    if request.body.has_rest() {
        call.count_streamed(&mut request.body);
    }
    call.find_parent(&clock, now, || SpanContext::read(&request.head.headers).map(|span| span.trace));
    write_origin(&mut request.head, call.origin());
    let result = execute_call(dispatch, &mut call, &mut pending, sent).await;
    result.inspect_err(|fault| call.report_fault(fault.kind().into()))
}

/// Routes a call, and executes it.
async fn execute_call(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pending: &mut PendingRequest,
    sent: Option<SentAttempt>,
) -> Result<Response<Body>, Fault> {
    let routed = route(dispatch, call, &pending_request(pending)?.head).await?;
    match sent {
        Some(sent) => execute_sent(dispatch, routed, call, pending, sent).await,
        None => execute_routed(dispatch, call, routed, pending).await,
    }
}

/// Executes a routed call.
pub(super) async fn execute_routed(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    routed: Routed,
    pending: &mut PendingRequest,
) -> Result<Response<Body>, Fault> {
    let head = pending.as_ref().map(|request| &request.head);
    let Decided { routed, leases } = apply_lookaside(dispatch, call, routed, head).await;
    if let Some(key) = call.policy_key() {
        write_key(&mut pending_request(pending)?.head, key);
    }
    let result = if let Some(actions) = call.actions().cloned() {
        drop(routed);
        route_actions::execute(dispatch, actions, call, pending).await
    } else {
        execute_attempts(dispatch, routed, call, pending).await
    };
    if let (Some(leases), Ok(response)) = (leases, &result)
        && response.headers().contains_key(&WRONG_SHARD)
    {
        leases.expire();
    }
    result.map_err(|fault| fault.after(call.attempts()))
}
