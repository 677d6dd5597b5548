//! Calls to services whose policies name a lookaside.

use std::sync::Arc;

use fairmesh_connections::{EndpointPool, Head};
use fairmesh_headers::HeaderMapView;
use tokio::time::timeout;

use super::{context::DispatchContext, request::route_view, route::Routed};
use crate::{
    call::{Call, CallContext},
    discovery::ServiceState,
    lookaside::LeaseSet,
};

/// How a call's endpoint is chosen: by leases or by records.
pub(super) struct Decided {
    pub(super) routed: Routed,
    /// The leases that choose the endpoint, if a lookaside decides.
    pub(super) leases: Option<Arc<LeaseSet>>,
}

/// Lets a lookaside decide the call if the target's policy names one. The records decide in these cases:
/// - There are no leases, or none within half of the time left.
/// - The call has a principal, since leases come without the policy that authorizes its call.
///
/// `head` is needed for routes that may respond directly.
pub(super) async fn apply_lookaside(
    dispatch: DispatchContext<'_>,
    call: &mut Call<'_, Arc<EndpointPool>>,
    routed: Routed,
    head: Option<&Head>,
) -> Decided {
    if dispatch.options.principal.is_some() {
        return Decided { routed, leases: None };
    }
    let address = match &**routed.snapshot {
        ServiceState::Ready(ready) => match &ready.lookaside {
            Some(address) => Arc::clone(address),
            None => return Decided { routed, leases: None },
        },
        _ => return Decided { routed, leases: None },
    };
    if head.is_some_and(|head| responds_directly(dispatch, call, head)) {
        return Decided { routed, leases: None };
    }
    let Routed { now, snapshot } = routed;
    drop(snapshot);
    let mesh = &dispatch.handle.mesh;
    let name = call.target().name().clone();
    // Leases are for a key and a role, which may come from the policy and the route.
    let key = dispatch.options.key.or(call.policy_key());
    let context = CallContext { key, role: call.role(dispatch.options).cloned(), ..dispatch.options.clone() };
    let leases = mesh.service_lookasides.for_call(&address, &name, &context);
    // Boxed: few services have a lookaside, and the futures of other calls must not become as large.
    let leases = Box::pin(timeout(call.left_before_request(now) / 2, leases)).await.ok().flatten();
    match &leases {
        Some(leases) => call.redirect_to(Arc::clone(&leases.subscription)),
        None => dispatch.handle.count(|counters| &counters.lookaside_fallbacks),
    }
    Decided { routed: Routed { now: mesh.clock.now(), snapshot: call.snapshot() }, leases }
}

/// Whether the route responds itself, so that no endpoint is picked.
fn responds_directly(dispatch: DispatchContext<'_>, call: &Call<'_, Arc<EndpointPool>>, head: &Head) -> bool {
    let headers = HeaderMapView(&head.headers);
    call.actions().is_some_and(|actions| {
        actions.direct_response(&route_view(head, &headers), dispatch.start.seed).is_some()
    })
}
