//! Authorizes calls that a proxy makes on behalf of a caller.

use std::{future::pending, sync::Arc};

use fairmesh_connections::{EndpointPool, Head};
use fairmesh_headers::{AllSpellings, without_credentials};
use fairmesh_model::{DefaultAuthorization, ServiceName};
use fairmesh_router::{
    AuthorizationDecision, AuthorizationRequest, RequestAttributes, TokenRefusal, UserToken,
};
use http::{HeaderMap, Method, header};
use tokio::time::{Instant, sleep_until};

use super::{context::DispatchContext, route::Routed};
use crate::{
    call::{Call, Principal},
    discovery::{DEFAULT_READY_TIMEOUT, ReadyService, ServiceState, Subscription, wait_ready},
    fault::{Fault, FaultKind},
};

/// An allowed call. It is authorized again for as long as the connection that it opened exists.
#[derive(Debug)]
pub struct AllowedCall {
    principal: Arc<Principal>,
    /// The service whose route leads to the target.
    from: ServiceName,
    target: Arc<Subscription<Arc<EndpointPool>>>,
    method: Method,
    path: String,
    headers: HeaderMap,
    token: Option<UserToken>,
    /// Expiry of the caller's token.
    ends: Option<Instant>,
}

/// Refuses a call if the policy of its target does not allow the call's principal. Without a principal, the server
/// decides.
///
/// It runs after routing, in which a split chooses the target and a rewrite changes the path, and before the first
/// pick.
///
/// # Errors
/// [`FaultKind::Unauthorized`], or the service is not known.
pub(super) async fn authorize(
    dispatch: DispatchContext<'_>,
    call: &Call<'_, Arc<EndpointPool>>,
    head: &Head,
    routed: Routed,
) -> Result<Routed, Fault> {
    if dispatch.options.principal.is_none() {
        return Ok(routed);
    }
    drop(routed);
    authorize_for(dispatch, call.target(), head).await?;
    Ok(Routed { now: dispatch.handle.mesh.clock.now(), snapshot: call.snapshot() })
}

/// Like [`authorize`], for a call of this target.
///
/// # Errors
/// As for [`authorize`].
pub(super) async fn authorize_for(
    dispatch: DispatchContext<'_>,
    target: &Arc<Subscription<Arc<EndpointPool>>>,
    head: &Head,
) -> Result<(), Fault> {
    let Some(principal) = &dispatch.options.principal else { return Ok(()) };
    let limits = [dispatch.start.limit, dispatch.options.timeout];
    let timeout = limits.into_iter().flatten().min().unwrap_or(DEFAULT_READY_TIMEOUT);
    let state = Box::pin(wait_ready(target, timeout)).await?;
    let ServiceState::Ready(ready) = &*state else {
        return Err(Fault::new(FaultKind::Unavailable, format!("{} is not known yet; retry", target.name())));
    };
    let from = dispatch.handle.subscription.name();
    accept_route(ready, from)?;
    let token = token(principal, ready, &head.headers)?;
    let asked = AuthorizationRequest {
        caller: Some(&principal.caller),
        method: head.method.as_str(),
        path: head.path.as_str(),
        attributes: RequestAttributes {
            source: Some(principal.source),
            token: token.as_ref(),
            headers: &AllSpellings(&head.headers),
        },
    };
    let default = *principal.default.borrow();
    let decision = decide(ready, &asked, default);
    let (caller, name) = (principal.caller.as_str(), target.name());
    if !decision.is_allowed
        && let Some(suppressed) = principal.log.next()
    {
        let connection = principal.connection;
        tracing::info!(caller, service = %name, %connection, suppressed, "a call is {decision}");
    }
    if !decision.permits() {
        return Err(refused(caller, &name.to_string()));
    }
    if head.headers.contains_key(header::UPGRADE) {
        dispatch.call_info.note_allowed(AllowedCall {
            principal: Arc::clone(principal),
            from: from.clone(),
            target: Arc::clone(target),
            method: head.method.clone(),
            path: head.path.as_str().to_owned(),
            headers: without_credentials(&head.headers),
            ends: token.as_ref().map(|token| Instant::now() + token.valid_for),
            token,
        });
    }
    Ok(())
}

