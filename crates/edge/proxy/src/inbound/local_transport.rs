//! Says to the proxy of a caller on the same machine whether the kernel may carry its requests, and where to. The answer holds
//! for a moment, in which the proxy asks again: so it ends with the connection, with the certificates of both sides, with the
//! rules, and with this process.

use std::net::SocketAddr;

use fairmesh_calls::Body;
use fairmesh_edge::forward::error_response;
use fairmesh_headers::{LOCAL_HOST, LOCAL_SERVER};
use fairmesh_server::ConnectionAuthorizer;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::{
    inbound::{caller_headers, peer::Peer},
    local_host::local_host,
};

/// The response to a request that [asks for this](fairmesh_headers::asks_for_local): the address of the program, and the
/// headers that name the peer to it; or the reason why the peer has to send its requests here.
pub(crate) fn respond(
    authorizer: &ConnectionAuthorizer,
    (peer, headers): (&Peer, &HeaderMap),
    program: SocketAddr,
) -> Response<Body> {
    let refused = |reason: &str| error_response::plain_text(StatusCode::FORBIDDEN, format!("{reason}\n"));
    let mut hosts = headers.get_all(LOCAL_HOST).iter();
    let is_here = match (hosts.next(), hosts.next(), local_host()) {
        (Some(asked), None, Ok(own)) => asked.as_bytes() == own.as_bytes(),
        _ => false,
    };
    if !is_here {
        return refused("the proxy is on another machine, or in another network namespace");
    }
    if let Err(reason) = authorizer.decide_local(peer.caller.as_ref()) {
        return refused(&reason.to_string());
    }
    let Ok(server) = HeaderValue::try_from(program.to_string()) else {
        return refused("the program has no address");
    };
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    caller_headers::set_identity(headers, peer.caller.as_ref(), peer.certificate.as_ref());
    headers.insert(LOCAL_SERVER, server);
    response
}
