//! Opens connections instead of calls, with the same picks and retries. No request is sent.

use std::sync::Arc;

use fairmesh_connections::{EndpointPool, Head, SendError};
use fairmesh_headers::HeaderMapView;
use fairmesh_http::BoxError;
use http::{Response, request::Parts};

use super::{
    authorize::{authorize, authorize_for},
    classify::endpoint_name,
    context::{DispatchContext, NOTHING_SENT},
    counted,
    lookaside_pick::apply_lookaside,
    pick::pick_endpoint,
    request::{route_view, take_head},
    route::{Routed, route},
    route_actions::{direct_response, inject_delay},
};
use crate::{
    call::{AttemptOutcome, Call, CallStart, RetryDecision, nanos},
    discovery::{DEFAULT_READY_TIMEOUT, ServiceState, wait_ready},
    fault::{Fault, FaultKind, Retry},
    observe::CallInfo,
    response_body::{AttemptGuard, Body, Tunnel},
    service::handle::{CallOptions, Handle},
};

/// Result of a CONNECT request (RFC 9110 9.3.6).
#[derive(Debug)]
pub enum ConnectResult {
    /// A connection to a server.
    Tunnel(Tunnel),
    /// A response from the route itself: a redirect or an injected failure.
    DirectResponse(Response<Body>),
    /// Neither the caller nor a route allows CONNECT.
    NotAllowed,
}

/// Connects to a server, or to another server after a failure. Of the route's actions, only the rate limit applies.
pub(crate) async fn connect(handle: &Handle, mut parts: Parts) -> Result<Tunnel, Fault> {
    let connected = async {
        let call_info = CallInfo::default();
        let (options, start) = begin(handle, &parts, &call_info)?;
        let dispatch =
            DispatchContext { handle, options: &options.context, start, trace: None, call_info: &call_info };
        let head = take_head(handle, &mut parts)?;
        let mut call = Call::new(&handle.subscription);
        let tunnel = async {
            let routed = route(dispatch, &mut call, &head).await?;
            let routed = authorize(dispatch, &call, &head, routed).await?;
            retry_loop(dispatch, &mut call, routed).await
        };
        let tunnel = tunnel.await;
        tunnel.inspect_err(|fault| call.report_fault(fault.kind().into()))
    };
    counted(handle, connected).await
}

/// Opens the tunnel of a CONNECT request, with its route's actions. The request must be `allowed`, or its route must
/// name CONNECT.
pub(crate) async fn open_tunnel(
    handle: &Handle,
    mut parts: Parts,
    allowed: bool,
    call_info: &CallInfo,
) -> Result<ConnectResult, Fault> {
    let opened = async {
        let (options, start) = begin(handle, &parts, call_info)?;
        let dispatch = DispatchContext { handle, options: &options.context, start, trace: None, call_info };
        let mut head = take_head(handle, &mut parts)?;
        if !allowed && !route_names_connect(dispatch, &head).await? {
            return Ok(ConnectResult::NotAllowed);
        }
        let mut call = Call::new(&handle.subscription);
        let result = async {
            drop(route(dispatch, &mut call, &head).await?);
            let actions = call.actions().cloned();
            if let Some(actions) = &actions
                && let Some(response) = direct_response(dispatch, (actions, &call), &mut head).await?
            {
                return Ok(ConnectResult::DirectResponse(response));
            }
            authorize_for(dispatch, call.target(), &head).await?;
            if let Some(actions) = &actions {
                inject_delay(dispatch, actions, &call).await?;
            }
            // Time may have passed since routing, for example by an injected delay or while the service was waited for.
            let routed = Routed { now: handle.mesh.clock.now(), snapshot: call.snapshot() };
            retry_loop(dispatch, &mut call, routed).await.map(ConnectResult::Tunnel)
        };
        let result: Result<_, Fault> = result.await;
        result.inspect_err(|fault| call.report_fault(fault.kind().into()))
    };
    counted(handle, opened).await
}

