//! Checks calls over gRPC.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use fairmesh_listen::RequestGuard;
use fairmesh_rib::access::{Caller, CompleteCall, MAX_BODY, METHODS, MethodAccess as Needed};
use fairmesh_store::write_author;
use fairmesh_wire::transport::{StatedCall, WithoutCertificate};
use tonic::{Code, Status, service::Routes};

use super::{Access, caller};

/// Wraps the services in the authorization check.
pub(crate) fn guard_calls(routes: Routes, access: Access) -> Routes {
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(access, guard)))
}

async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let (who, method) =
        (Caller::of_connection(request.headers(), request.extensions()), request.uri().path().to_owned());
    // The caller as authenticated by its connection: for a refused call nothing else is verified.
    let who = who.to_string();
    match check(&access, request).await {
        Ok((author, request)) => write_author::scope(Some(author), next.run(request)).await,
        Err(refused) => {
            if is_denial(refused.code()) {
                access.audit.note_denied(&who, &method, refused.message());
            }
            refused.into_http()
        }
    }
}

/// Whether a call was refused because of its caller. Objects that a caller may not see are reported as not
/// found.
fn is_denial(code: Code) -> bool {
    matches!(code, Code::PermissionDenied | Code::Unauthenticated | Code::NotFound)
}

/// Returns the request with its author, if the caller is authorized.
async fn check(access: &Access, mut request: Request) -> Result<(Arc<str>, Request), Status> {
    let Some(method) = METHODS.iter().find(|method| method.path == request.uri().path()) else {
        return Err(Status::unimplemented("this process does not serve the method"));
    };
    let caller = Caller::of_connection(request.headers(), request.extensions());
    let logs_in = caller::without_certificate(request.extensions())
        .filter(|_| !WithoutCertificate::is_joining(method.path));
    let shown = (request.headers(), request.extensions());
    let caller = match (&method.access, logs_in) {
        (Needed::Everyone, None) => caller,
        _ => {
            let shown = caller::with_user(caller, shown, &access.tokens).await;
            if let Some(guard) = request.extensions().get::<RequestGuard>() {
                match &shown {
                    Ok(caller) if caller.user.is_some() => guard.set_known(),
                    Ok(_) => {}
                    Err(_) => guard.count_refusal(),
                }
            }
            shown?
        }
    };
    // A caller without a certificate has only its token: no method is open to it unless the token was
    // verified.
    if let Some(without) = logs_in.filter(|_| caller.user.is_none()) {
        return Err(without.refusal());
    }
    let author = caller::author(&caller, request.headers());
    let needs = match &method.access {
        Needed::Of(needs) if access.control.is_strict() => needs,
        Needed::Everyone => return Ok((author, request)),
        Needed::Of(_) | Needed::OwnUser | Needed::Prefixes | Needed::Caller => {
            request.extensions_mut().insert(caller);
            return Ok((author, request));
        }
    };
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY).await.map_err(|error| Status::from_error(Box::new(error)))?;
    let call = CompleteCall { path: method.path, headers: &head.headers, body: &body };
    let verify = |statement: &[u8], call: StatedCall<'_>| access.trust.signer(statement, call);
    let caller = access.control.judge(caller, call, *needs, verify)?;
    let (body, refused) = access.control.keep_permitted_rows(&caller, (method.path, body))?;
    head.extensions.insert(refused);
    let author = caller::author(&caller, &head.headers);
    caller::describe(caller, &mut head.extensions);
    Ok((author, Request::from_parts(head, Body::from(body))))
}
