//! Whether the caller for whom a proxy makes a call may call the service that gets it.

use std::sync::Arc;

use fairmesh_connections::{EndpointPool, Head};
use fairmesh_router::AuthorizationRequest;
use fairmesh_wire::LogLimiter;
use http::Method;

use super::{context::DispatchContext, route::Routed};
use crate::{
    call::{Call, Principal},
    discovery::{DEFAULT_READY_TIMEOUT, ServiceState, wait_ready},
    fault::{Fault, FaultKind},
};

/// Calls that are not allowed.
static NOT_ALLOWED: LogLimiter = LogLimiter::new();

/// Refuses a call that the policy of its target does not allow its principal. Without a principal the server decides.
///
/// It runs after the route, whose split chooses the target and whose rewrite changes the path, and before the first pick.
///
/// # Errors
/// [`FaultKind::Unauthorized`], or that the service is not known.
pub(super) async fn authorize(
    dispatch: DispatchContext<'_>,
    call: &Call<'_, Arc<EndpointPool>>,
    head: &Head,
    routed: Routed,
) -> Result<Routed, Fault> {
    let Some(principal) = &dispatch.options.principal else { return Ok(routed) };
    drop(routed);
    let target = call.target();
    let limits = [dispatch.start.limit, dispatch.options.timeout];
    let timeout = limits.into_iter().flatten().min().unwrap_or(DEFAULT_READY_TIMEOUT);
    let state = Box::pin(wait_ready(target, timeout)).await?;
    let ServiceState::Ready(ready) = &*state else {
        return Err(Fault::new(FaultKind::Unavailable, format!("{} is not known yet; retry", target.name())));
    };
    // First, so that the rules of another tenant are not asked for callers that it does not consent to.
    ready.upstream.accept_routes_from(dispatch.handle.subscription.name()).map_err(|error| {
        Fault::new(FaultKind::from(&error), format!("{} does not accept the route", target.name()))
    })?;
    let default = *principal.default.borrow();
    let decision = match head.method == Method::CONNECT {
        true => ready.upstream.authorize_connection(&principal.caller, default),
        false => ready.upstream.authorize(&asked(principal, head), default),
    };
    let (caller, name) = (principal.caller.as_str(), target.name());
    if !decision.is_allowed
        && let Some(suppressed) = NOT_ALLOWED.next()
    {
        let connection = principal.connection;
        tracing::info!(caller, service = %name, %connection, suppressed, "a call is {decision}");
    }
    if !decision.permits() {
        return Err(refused(caller, &name.to_string()));
    }
    Ok(Routed { now: dispatch.handle.mesh.clock.now(), snapshot: call.snapshot() })
}

fn asked<'a>(principal: &'a Principal, head: &'a Head) -> AuthorizationRequest<'a> {
    AuthorizationRequest {
        caller: Some(&principal.caller),
        method: head.method.as_str(),
        path: head.path.as_str(),
    }
}

/// Without the rule, which may be of another tenant: the log has it.
fn refused(caller: &str, name: &str) -> Fault {
    let message = format!(
        "{name}: its policy does not allow the call of {caller}; 'fairmesh explain {name} --as CALLER' says why, and its operator can allow it"
    );
    Fault::new(FaultKind::Unauthorized, message)
}