/// Reads the options of a tunnel. Fails if the tunnel's deadline has passed.
fn begin<'a>(
    handle: &'a Handle,
    parts: &Parts,
    call_info: &CallInfo,
) -> Result<(CallOptions<'a>, CallStart), Fault> {
    let mesh = &handle.mesh;
    let options = handle.call_options(parts)?;
    let start = CallStart { now: mesh.clock.now(), limit: options.limit, seed: mesh.seed() };
    if options.limit.is_some_and(|left| left.is_zero()) {
        let dispatch = DispatchContext { handle, options: &options.context, start, trace: None, call_info };
        return Err(dispatch.deadline_fault(start.now, NOTHING_SENT).with_retry(Retry::Unsent));
    }
    Ok((options, start))
}

/// Whether a request's route names CONNECT. Checked before the call is routed, because rate limits count routed
/// calls.
async fn route_names_connect(dispatch: DispatchContext<'_>, head: &Head) -> Result<bool, Fault> {
    let DispatchContext { handle, options, start, .. } = dispatch;
    let limits = [start.limit, options.timeout];
    let timeout = limits.into_iter().flatten().min().unwrap_or(DEFAULT_READY_TIMEOUT);
    let state = wait_ready(&handle.subscription, timeout).await?;
    let headers = HeaderMapView(&head.headers);
    Ok(
        matches!(&*state, ServiceState::Ready(ready) if ready.upstream.names_connect(&route_view(head, &headers))),
    )
}

/// Connects to endpoints until one accepts.
async fn retry_loop(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    routed: Routed,
) -> Result<Tunnel, Fault> {
    let mesh = &dispatch.handle.mesh;
    let Routed { mut now, mut snapshot } = apply_lookaside(dispatch, call, routed, None).await.routed;
    loop {
        let pool = pick_endpoint(dispatch, call, snapshot, &mut now).await?;
        dispatch.handle.count(|counters| &counters.attempts);
        // Half of the time left, as for a request: the rest is for another server.
        let half = now + nanos(call.left_before_request(now)) / 2;
        let connected_by = mesh.clock.instant(half.min(call.attempt_ends(now)));
        let error = match pool.open_raw(connected_by).await {
            Ok(connection) => {
                call.end(AttemptOutcome::Responded);
                let attempt = AttemptGuard::of_tunnel(call, pool, mesh.clock);
                let none = || Fault::new(FaultKind::NoEndpoints, "no endpoint was picked");
                return Ok(Tunnel::new(connection, attempt.ok_or_else(none)?));
            }
            Err(error) => error,
        };
        let (outcome, fault) = classify_connect(error, call, &pool);
        drop(pool);
        match call.finish(outcome, mesh.seed()) {
            RetryDecision::Retry { after } if after.is_zero() => {}
            RetryDecision::Retry { after } => tokio::time::sleep(after).await,
            RetryDecision::BudgetExhausted => {
                dispatch.handle.count(|counters| &counters.retry_budget_exhausted);
                return Err(fault);
            }
            // A failed connect never refers to a shard map.
            RetryDecision::Done | RetryDecision::AwaitMap { .. } => return Err(fault),
        }
        dispatch.handle.count(|counters| &counters.retries);
        now = mesh.clock.now();
        snapshot = call.snapshot();
    }
}

fn classify_connect(
    error: SendError,
    call: &Call<'_, Arc<EndpointPool>>,
    pool: &EndpointPool,
) -> (AttemptOutcome, Fault) {
    let (outcome, what) = match error {
        SendError::ConnectTimedOut => {
            (AttemptOutcome::ConnectTimedOut, "could not be reached in half of the time that was left")
        }
        SendError::NoIdentity(_) | SendError::PlaintextRefused(_) => {
            (AttemptOutcome::Unreachable, "cannot be called by this program")
        }
        SendError::LocalResources(_) => (AttemptOutcome::CallerFailed, "cannot be connected to from here"),
        _ => (AttemptOutcome::Unreachable, "cannot be reached"),
    };
    let message = format!("{} {what}", endpoint_name(call, pool));
    (outcome, Fault::new(FaultKind::Unreachable, message).caused_by(BoxError::from(error)))
}
