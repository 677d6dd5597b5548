//! Which host a request names, what service that is, and what the server is told of it.

use std::sync::Arc;

use fairmesh_model::HostPort;
use http::{HeaderMap, HeaderValue, Request, Uri, Version, header, request::Parts};

use super::{Forwarder, Origin};
use crate::service::{Nobody, Target};

impl Forwarder {
    /// The service that a request is for, whose host is well formed.
    pub(super) fn target<B>(&self, request: &Request<B>, origin: &Origin) -> Result<Arc<Target>, Nobody> {
        let header = host_header(request)?;
        // The URI counts before the header (RFC 9112 3.2.2, RFC 9113 8.3.1): HTTP/2 and requests to a proxy name the host there.
        let authority = request.uri().authority().map(|authority| authority.as_str());
        if origin.service.is_some() {
            authority.map_or(Ok(()), check)?;
            return self.target_of("", origin);
        }
        let by_host = |host: &str| self.target_of(host, origin);
        match (authority.map(by_host), header) {
            // It names the proxy itself, as programs that set the header over HTTP/2 have it, and the header says who is meant.
            // The server is told the service's own name in either case.
            (Some(Err(Nobody::NoName(_))) | None, Some(host)) => by_host(host),
            (Some(found), _) => found,
            (None, None) => Err(Nobody::NoHost),
        }
    }
}

/// The one well-formed header `host` of a request. HTTP/1.1 without it is refused, whatever else names a host (RFC 9112 3.2).
pub(super) fn host_header<B>(request: &Request<B>) -> Result<Option<&str>, Nobody> {
    let header = host_of(request.headers())?;
    if header.is_none() && request.version() == Version::HTTP_11 {
        return Err(Nobody::NoHost);
    }
    header.map_or(Ok(()), check)?;
    Ok(header)
}

/// The header `host`; where there are several, two servers could take another one each.
fn host_of(headers: &HeaderMap) -> Result<Option<&str>, Nobody> {
    let mut hosts = headers.get_all(header::HOST).into_iter();
    let Some(host) = hosts.next() else { return Ok(None) };
    let malformed = |host: &HeaderValue| Nobody::Malformed(String::from_utf8_lossy(host.as_bytes()).into());
    match hosts.next() {
        Some(other) => Err(malformed(other)),
        None => host.to_str().map(Some).map_err(|_| malformed(host)),
    }
}

fn check(host: &str) -> Result<(), Nobody> {
    HostPort::parse(host).map(drop).ok_or_else(|| Nobody::Malformed(host.to_owned()))
}

/// Leaves the one host in a request that routes match and the server is told: of a listener for one service what the request names,
/// its URI before its header, and otherwise nothing, so that it is the service's own.
pub(super) fn tell_host(head: &mut Parts, origin: &Origin) {
    let by_host = origin.service.is_none();
    if by_host || head.uri.authority().is_some() {
        head.headers.remove(header::HOST);
    }
    if by_host {
        head.uri = head.uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    }
}
