//! Authenticates the senders of spans, and decides which services they may name. Connections are as those of the pages:
//! in plaintext, senders have no identity.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{Extensions, HeaderMap, StatusCode},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use fairmesh_model::{ServiceName, access::Grants};
use fairmesh_rib::access::{AccessControl, Caller};
use fairmesh_traces::{SpanRights, SpanSender};
use tonic::{Code, Status};

use super::{Access, caller};

/// Wraps the intake of spans in the authentication of senders.
pub(crate) fn guard_spans(intake: Router, access: Access) -> Router {
    intake.layer(from_fn_with_state(access, identify))
}

/// Adds the sender to the extensions of a request, before its body is read.
async fn identify(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match sender(&access, (request.headers(), request.extensions())).await {
        Ok(sender) => {
            request.extensions_mut().insert(sender);
            next.run(request).await
        }
        Err(refusal) => {
            let who = Caller::of_connection(request.headers(), request.extensions());
            access.audit.note_denied(&who.to_string(), request.uri().path(), refusal.message());
            let status = match refusal.code() {
                Code::Unauthenticated => StatusCode::UNAUTHORIZED,
                _ => StatusCode::FORBIDDEN,
            };
            (status, format!("{}\n", refusal.message())).into_response()
        }
    }
}

/// Authenticates the sender of a request, by its certificate or the token of a user.
///
/// # Errors
/// The token is refused, or the sender may act for no service.
async fn sender(
    access: &Access,
    (headers, extensions): (&HeaderMap, &Extensions),
) -> Result<SpanSender, Status> {
    if !access.control.is_strict() {
        return Ok(SpanSender::anyone());
    }
    let caller = Caller::of_connection(headers, extensions);
    let caller = caller::with_user(caller, (headers, extensions), &access.tokens).await?;
    let grants = access.control.grants(&caller);
    if grants == Grants::default() {
        return Err(Status::permission_denied(format!(
            "{caller} may send no spans: send them over https, with a certificate of the mesh or the token of a user with a role"
        )));
    }
    let control = access.control.clone();
    Ok(SpanSender::new(caller.to_string(), Arc::new(SenderGrants { control, grants })))
}

/// Judges the names in spans as [`SpanRights`].
struct SenderGrants {
    control: AccessControl,
    grants: Grants,
}

impl SpanRights for SenderGrants {
    fn may_be(&self, process: &str) -> bool {
        match ServiceName::new(process) {
            Ok(service) => self.grants.may_serve(&service, None),
            // Processes of the mesh that are no service, such as a proxy of many programs. A service has a name.
            Err(_) => self.grants.admin || self.grants.registrar.is_empty(),
        }
    }

    fn may_know(&self, service: &str) -> bool {
        ServiceName::new(service).map_or(true, |service| self.control.may_view(&self.grants, &service))
    }
}
