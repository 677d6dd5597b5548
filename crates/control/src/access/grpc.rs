//! The check of calls over gRPC.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use bytes::Bytes;
use fairmesh_store::author;
use fairmesh_wire::{rpc::MAX_MESSAGE, transport::WithoutCertificate};
use tonic::{Status, service::Routes};

use super::{
    Access, caller,
    table::{Access as Needed, METHODS},
};

/// The bytes before a message: whether it is compressed, and its length.
const FRAME: usize = 5;

/// The same services behind the check.
pub(crate) fn guard_calls(routes: Routes, access: Access) -> Routes {
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(access, guard)))
}

async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    match check(&access, request).await {
        Ok((author, request)) => author::scope(Some(author), next.run(request)).await,
        Err(refused) => refused.into_http(),
    }
}

/// The call, if its caller may make it.
async fn check(access: &Access, mut request: Request) -> Result<(Arc<str>, Request), Status> {
    let Some(method) = METHODS.iter().find(|method| method.path == request.uri().path()) else {
        return Err(Status::unimplemented("this process does not serve the method"));
    };
    let caller = caller::of_connection(request.headers(), request.extensions());
    let logs_in = caller::without_certificate(request.extensions())
        .filter(|_| !WithoutCertificate::is_joining(method.path));
    let shown = (request.headers(), request.extensions());
    let caller = match (&method.access, logs_in) {
        (Needed::Everyone, None) => caller,
        _ => caller::with_user(caller, shown, &access.tokens).await?,
    };
    // The token is all that a caller without a certificate has: no method is open without one that is verified.
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
    let body =
        to_bytes(body, MAX_MESSAGE + FRAME).await.map_err(|error| Status::from_error(Box::new(error)))?;
    let message = message(&body)?;
    let caller = caller::of_signature(caller, &head, message, &access.trust)?;
    let author = caller::author(&caller, &head.headers);
    let refused = access.check(&caller, &needs(message)?);
    if let Err(refused) = refused {
        tracing::debug!(%caller, method = method.path, reason = refused.message(), "call refused");
        return Err(refused);
    }
    caller::describe(caller, &mut head.extensions);
    Ok((author, Request::from_parts(head, Body::from(body))))
}

/// The one message of a request.
fn message(body: &Bytes) -> Result<&[u8], Status> {
    let unreadable = || Status::invalid_argument("the request is not one message without compression");
    let (frame, message) = body.split_first_chunk::<FRAME>().ok_or_else(unreadable)?;
    let length = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]);
    match frame[0] == 0 && usize::try_from(length).is_ok_and(|length| length == message.len()) {
        true => Ok(message),
        false => Err(unreadable()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_exactly_one_message() {
        let body = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        assert_eq!(message(&body(&[0, 0, 0, 0, 2, 7, 8])).unwrap(), [7, 8]);
        for wrong in
            [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 1, 7, 8], &[0, 0, 0, 0, 2, 7]]
        {
            assert!(message(&body(wrong)).is_err(), "{wrong:?}");
        }
    }
}
