//! Picks the endpoint of an attempt once its service is known.

use std::sync::Arc;

use fairmesh_connections::EndpointPool;

use super::context::DispatchContext;
use crate::{
    call::{Call, DecisionContext, Pick, SnapshotGuard, Unresolved},
    fault::{Fault, FaultKind},
    observe::count,
    service::handle::Handle,
};

/// Picks the endpoint of the next attempt. Waits if its service is not known yet, and then updates `now`.
pub(super) async fn pick_endpoint(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    mut snapshot: SnapshotGuard<Arc<EndpointPool>>,
    now: &mut u64,
) -> Result<Arc<EndpointPool>, Fault> {
    let mesh = &dispatch.handle.mesh;
    loop {
        let at = DecisionContext { clock: mesh.clock, now: *now, seed: mesh.seed() };
        dispatch.trace_pick(call, &snapshot, at);
        let unresolved = match call.pick(snapshot, dispatch.options, at) {
            Ok(picked) => {
                let pool = picked_pool(dispatch.handle, call, &picked);
                dispatch.trace_attempt(call, &pool, &picked);
                return Ok(pool);
            }
            Err(unresolved) => *unresolved,
        };
        match unresolved {
            Unresolved::Fault(fault) => {
                dispatch.handle.count(|counters| match fault.kind() {
                    FaultKind::Dropped => &counters.dropped_calls,
                    _ => &counters.attempts_without_endpoint,
                });
                return Err(fault);
            }
            Unresolved::Waiting(subscription, seen) => {
                *now = dispatch.wait_for_change(call, (&subscription, &seen), *now).await?;
                snapshot = call.snapshot();
            }
        }
    }
}

/// Returns the pool of the picked endpoint, and counts unusual picks.
#[inline]
pub(super) fn picked_pool(
    handle: &Handle,
    call: &Call<'_, Arc<EndpointPool>>,
    pick: &Pick<Arc<EndpointPool>>,
) -> Arc<EndpointPool> {
    if call.picked().is_some_and(|picked| picked.last_resort) {
        count(&handle.mesh.counters.last_resort);
    }
    if call.picked().is_some_and(|picked| picked.panic) {
        handle.count(|counters| &counters.panic_picks);
    }
    pick.transport(&handle.mesh.transport)
}
