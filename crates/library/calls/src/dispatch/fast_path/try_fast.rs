use std::sync::Arc;

use fairmesh_connections::EndpointPool;
use fairmesh_headers::{DEADLINE, ORIGIN};
use fairmesh_http::h1::BorrowedRequest;
use tokio::time::Instant;

use super::{
    fast_call::FastCall,
    slow_call::{SlowCall, Stage},
};
use crate::{
    call::{Call, CallStart, DecisionContext, Unresolved, nanos},
    discovery::ServiceState,
    dispatch::{
        attempt::Attempt,
        borrowed_headers::{BorrowedHeaders, trace_of},
        pick::picked_pool,
        retry::FirstAttempt,
    },
    fault::FaultKind,
    observe::count,
    service::handle::Handle,
};

/// Begins a call with a borrowed request. The request is sent to its own host if `keeps_host`, otherwise to the
/// service's. `began` is the time when the request arrived. Returns `None` if the request must be parsed before a
/// decision; nothing was counted then.
#[inline]
pub(crate) fn try_fast<'a>(
    handle: &'a Handle,
    request: &BorrowedRequest<'_>,
    keeps_host: bool,
    began: Instant,
) -> Option<Result<FastCall<'a>, Box<SlowCall<'a>>>> {
    let (mesh, options) = (&handle.mesh, &handle.context);
    let defaults = &handle.default_headers;
    let has_options = handle.deadline.is_some() || defaults.key.is_some() || defaults.role.is_some();
    if has_options || mesh.observer.is_some() || mesh.source.leases().is_some() {
        return None;
    }
    let host = if keeps_host { request.host } else { defaults.authority.as_str() };
    let headers = BorrowedHeaders { request, keeps_host };
    let view = headers.view(host);
    let start = CallStart { now: mesh.clock.at(began), limit: None, seed: mesh.seed() };
    let mut call = Call::new(&handle.subscription);
    call.find_parent(&mesh.clock, start.now, || trace_of(request));
    call.set_request_bytes(request.body.len() as u64);
    let slow = |call, stage| Some(Err(Box::new(SlowCall::new(handle, call, start, stage))));
    let snapshot = match call.route(&view, options, start) {
        Ok(snapshot) => snapshot,
        Err(unresolved) => match *unresolved {
            Unresolved::Fault(fault) if fault.kind() == FaultKind::RateLimited => {
                count(&mesh.counters.calls);
                handle.count(|counters| &counters.rate_limited_calls);
                return slow(call, Stage::Refused(fault));
            }
            Unresolved::Fault(_) | Unresolved::Waiting(..) => return None,
        },
    };
    count(&mesh.counters.calls);
    if !is_eligible(&snapshot, &call) {
        return slow(call, Stage::Routed);
    }
    let now = start.now;
    let at = DecisionContext { clock: mesh.clock, now, seed: mesh.seed() };
    let Ok(picked) = call.pick(snapshot, options, at) else {
        return slow(call, Stage::Routed);
    };
    let pool = picked_pool(handle, &call, &picked);
    drop(picked);
    let left = call.server_deadline(now).map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let (deadline, origin) =
        (left.map(|left| (DEADLINE, left)), call.origin().map(|origin| (ORIGIN, origin)));
    let head = |out: &mut Vec<u8>| request.write(host, (deadline.as_ref(), origin.as_ref()), out);
    let Some(mut exchange) = pool.begin_borrowed(head, request.body) else {
        return slow(call, Stage::Begun(FirstAttempt::Picked(pool, now)));
    };
    let attempt = Attempt::begin(handle, &call, pool, now);
    exchange.bound_unsent(|| attempt.timeouts(mesh, &call));
    // The request is complete, and is almost always sent with one write.
    let response_by = now.saturating_add(nanos(call.response_header_timeout()));
    let until = mesh.clock.instant(call.attempt_ends(now).min(response_by));
    Some(Ok(FastCall { handle, call, start, attempt, exchange, until, is_body_dropped: false, owned: None }))
}

/// Whether the fast path supports this routed call.
fn is_eligible(state: &ServiceState<Arc<EndpointPool>>, call: &Call<'_, Arc<EndpointPool>>) -> bool {
    let is_supported = matches!(state, ServiceState::Ready(ready)
        if ready.lookaside.is_none() && !ready.upstream.protocol().is_multiplexed());
    is_supported && call.actions().is_none() && call.policy_key().is_none()
}