/// Returns the end user's token that the target accepts, if any.
///
/// # Errors
/// The target accepts tokens, but not this one.
fn token(
    principal: &Principal,
    ready: &ReadyService<Arc<EndpointPool>>,
    headers: &HeaderMap,
) -> Result<Option<UserToken>, Fault> {
    let (table, verifier) = (&ready.upstream, Arc::clone(&principal.tokens.borrow()));
    table.read_token(&AllSpellings(headers), &*verifier).map_err(|problem| match problem {
        TokenRefusal::Unknown => Fault::new(FaultKind::Unavailable, format!("{problem}; retry")),
        TokenRefusal::Refused(_) => Fault::new(
            FaultKind::Unauthorized,
            format!("{}: {problem}; get a new one from its issuer", table.name()),
        ),
    })
}

/// Refuses the call if the target does not accept routes of the service `from`. This is checked first, so that
/// another tenant's rules are not evaluated for callers to which the tenant has not consented.
fn accept_route(ready: &ReadyService<Arc<EndpointPool>>, from: &ServiceName) -> Result<(), Fault> {
    let table = &ready.upstream;
    table.accept_routes_from(from).map_err(|error| {
        Fault::new(FaultKind::from(&error), format!("{} does not accept the route", table.name()))
    })
}

/// Evaluates the policy of a service for a call.
fn decide<'a>(
    ready: &'a ReadyService<Arc<EndpointPool>>,
    asked: &AuthorizationRequest<'_>,
    default: DefaultAuthorization,
) -> AuthorizationDecision<'a> {
    let table = &ready.upstream;
    match asked.caller {
        Some(caller) if asked.method == Method::CONNECT.as_str() => {
            table.authorize_connection(caller, default)
        }
        _ => table.authorize(asked, default),
    }
}

/// Builds the fault. It does not name the rule, which may belong to another tenant; the log does.
fn refused(caller: &str, name: &str) -> Fault {
    let message = format!(
        "{name}: its policy does not allow the call of {caller}; 'fairmesh explain {name} --as {caller}' says why, and its operator can allow it"
    );
    Fault::new(FaultKind::Unauthorized, message)
}

/// Resolves at `at`; never if it is `None`.
async fn ended(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

impl AllowedCall {
    /// Resolves when the token expires, or when the call would no longer be allowed: because of the target's policy
    /// or the mesh default, or because the target is no longer declared. The target is followed until then.
    pub async fn revoked(&self) {
        let mut default = self.principal.default.clone();
        loop {
            let state = self.target.state();
            let applies = *default.borrow_and_update();
            if !self.is_allowed(&state, applies) {
                return;
            }
            tokio::select! {
                () = self.target.changed(&state) => {}
                // The sender lives as long as the process.
                Ok(()) = default.changed() => {}
                () = ended(self.ends) => return,
            }
        }
    }

    fn is_allowed(&self, state: &ServiceState<Arc<EndpointPool>>, default: DefaultAuthorization) -> bool {
        let asked = AuthorizationRequest {
            caller: Some(&self.principal.caller),
            method: self.method.as_str(),
            path: &self.path,
            attributes: RequestAttributes {
                source: Some(self.principal.source),
                token: self.token.as_ref(),
                headers: &AllSpellings(&self.headers),
            },
        };
        match state {
            ServiceState::Ready(ready) => {
                accept_route(ready, &self.from).is_ok() && decide(ready, &asked, default).permits()
            }
            // A known service becomes unavailable only if its policy cannot be read.
            ServiceState::Unknown | ServiceState::Unavailable(_) => false,
            // The last decision stays valid until there are records.
            ServiceState::Waiting => true,
        }
    }
}
