//! API for proxies, beyond what programs use: calls from the read buffer, tunnels, observed response bodies, requests
//! to one server outside the mesh, and services as numbers for the in-kernel proxy.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_connections::RequestBody;
use fairmesh_http::{BoxError, h1::BorrowedRequest};
use fairmesh_wire::transport::Transport;
use http::{Request, Response};
use tokio::{net::TcpStream, time::Instant};

use crate::{
    Body, Fault, Mesh, MeshBuilder, ServiceHandle,
    discovery::{EndpointTransport, ServiceState},
    dispatch,
};
pub use crate::{
    call::Principal,
    discovery::{RouteBackend, RouteBackendIndex},
    dispatch::{
        AllowedCall, CompletedCall, ConnectResult, DirectBody, DirectClient, FastCall, SentRequest, SlowCall,
    },
    observe::CallInfo,
    response_body::{
        BodyEnd, BodyObserver, end_with_status, foreign_body, hide_load_trailers, hold_with_body,
        observe_body,
    },
    service::exported_service::{ExportedEndpoint, ExportedService},
};
pub use fairmesh_connections::{ConnectionOwner, EndpointConnection, set_event_loop};
pub use fairmesh_router::{EndpointStats, ServiceNumbers, TokenRefusal, TokenVerifier, UserToken};

/// Sets the number of event loops that make calls. Each event loop has its own thread, which declares its number with
/// [`set_event_loop`], and its own connections. By default, all threads share one set of connections.
#[must_use]
pub fn with_event_loops(builder: MeshBuilder, event_loops: usize) -> MeshBuilder {
    builder.event_loops(event_loops)
}

/// Excludes this process's own listeners, so that it never forwards a request to itself. An endpoint at one of these
/// addresses counts as unreachable.
pub fn exclude_addresses(mesh: &Mesh, addresses: impl IntoIterator<Item = SocketAddr>) {
    mesh.state.transport.own_addresses.add(addresses);
}

/// Excludes loopback addresses, where processes trust their machine. An endpoint at a loopback address counts as
/// unreachable.
pub fn exclude_loopback(mesh: &Mesh) {
    mesh.state.transport.own_addresses.add_loopback();
}

/// The transport by which calls are made, with the identity of this process.
pub fn transport(mesh: &Mesh) -> Transport {
    mesh.state.transport.transport.clone()
}

/// Makes all calls over mutual TLS, regardless of policies. A plaintext endpoint proves no identity, so its record
/// could direct tenants' calls to any address.
#[must_use]
pub fn with_identities_only(builder: MeshBuilder) -> MeshBuilder {
    builder.identities_only()
}

/// Sets how long connecting waits for an agent that has not refused an identity.
#[must_use]
pub fn with_identity_wait(builder: MeshBuilder, wait: std::time::Duration) -> MeshBuilder {
    builder.identity_wait(wait)
}

/// Enables calls on behalf of [principals](Principal), which the policies of services must allow. By default, the
/// rules of policies are not compiled, and calls for a principal are refused.
#[must_use]
pub fn with_principals(builder: MeshBuilder) -> MeshBuilder {
    builder.authorizes_callers()
}

/// Calls `hook` for each plaintext HTTP/1.1 connection opened for calls, before its first request. Only the first hook
/// is used.
pub fn on_connection(mesh: &Mesh, hook: impl Fn(&TcpStream) + Send + Sync + 'static) {
    mesh.state.transport.connection_hook.set(hook);
}

/// The current state of a service.
pub fn service_state(handle: &ServiceHandle) -> Arc<ServiceState<impl EndpointTransport>> {
    handle.inner.subscription.state()
}

/// Records a call that another component made, from its request to its response. Returns its route and backend.
pub fn record_completed(
    handle: &ServiceHandle,
    request: &BorrowedRequest<'_>,
    endpoint: &ExportedEndpoint,
    completed: &CompletedCall<'_>,
) -> RouteBackendIndex {
    dispatch::record_completed(&handle.inner, request, endpoint, completed)
}

/// Like [`ServiceHandle::send_unpin`]. Also fills in `call_info`, even for a call that fails.
///
/// # Errors
/// As for [`ServiceHandle::send`].
pub async fn send_noted<B>(
    handle: &ServiceHandle,
    request: Request<B>,
    call_info: &CallInfo,
) -> Result<Response<Body>, Fault>
where
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    let mut body = RequestBody::take_unpin(body).await.map_err(dispatch::body_error)?;
    dispatch::call(&handle.inner, &mut parts, &mut body, call_info).await
}

/// Names of one route and backend pair of the service.
pub fn route_backend_name(handle: &ServiceHandle, index: RouteBackendIndex) -> RouteBackend {
    handle.inner.subscription.route_backend_name(index)
}

/// Begins a call on the fast path: the request is sent from the buffer it was read into, to its own host if
/// `keeps_host`, otherwise to the service's. `began` is the time when the request arrived. Returns `None` if the
/// request must be parsed before a decision; nothing was counted then.
#[inline]
pub fn try_fast<'a>(
    handle: &'a ServiceHandle,
    request: &BorrowedRequest<'_>,
    keeps_host: bool,
    began: Instant,
) -> Option<Result<FastCall<'a>, Box<SlowCall<'a>>>> {
    dispatch::try_fast(&handle.inner, request, keeps_host, began)
}

/// Opens a tunnel for a CONNECT request. The request is routed like any other, and the limits, redirects, faults,
/// splits and timeouts of its route apply. Its path is `/`, and its host is that of its URI.
///
/// The tunnel must be `allowed`, or its route must name CONNECT among its methods: no route sees the bytes in a tunnel.
///
/// # Errors
/// As for [`ServiceHandle::open_connection`].
pub async fn open_tunnel(
    handle: &ServiceHandle,
    request: Request<()>,
    allowed: bool,
    call_info: &CallInfo,
) -> Result<ConnectResult, Fault> {
    dispatch::open_tunnel(&handle.inner, request.into_parts().0, allowed, call_info).await
}
