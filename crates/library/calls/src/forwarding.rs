//! What a proxy needs of calls, besides what programs use: calls from its read buffer, tunnels, observed response bodies,
//! requests to one server past the mesh, and services as numbers for the kernel.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_connections::RequestBody;
use fairmesh_http::{BoxError, h1::BorrowedRequest};
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

/// The number of event loops that make calls, each run by a thread of its own that has declared its number by
/// [`set_event_loop`]: each then has connections of its own. The default is one set of connections that all threads share.
#[must_use]
pub fn with_event_loops(builder: MeshBuilder, event_loops: usize) -> MeshBuilder {
    builder.event_loops(event_loops)
}

/// Excludes the addresses of listeners of this process, whose requests it forwards: an endpoint at one of them counts as
/// unreachable.
pub fn exclude_addresses(mesh: &Mesh, addresses: impl IntoIterator<Item = SocketAddr>) {
    mesh.state.transport.own_addresses.add(addresses);
}

/// Excludes all loopback addresses, where processes trust their machine: an endpoint at one of them counts as unreachable.
pub fn exclude_loopback(mesh: &Mesh) {
    mesh.state.transport.own_addresses.add_loopback();
}

/// Has calls made by mutual TLS alone, whatever policies permit: an endpoint in plaintext proves nothing, so that its record could lead calls
/// for tenants to any address.
#[must_use]
pub fn with_identities_only(builder: MeshBuilder) -> MeshBuilder {
    builder.identities_only()
}

/// Has calls made for [principals](Principal), which the policies of services have to allow. Without it, the policies' rules are not
/// compiled, and each call for a principal is refused.
#[must_use]
pub fn with_principals(builder: MeshBuilder) -> MeshBuilder {
    builder.authorizes_callers()
}

/// Has this told of each plaintext connection over HTTP/1.1 that calls make, before its first request. The first such hook stays.
pub fn on_connection(mesh: &Mesh, hook: impl Fn(&TcpStream) + Send + Sync + 'static) {
    mesh.state.transport.connection_hook.set(hook);
}

/// The current state of a service.
pub fn service_state(handle: &ServiceHandle) -> Arc<ServiceState<impl EndpointTransport>> {
    handle.inner.subscription.state()
}

/// Records a call that another component made from its request to its response; returns its route and backend.
pub fn record_completed(
    handle: &ServiceHandle,
    request: &BorrowedRequest<'_>,
    endpoint: &ExportedEndpoint,
    completed: &CompletedCall<'_>,
) -> RouteBackendIndex {
    dispatch::record_completed(&handle.inner, request, endpoint, completed)
}

/// As [`ServiceHandle::send_unpin`], with notes of a call that fails too.
///
/// # Errors
/// As [`ServiceHandle::send`].
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

/// The names of a route and backend of the service.
pub fn route_backend_name(handle: &ServiceHandle, index: RouteBackendIndex) -> RouteBackend {
    handle.inner.subscription.route_backend_name(index)
}

/// Begins a call on the fast path, with a request that is sent from the buffer that it was read into, to its own
/// host or, unless `keeps_host`, to the service's; it `began` when the request arrived. `None` where the request
/// has to be parsed before a decision, and nothing was counted.
#[inline]
pub fn try_fast<'a>(
    handle: &'a ServiceHandle,
    request: &BorrowedRequest<'_>,
    keeps_host: bool,
    began: Instant,
) -> Option<Result<FastCall<'a>, Box<SlowCall<'a>>>> {
    dispatch::try_fast(&handle.inner, request, keeps_host, began)
}

/// Opens a tunnel for a CONNECT request. It is routed as any request, and the limits, redirects, faults,
/// splits and timeouts of its route apply to it. Its path is `/`, and its host that of its URI.
///
/// It has to be `allowed`, or its route has to name CONNECT among its methods: no route sees the bytes in a tunnel.
///
/// # Errors
/// As [`ServiceHandle::open_connection`].
pub async fn open_tunnel(
    handle: &ServiceHandle,
    request: Request<()>,
    allowed: bool,
    call_info: &CallInfo,
) -> Result<ConnectResult, Fault> {
    dispatch::open_tunnel(&handle.inner, request.into_parts().0, allowed, call_info).await
}
