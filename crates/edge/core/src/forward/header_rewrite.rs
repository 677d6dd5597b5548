//! Rewrites headers of requests and responses.

use fairmesh_calls::{Body, Region, forwarding::SentRequest};
use fairmesh_headers::CALLER;
use fairmesh_http::path::RawPath;
use http::{HeaderMap, HeaderValue, Response, Uri, Version, header, request::Parts};

use crate::forward::{connection_info::ConnectionInfo, hop_by_hop, loop_detection, mesh_boundary::Boundary};

/// Prepares a request for the server: host, hop-by-hop headers and extensions.
pub(crate) fn prepare_request(parts: &mut Parts, client_info: &ConnectionInfo) {
    rewrite_host(parts, client_info);
    hop_by_hop::strip_request(&mut parts.headers);
    // After the headers that `connection` lists are removed, since they could include the caller.
    if let Some(principal) = &client_info.principal {
        state_caller(&mut parts.headers, principal.caller.as_str());
    }
    if client_info.boundary.is_some() {
        Boundary::remove_claims(&mut parts.headers);
    }
    hop_by_hop::set_forwarded_proto(&mut parts.headers, client_info.over_tls);
    loop_detection::mark(&mut parts.headers);
    // Extensions belong to the client's connection, except the raw path and the connection over which the
    // request was already sent.
    let (raw, sent) = (parts.extensions.remove::<RawPath>(), parts.extensions.remove::<SentRequest>());
    client_info.reset_extensions(&mut parts.extensions);
    raw.map(|raw| parts.extensions.insert(raw));
    sent.map(|sent| parts.extensions.insert(sent));
}

/// Sets the caller header, and removes all headers that could claim a caller.
fn state_caller(headers: &mut HeaderMap, caller: &str) {
    Boundary::remove_claims(headers);
    // SPIFFE ids are ASCII without controls.
    if let Ok(caller) = HeaderValue::try_from(caller) {
        headers.insert(CALLER, caller);
    }
}

/// Prepares a response of a server for the client: hop-by-hop headers and version.
pub(crate) fn prepare_response(response: &mut Response<Body>) {
    hop_by_hop::strip_response(response.headers_mut());
    // The HTTP versions of the server's and the client's connections are independent.
    *response.version_mut() = Version::default();
}

/// The region of the server that responded; `None` for responses of the proxy.
#[inline]
pub(crate) fn server_region(response: &Response<Body>) -> Option<&Region> {
    response.body().responder().map(|(server, _)| &server.location.region)
}

/// Leaves at most one host in a request, which routes match and the server receives. On a listener for one service,
/// this is the authority of the URI, or otherwise the header. On other listeners no host remains, and the library
/// sets the service's own name.
pub(crate) fn rewrite_host(parts: &mut Parts, client_info: &ConnectionInfo) {
    let by_host = client_info.service.is_none();
    if by_host || parts.uri.authority().is_some() {
        parts.headers.remove(header::HOST);
    }
    if by_host {
        parts.uri = parts.uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_caller_header_replaces_clients_and_survives_connection_header() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "x-fairmesh-caller"),
            ("x-fairmesh-caller", "spiffe://prod/red/admin"),
            ("x_fairmesh_caller", "spiffe://prod/red/admin"),
            ("x-forwarded-client-cert", "URI=spiffe://prod/red/admin"),
            ("accept", "text/html"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        hop_by_hop::strip_request(&mut headers);
        state_caller(&mut headers, "spiffe://prod/red/client");
        let mut left: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        left.sort_unstable();
        assert_eq!(left, [("accept", &b"text/html"[..]), ("x-fairmesh-caller", b"spiffe://prod/red/client")]);
    }
}
