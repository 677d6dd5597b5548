//! Sends calls over the network. A [`Call`](crate::call::Call) decides each attempt, and an endpoint pool sends it.
//!
//! Decision: policies (retries, deadlines, budgets) are applied around each attempt, not by a stack of tower layers.
//! Layers were rejected because each of them boxes or wraps the request and its body, and because the fast path could
//! not share them.

mod attempt;
mod authorize;
mod borrowed_headers;
mod classify;
mod completed_call;
mod context;
mod direct_client;
mod execute;
mod fast_path;
mod fault_response;
mod hedge;
mod load_poll;
mod lookaside_pick;
mod mirror;
mod pick;
mod request;
mod retry;
mod route;
mod route_actions;
mod sent_request;
mod tunnel;

use std::{pin::Pin, sync::Arc};

use fairmesh_connections::RequestBody;
use fairmesh_headers::WRONG_SHARD;
use http::{Response, request::Parts};
use tracing::{Instrument as _, Span};

pub use self::{
    authorize::AllowedCall,
    completed_call::CompletedCall,
    direct_client::{DirectBody, DirectClient},
    fast_path::{FastCall, SlowCall},
    sent_request::SentRequest,
    tunnel::ConnectResult,
};
pub(crate) use self::{
    completed_call::record_completed,
    fast_path::try_fast,
    request::{body_error, request_authority},
    tunnel::{connect, open_tunnel},
};
use crate::{
    fault::Fault,
    lookaside::Leases,
    observe::{CallInfo, count, span},
    response_body::Body,
    service::handle::Handle,
};

/// Boxed future of a part of a call. Boxing suits parts that are rare, or so large that moving them with every outer
/// future would be slow. Functions that return this type are compiled in this crate; `async` functions are compiled
/// again in each program that calls them.
type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>, Fault>> + Send + 'a>>;

/// Makes a call, from records or leases. Its body was already taken over.
///
/// From here on, large values are borrowed: a future stores its arguments beside its own state, and is moved with all
/// of them to the place where it is polled.
pub(crate) async fn call(
    handle: &Handle,
    parts: &mut Parts,
    body: &mut RequestBody,
    call_info: &CallInfo,
) -> Result<Response<Body>, Fault> {
    let span = span::of_call(handle.subscription.name(), parts, handle.default_headers.parent);
    match handle.mesh.source.leases() {
        None if span.is_disabled() => counted(handle, execute::execute(handle, parts, body, call_info)).await,
        None => {
            let call = counted(handle, execute::execute(handle, parts, body, call_info));
            Box::pin(traced(span, call)).await
        }
        Some(leases) => {
            Box::pin(traced(span, call_by_leases(leases, handle, (parts, body), call_info))).await
        }
    }
}

/// Makes a call inside its tracing span.
async fn traced(
    span: Span,
    call: impl Future<Output = Result<Response<Body>, Fault>>,
) -> Result<Response<Body>, Fault> {
    let result = call.instrument(span.clone()).await;
    span::record(&span, result.as_ref().map(Response::status).map_err(Fault::kind));
    result
}

/// Makes a call with the leases for its key and role. If the server no longer holds the shard, it reports that the
/// leases are outdated; the caller still gets that response, since the request has been consumed.
async fn call_by_leases(
    leases: &Leases,
    handle: &Handle,
    (parts, body): (&mut Parts, &mut RequestBody),
    call_info: &CallInfo,
) -> Result<Response<Body>, Fault> {
    let context = handle.context(&parts.headers)?.into_owned();
    let set = leases.for_call(handle.subscription.name(), &context);
    let handle = Handle { subscription: Arc::clone(&set.subscription), ..handle.clone() };
    let response = counted(&handle, execute::execute(&handle, parts, body, call_info)).await?;
    if response.headers().contains_key(&WRONG_SHARD) {
        set.expire();
    }
    Ok(response)
}

/// Counts a call, and its fault if the call fails.
async fn counted<T>(handle: &Handle, call: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let counters = &handle.mesh.counters;
    count(&counters.calls);
    let result = match handle.mesh.injected_fault(handle.subscription.name()) {
        None => call.await,
        Some(fault) => Err(fault),
    };
    if result.is_err() {
        count(&counters.faults);
    }
    result
}
