//! Calls over the network: attempts, each decided by a [`Call`](crate::call::Call) and sent by an endpoint pool.
//!
//! Decision: policies (retries, deadlines, budgets) are applied around each attempt, and not by a stack of tower
//! layers. Layers were rejected because each of them boxes or wraps the request and its body, and because the fast path
//! could not share them.

mod attempt;
mod authorize;
mod borrowed_headers;
mod classify;
mod completed;
mod context;
mod direct;
mod execute;
mod fast_path;
mod fault_response;
mod hedge;
mod load_poll;
mod lookaside;
mod mirror;
mod pick;
mod request;
mod retry;
mod route;
mod route_actions;
mod sent;
mod tunnel;

use std::{pin::Pin, sync::Arc};

use fairmesh_connections::RequestBody;
use fairmesh_headers::WRONG_SHARD;
use http::{Response, request::Parts};
use tracing::{Instrument as _, Span};

pub use self::{
    authorize::AllowedCall,
    completed::CompletedCall,
    direct::{DirectBody, DirectClient},
    fast_path::{FastCall, SlowCall},
    sent::SentRequest,
    tunnel::ConnectResult,
};
pub(crate) use self::{
    completed::record_completed,
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

/// A part of a call that is boxed: because it is rare or large, and each future around it is moved. Functions that return one
/// are compiled with this crate; those that are `async` are compiled again in each program that calls.
type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>, Fault>> + Send + 'a>>;

/// Makes a call, by records or by leases. Its body was taken over already.
///
/// Large values are borrowed from here on: a future holds its arguments beside its own state, and is moved with
/// all of them to where it is polled.
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

/// Makes a call within its span.
async fn traced(
    span: Span,
    call: impl Future<Output = Result<Response<Body>, Fault>>,
) -> Result<Response<Body>, Fault> {
    let result = call.instrument(span.clone()).await;
    span::record(&span, result.as_ref().map(Response::status).map_err(Fault::kind));
    result
}

/// Makes a call by the leases for its key and role. A server that no longer holds its shard reports that they are
/// outdated; the caller gets its response all the same, since the request is gone.
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

/// Counts a call, and its fault where it fails.
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
