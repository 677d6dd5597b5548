//! Authorizes calls. A replica performs no call that the control plane would refuse to the same caller.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use fairmesh_rib::access::{Caller, CompleteCall, MAX_BODY, METHODS, MethodAccess};
use fairmesh_wire::transport::{StatedCall, Transport};
use tonic::{Status, service::Routes};

use crate::upstream_sink::ReplicaState;

/// Authorizes calls with the replica's records.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) shared: Arc<ReplicaState>,
    /// Verifies signed statements of calls.
    pub(crate) transport: Transport,
}

/// Wraps the given services in an authorization check.
pub(crate) fn guard_calls(routes: Routes, gate: Gate) -> Routes {
    Routes::from(routes.into_axum_router().layer(from_fn_with_state(gate, guard)))
}

async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    match check(&gate, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_http(),
    }
}

/// Returns the request if its caller is authorized.
async fn check(gate: &Gate, request: Request) -> Result<Request, Status> {
    let Some(method) = METHODS.iter().find(|method| method.path == request.uri().path()) else {
        return Err(Status::unimplemented("this process does not serve the method"));
    };
    let MethodAccess::Of(needs) = method.access else { return Ok(request) };
    if !gate.shared.has_copy() {
        return Err(Status::unavailable(
            "this replica has no copy yet, and cannot tell what its callers may do; retry",
        ));
    }
    if !gate.shared.access.is_strict() {
        return Ok(request);
    }
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY).await.map_err(|error| Status::from_error(Box::new(error)))?;
    let caller = Caller::of_connection(&head.headers, &head.extensions);
    let call = CompleteCall { path: method.path, headers: &head.headers, body: &body };
    let verify = |statement: &[u8], call: StatedCall<'_>| {
        gate.transport.verify_call(statement, call).map_err(Status::unauthenticated)
    };
    let access = &gate.shared.access;
    let maker = access.judge(caller, call, needs, verify)?;
    let (body, refused) = access.keep_permitted_rows(&maker, (method.path, body))?;
    head.extensions.insert(refused);
    head.extensions.insert(maker);
    Ok(Request::from_parts(head, Body::from(body)))
}
