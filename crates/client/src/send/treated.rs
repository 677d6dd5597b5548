//! What the route of a call does with it besides sending it somewhere.

use std::sync::Arc;

use fairmesh_model::HeaderEdits;
use fairmesh_router::{Instead, Treatment};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use super::{HeadersView, go, mirror, terms::Terms, unsent};
use crate::{
    Body, Fault, FaultKind, Retry,
    core::Call,
    fault::grpc_code_of,
    stats::count,
    transport::{Head, Line, Request, Slot},
};
use fairmesh_headers::{FAULT, GRPC_STATUS, grpc_content_type};
use fairmesh_http::path::Path;

/// Carries a routed call out as its route wants.
pub(super) async fn send(
    terms: Terms<'_>,
    treatment: &Treatment,
    call: &mut Call<'_, Arc<Line>>,
    slot: &mut Slot,
) -> Result<Response<Body>, Fault> {
    let (mesh, seed) = (&terms.handle.mesh, terms.start.seed);
    let Request { head, body, .. } = unsent(slot)?;
    if let Some(answer) = instead(terms, treatment, head) {
        return Ok(answer);
    }
    delay(terms, treatment, call).await?;
    change(head, treatment)?;
    if let Some(service) = treatment.mirror(seed) {
        mirror::send(terms, call, service, head, body);
    }
    let mut answer = go(terms, (mesh.clock.now(), call.look()), call, slot).await?;
    edit(answer.headers_mut(), treatment.answer_headers());
    Ok(answer)
}

/// What the route gives the caller although no server is asked.
pub(super) fn instead(terms: Terms<'_>, treatment: &Treatment, head: &Head) -> Option<Response<Body>> {
    let instead = treatment.instead(&head.view(&HeadersView(&head.headers)), terms.start.seed)?;
    if let Instead::Abort { .. } = instead {
        count(&terms.handle.mesh.counters.aborted);
    }
    Some(answer(instead, grpc_content_type(&head.headers)))
}

/// Waits on purpose where the route wants that, at most until the deadline.
pub(super) async fn delay(
    terms: Terms<'_>,
    treatment: &Treatment,
    call: &Call<'_, Arc<Line>>,
) -> Result<(), Fault> {
    let Some(delay) = treatment.delay(terms.start.seed) else { return Ok(()) };
    let left = call.left(terms.handle.mesh.clock.now());
    tokio::time::sleep(delay.min(left)).await;
    match delay < left {
        true => Ok(()),
        false => Err(terms.late(call.deadline(), "nothing was sent").with_retry(Retry::Unsent)),
    }
}

fn change(head: &mut Head, treatment: &Treatment) -> Result<(), Fault> {
    let refused = |what: &str| {
        Fault::new(FaultKind::Invalid, format!("its route makes it a {what} that cannot be sent"))
    };
    if let Some(path) = treatment.path(head.path.as_str()) {
        head.path = Path::read(path.as_bytes()).map_err(|_| refused("path"))?;
    }
    if let Some(host) = treatment.host() {
        head.authority = host.try_into().map_err(|_| refused("host"))?;
    }
    edit(&mut head.headers, treatment.request_headers());
    Ok(())
}

/// Edits headers. A policy was checked for names and values that are none, so that nothing is left out here.
fn edit(headers: &mut HeaderMap, edits: &HeaderEdits) {
    let header = |(name, value): (&String, &String)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    };
    for (name, value) in edits.set.iter().filter_map(header) {
        headers.insert(name, value);
    }
    for (name, value) in edits.add.iter().filter_map(header) {
        headers.append(name, value);
    }
    for name in &edits.remove {
        headers.remove(name);
    }
}

/// What the caller gets although no server was asked.
fn answer(instead: Instead, grpc: Option<HeaderValue>) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    match instead {
        Instead::Redirect { status, location } => {
            *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
            // A path of a request and what a policy may hold are always header values.
            if let Ok(location) = HeaderValue::try_from(location) {
                answer.headers_mut().insert(header::LOCATION, location);
            }
        }
        Instead::Abort { status } => {
            answer.headers_mut().insert(FAULT, HeaderValue::from_static("injected"));
            if let Some(kind) = grpc {
                let code = grpc_code_of(status) as i32;
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                answer.headers_mut().insert(GRPC_STATUS, code.into());
            } else {
                *answer.status_mut() =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            }
        }
    }
    answer
}
