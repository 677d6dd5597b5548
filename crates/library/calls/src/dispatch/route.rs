//! Routes a call once its service is known.

use std::sync::Arc;

use fairmesh_connections::{EndpointPool, Head};
use fairmesh_headers::HeaderMapView;

use super::{
    context::DispatchContext,
    request::{is_grpc_web_call, route_view},
};
use crate::{
    call::{Call, SnapshotGuard, Unresolved},
    discovery::{DEFAULT_READY_TIMEOUT, wait_ready},
    fault::{Fault, FaultKind},
};

/// A routed call: the current time, which saves reading the clock again for the first attempt, and the snapshot that
/// decides the attempt.
pub(super) struct Routed {
    pub(super) now: u64,
    pub(super) snapshot: SnapshotGuard<Arc<EndpointPool>>,
}

/// Routes the call. Waits if its service is not known yet.
pub(super) async fn route(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    head: &Head,
) -> Result<Routed, Fault> {
    let DispatchContext { handle, options, start, .. } = dispatch;
    let headers = HeaderMapView(&head.headers);
    let mut now = start.now;
    if is_grpc_web_call(head) {
        call.expect_stream();
    }
    loop {
        match call.route(&route_view(head, &headers), options, start) {
            Ok(snapshot) => {
                dispatch.call_info.set_route_backend(call.route_backend());
                dispatch.trace_route(call, head);
                return Ok(Routed { now, snapshot });
            }
            Err(unresolved) => match *unresolved {
                Unresolved::Fault(fault) => {
                    if fault.kind() == FaultKind::RateLimited {
                        handle.count(|counters| &counters.rate_limited_calls);
                        dispatch.call_info.set_route_backend(call.route_backend());
                        dispatch.trace_route(call, head);
                    }
                    return Err(fault);
                }
                Unresolved::Waiting(service, _) if Arc::ptr_eq(&service, &handle.subscription) => {
                    let limits = [start.limit, options.timeout];
                    let timeout = limits.into_iter().flatten().min().unwrap_or(DEFAULT_READY_TIMEOUT);
                    Box::pin(wait_ready(&service, timeout)).await?;
                    now = handle.mesh.clock.now();
                }
                Unresolved::Waiting(backend, seen) => {
                    now = dispatch.wait_for_change(call, (&backend, &seen), now).await?;
                }
            },
        }
    }
}
