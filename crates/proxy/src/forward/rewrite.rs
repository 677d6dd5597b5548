//! Headers that a proxy changes.

use fairmesh_client::{Body, Region};
use fairmesh_http::path::RawPath;
use http::{Response, Uri, Version, header, request::Parts};

use crate::forward::{connection_info::ConnectionInfo, hop_by_hop};

/// Takes what a request says of the connection on which it came.
pub(crate) fn prepare_request(parts: &mut Parts, client_info: &ConnectionInfo) {
    rewrite_host(parts, client_info);
    hop_by_hop::strip_request(&mut parts.headers);
    hop_by_hop::set_forwarded_proto(&mut parts.headers, client_info.over_tls);
    // Nothing of the connection it came on belongs to the call; its path does.
    let raw = parts.extensions.remove::<RawPath>();
    parts.extensions.clear();
    raw.map(|raw| parts.extensions.insert(raw));
}

/// Takes what an answer says of the connection on which it came.
pub(crate) fn prepare_response(response: &mut Response<Body>) {
    hop_by_hop::strip_response(response.headers_mut());
    // How the server spoke says nothing of how the program does.
    *response.version_mut() = Version::default();
}

/// Where the server is that answered, if one did.
#[inline]
pub(crate) fn server_region(response: &Response<Body>) -> Option<&Region> {
    response.body().answered_by().map(|(server, _)| &server.location.region)
}

/// Leaves the one host in a request that routes match and the server is told: of a listener for one service what the request names,
/// its URI before its header, and otherwise nothing, so that it is the service's own.
pub(crate) fn rewrite_host(parts: &mut Parts, client_info: &ConnectionInfo) {
    let by_host = client_info.service.is_none();
    if by_host || parts.uri.authority().is_some() {
        parts.headers.remove(header::HOST);
    }
    if by_host {
        parts.uri = parts.uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    }
}
