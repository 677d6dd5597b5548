//! Forwards requests to the local program.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_calls::{
    Body, BoxError, Deadline, Fault, FaultKind,
    forwarding::{DirectBody, DirectClient},
};
use fairmesh_edge::{
    counter::increment,
    forward::{error_response, hop_by_hop, host_lookup, request_body_rules::LimitedBody},
    metrics::EdgeMetrics,
    observe::served_requests::ReceivedBytes,
    tunnel::{Tunnels, client_upgrade::UpgradeRequest},
};
use fairmesh_headers::grpc_content_type;
use fairmesh_http::path::RawPath;
use fairmesh_model::Identity;
use fairmesh_server::{AcceptedCall, ConnectionAuthorizer, ServerLayer};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};

use crate::inbound::{caller_headers, peer::Peer, request_body::RequestBody, response_body::ResponseBody};

/// Value of `allow` when CONNECT is refused: the methods that are forwarded (RFC 9110 10.2.1).
const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");

/// Forwards requests to the program.
#[derive(Debug)]
pub(crate) struct LocalForwarder {
    pub(crate) program: DirectClient,
    pub(crate) tunnels: Tunnels,
    pub(crate) metrics: Arc<EdgeMetrics>,
    /// Maximum bytes of a request body.
    pub(crate) max_body: u64,
    pub(crate) revocation: Revocation,
}

/// Authorizes upgraded connections again after the policy has changed.
#[derive(Clone, Debug)]
pub(crate) enum Revocation {
    /// Authorizes the request with which each connection began.
    Calls(ServerLayer),
    /// Authorizes the peer of the connection, or the caller that the peer states.
    Connections(ConnectionAuthorizer),
}

impl Revocation {
    /// Resolves once this call, or any call of its peer, is no longer allowed.
    async fn revoked(self, call: AcceptedCall, peer: Identity) {
        match self {
            Self::Calls(layer) => layer.revoked(&call).await,
            Self::Connections(authorizer) => authorizer.call_revoked(&call, &peer).await,
        }
    }
}

impl LocalForwarder {
    /// Responds to any request, with an error response if necessary.
    pub(crate) async fn forward<B>(&self, request: Request<B>, peer: &Peer) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let grpc = grpc_content_type(request.headers());
        if let Err(error) = host_lookup::host_header(&request) {
            let fault = Fault::new(FaultKind::Invalid, error.to_string());
            return error_response::from_fault(&fault, grpc).map(ResponseBody::Own);
        }
        if request.method() == Method::CONNECT {
            return connect_refused().map(ResponseBody::Own);
        }
        let revoked = self.revocation.clone().revoked(AcceptedCall::of(&request), peer.identity.clone());
        let (mut parts, body) = request.into_parts();
        let upgrade = UpgradeRequest::take(&mut parts);
        let (received, counted) = (parts.extensions.remove::<ReceivedBytes>(), parts.extensions.remove());
        prepare_request(&mut parts, upgrade.as_ref(), peer);
        let (body, too_long) = LimitedBody::new(RequestBody { body, received, counted }, self.max_body);
        match self.program.send(Request::from_parts(parts, body)).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.switch_protocols(response, upgrade, revoked).map(ResponseBody::Own)
            }
            Ok(mut response) => {
                hop_by_hop::strip_response(response.headers_mut());
                // The HTTP versions of the program's and the caller's connections are independent.
                *response.version_mut() = Version::default();
                response.map(ResponseBody::Program)
            }
            Err(_) if too_long.is_set() => {
                increment(&self.metrics.requests.too_large);
                error_response::body_too_large(self.max_body, grpc).map(ResponseBody::Own)
            }
            Err(fault) => {
                let mut response = error_response::from_fault(&fault, grpc).map(ResponseBody::Own);
                // The access log reads the kind of the fault.
                response.extensions_mut().insert(fault.kind());
                response
            }
        }
    }

    fn switch_protocols(
        &self,
        response: Response<DirectBody>,
        upgrade: Option<UpgradeRequest>,
        revoked: impl Future<Output = ()> + Send + 'static,
    ) -> Response<Body> {
        let (head, body) = response.into_parts();
        // The caller's stream holds its place at the listener until the tunnel ends.
        self.tunnels.switch_protocols(Response::from_parts(head, ()), (upgrade, body.into_tunnel()), revoked)
    }
}

/// Prepares a request for the program: one host, headers that describe the caller, no hop-by-hop headers except for
/// an upgrade, and no extensions of the connection.
fn prepare_request(parts: &mut Parts, upgrade: Option<&UpgradeRequest>, peer: &Peer) {
    // The authority of the URI takes precedence (RFC 9112 3.2.2, RFC 9113 8.3.1).
    if parts.uri.authority().is_some() {
        parts.headers.remove(header::HOST);
    }
    hop_by_hop::strip_request(&mut parts.headers);
    if let Some(upgrade) = upgrade {
        upgrade.apply(&mut parts.headers);
    }
    let certificate = peer.certificate.as_ref();
    caller_headers::set_identity(&mut parts.headers, parts.extensions.get(), certificate);
    caller_headers::add_address(&mut parts.headers, peer.address.ip());
    caller_headers::ensure_request_id(&mut parts.headers);
    let (raw, deadline) = (parts.extensions.remove::<RawPath>(), parts.extensions.remove::<Deadline>());
    parts.extensions.clear();
    raw.map(|raw| parts.extensions.insert(raw));
    deadline.map(|deadline| parts.extensions.insert(deadline));
}

/// Returns the refusal of CONNECT: rules about methods and paths could not be applied to the bytes in a tunnel.
fn connect_refused() -> Response<Body> {
    let message =
        "CONNECT is not allowed here: a tunnel bypasses what callers may do; call the program itself\n";
    let mut response = error_response::plain_text(StatusCode::METHOD_NOT_ALLOWED, message.to_owned());
    response.headers_mut().insert(header::ALLOW, ALLOWED);
    response
}
