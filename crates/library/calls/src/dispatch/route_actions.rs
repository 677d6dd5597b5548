//! Applies route actions other than target selection.

use std::sync::Arc;

use fairmesh_connections::{EndpointPool, Head, PendingRequest, Request};
use fairmesh_headers::{CLAIMS, FAULT, GRPC_STATUS, HeaderMapView, grpc_content_type, is_spelling_of};
use fairmesh_http::path::Path;
use fairmesh_model::HeaderEdits;
use fairmesh_router::{DirectResponse, RouteActions};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{
    CallFuture,
    authorize::authorize_for,
    context::{DispatchContext, NOTHING_SENT},
    mirror,
    request::{pending_request, route_view},
    retry::execute_allowed,
    route::Routed,
};
use crate::{
    call::Call,
    fault::{Fault, FaultKind, Retry, grpc_code_of},
    response_body::Body,
};

/// Applies the route's actions to a routed call and executes it.
pub(super) fn execute<'a>(
    dispatch: DispatchContext<'a>,
    actions: Arc<RouteActions>,
    call: &'a mut Call<'_, Arc<EndpointPool>>,
    pending: &'a mut PendingRequest,
) -> CallFuture<'a> {
    Box::pin(async move { execute_actions(dispatch, &actions, call, pending).await })
}

async fn execute_actions(
    dispatch: DispatchContext<'_>,
    actions: &RouteActions,
    call: &mut Call<'_, Arc<EndpointPool>>,
    pending: &mut PendingRequest,
) -> Result<Response<Body>, Fault> {
    let (mesh, seed) = (&dispatch.handle.mesh, dispatch.start.seed);
    let Request { head, body, .. } = pending_request(pending)?;
    if let Some(response) = direct_response(dispatch, (actions, call), head).await? {
        return Ok(response);
    }
    rewrite(dispatch, head, actions)?;
    // Authorized with the rewritten path, as the server would. A refused call is neither delayed nor mirrored.
    authorize_for(dispatch, call.target(), head).await?;
    inject_delay(dispatch, actions, call).await?;
    if let Some(service) = actions.mirror(seed) {
        mirror::send(dispatch, call, service, head, body);
    }
    let routed = Routed { now: mesh.clock.now(), snapshot: call.snapshot() };
    let mut response = execute_allowed(dispatch, routed, call, pending).await?;
    edit(response.headers_mut(), actions.response_headers(), |_| false);
    Ok(response)
}

/// Returns the response that the route itself gives to an authorized call, without a server. A redirect is authorized
/// for the route's service, an injected fault for the target, which would receive the rewritten path.
///
/// # Errors
/// The call is not allowed, or its route rewrites it to an invalid request.
pub(super) async fn direct_response(
    dispatch: DispatchContext<'_>,
    (actions, call): (&RouteActions, &Call<'_, Arc<EndpointPool>>),
    head: &mut Head,
) -> Result<Option<Response<Body>>, Fault> {
    let direct =
        actions.direct_response(&route_view(head, &HeaderMapView(&head.headers)), dispatch.start.seed);
    let Some(direct) = direct else { return Ok(None) };
    let grpc = grpc_content_type(&head.headers);
    if let DirectResponse::Abort { .. } = direct {
        rewrite(dispatch, head, actions)?;
        authorize_for(dispatch, call.target(), head).await?;
        dispatch.handle.count(|counters| &counters.injected_aborts);
        dispatch.call_info.note_abort();
    } else {
        authorize_for(dispatch, &dispatch.handle.subscription, head).await?;
    }
    Ok(Some(response(direct, grpc)))
}

/// Injects the route's delay, which lasts at most until the deadline.
pub(super) async fn inject_delay(
    dispatch: DispatchContext<'_>,
    actions: &RouteActions,
    call: &Call<'_, Arc<EndpointPool>>,
) -> Result<(), Fault> {
    let Some(delay) = actions.delay(dispatch.start.seed) else { return Ok(()) };
    dispatch.handle.count(|counters| &counters.injected_delays);
    dispatch.call_info.note_delay();
    let left = call.left(dispatch.handle.mesh.clock.now());
    tokio::time::sleep(delay.min(left)).await;
    match delay < left {
        true => Ok(()),
        false => Err(dispatch.deadline_fault(call.deadline(), NOTHING_SENT).with_retry(Retry::Unsent)),
    }
}

fn rewrite(dispatch: DispatchContext<'_>, head: &mut Head, actions: &RouteActions) -> Result<(), Fault> {
    let invalid =
        |part: &str| Fault::new(FaultKind::Invalid, format!("its route rewrites it to an invalid {part}"));
    if let Some(path) = actions.path(head.path.as_str()) {
        head.path = Path::read(path.as_bytes()).map_err(|_| invalid("path"))?;
    }
    if let Some(host) = actions.host() {
        head.authority = host.try_into().map_err(|_| invalid("host"))?;
    }
    // The gateway has stated the caller of a principal's call, and a tenant's route must not state another one.
    let has_principal = dispatch.options.principal.is_some();
    edit(&mut head.headers, actions.request_headers(), |name| has_principal && is_claim(name));
    Ok(())
}

fn is_claim(name: &str) -> bool {
    CLAIMS.iter().any(|claim| is_spelling_of(name, claim))
}

/// Applies header edits, except to headers for which `is_kept` returns true. Policies are checked for invalid names
/// and values, so no other edit is skipped.
fn edit(headers: &mut HeaderMap, edits: &HeaderEdits, is_kept: impl Fn(&str) -> bool) {
    let header = |(name, value): (&String, &String)| {
        let name = HeaderName::try_from(name).ok().filter(|name| !is_kept(name.as_str()))?;
        Some((name, HeaderValue::try_from(value).ok()?))
    };
    for (name, value) in edits.set.iter().filter_map(header) {
        headers.insert(name, value);
    }
    for (name, value) in edits.add.iter().filter_map(header) {
        headers.append(name, value);
    }
    for name in edits.remove.iter().filter(|name| !is_kept(name)) {
        headers.remove(name);
    }
}

fn response(direct: DirectResponse, grpc: Option<HeaderValue>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    match direct {
        DirectResponse::Redirect { status, location } => {
            *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
            // The path of a request and the contents of a policy are always valid header values.
            if let Ok(location) = HeaderValue::try_from(location) {
                response.headers_mut().insert(header::LOCATION, location);
            }
        }
        DirectResponse::Abort { status } => {
            response.headers_mut().insert(FAULT, HeaderValue::from_static("injected"));
            if let Some(kind) = grpc {
                let code = grpc_code_of(status) as i32;
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                response.headers_mut().insert(GRPC_STATUS, code.into());
            } else {
                *response.status_mut() =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            }
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_header_edits_cannot_change_identity_headers() {
        let named = |name: &str| (name.to_owned(), "forged".to_owned());
        let edits = HeaderEdits {
            set: [named("x-forwarded-client-cert"), named("x-team")].into(),
            add: [named("x_fairmesh_caller")].into(),
            remove: vec!["x_forwarded_client_cert".to_owned()],
        };
        let mut headers = HeaderMap::new();
        edit(&mut headers, &edits, is_claim);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-team"]);
        edit(&mut headers, &edits, |_| false);
        assert_eq!(headers.len(), 3, "without a principal routes edit them");
    }
}
