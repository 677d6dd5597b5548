//! Rewrites headers of requests and responses.

use fairmesh_calls::{Body, Region, forwarding::SentRequest};
use fairmesh_http::path::RawPath;
use http::{Response, Uri, Version, header, request::Parts};

use crate::forward::{connection_info::ConnectionInfo, hop_by_hop, loops};

/// Prepares a request for the server: host, hop-by-hop headers and extensions.
pub(crate) fn prepare_request(parts: &mut Parts, client_info: &ConnectionInfo) {
    rewrite_host(parts, client_info);
    hop_by_hop::strip_request(&mut parts.headers);
    hop_by_hop::set_forwarded_proto(&mut parts.headers, client_info.over_tls);
    loops::mark(&mut parts.headers);
    // Extensions belong to the client's connection, except the raw path and the connection of a request that was sent.
    let (raw, sent) = (parts.extensions.remove::<RawPath>(), parts.extensions.remove::<SentRequest>());
    client_info.reset_extensions(&mut parts.extensions);
    raw.map(|raw| parts.extensions.insert(raw));
    sent.map(|sent| parts.extensions.insert(sent));
}

/// Prepares a response for the client: hop-by-hop headers and version.
pub(crate) fn prepare_response(response: &mut Response<Body>) {
    hop_by_hop::strip_response(response.headers_mut());
    // The version on the server's connection does not determine that on the client's.
    *response.version_mut() = Version::default();
}

/// The region of the server that responded; `None` for responses of the proxy.
#[inline]
pub(crate) fn server_region(response: &Response<Body>) -> Option<&Region> {
    response.body().responder().map(|(server, _)| &server.location.region)
}

/// Leaves at most one host in a request, which routes match and the server receives: on a listener for one service the
/// authority of the URI, or else the header; on other listeners none, so that the library sets the service's own name.
pub(crate) fn rewrite_host(parts: &mut Parts, client_info: &ConnectionInfo) {
    let by_host = client_info.service.is_none();
    if by_host || parts.uri.authority().is_some() {
        parts.headers.remove(header::HOST);
    }
    if by_host {
        parts.uri = parts.uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    }
}
