//! Which host a request names, what service that is, and what the server is told of it.

use std::sync::Arc;

use fairmesh_model::HostPort;
use http::{HeaderMap, HeaderValue, Request, Version, header};

use crate::forward::{
    connection_info::ConnectionInfo, forwarder::Forwarder, host_name::HostError, target::Target,
};

impl Forwarder {
    /// The service that a request is for, whose host is well formed.
    pub(crate) fn target<B>(
        &self,
        request: &Request<B>,
        client_info: &ConnectionInfo,
    ) -> Result<Arc<Target>, HostError> {
        let header = host_header(request)?;
        // The URI counts before the header (RFC 9112 3.2.2, RFC 9113 8.3.1): HTTP/2 and requests to a proxy name the host there.
        let authority = request.uri().authority().map(|authority| authority.as_str());
        if client_info.service.is_some() {
            authority.map_or(Ok(()), validate)?;
            return self.target_of("", client_info);
        }
        let by_host = |host: &str| self.target_of(host, client_info);
        match (authority.map(by_host), header) {
            // It names the proxy itself, as programs that set the header over HTTP/2 have it, and the header says who is meant.
            // The server is told the service's own name in either case.
            (Some(Err(HostError::NotAService(_))) | None, Some(host)) => by_host(host),
            (Some(found), _) => found,
            (None, None) => Err(HostError::Missing),
        }
    }
}

/// The one well-formed header `host` of a request. HTTP/1.1 without it is refused, whatever else names a host (RFC 9112 3.2).
pub(crate) fn host_header<B>(request: &Request<B>) -> Result<Option<&str>, HostError> {
    let header = single_host(request.headers())?;
    if header.is_none() && request.version() == Version::HTTP_11 {
        return Err(HostError::Missing);
    }
    header.map_or(Ok(()), validate)?;
    Ok(header)
}

/// The header `host`; where there are several, two servers could take another one each.
fn single_host(headers: &HeaderMap) -> Result<Option<&str>, HostError> {
    let mut hosts = headers.get_all(header::HOST).into_iter();
    let Some(host) = hosts.next() else { return Ok(None) };
    let malformed =
        |host: &HeaderValue| HostError::Malformed(String::from_utf8_lossy(host.as_bytes()).into());
    match hosts.next() {
        Some(other) => Err(malformed(other)),
        None => host.to_str().map(Some).map_err(|_| malformed(host)),
    }
}

fn validate(host: &str) -> Result<(), HostError> {
    HostPort::parse(host).map(drop).ok_or_else(|| HostError::Malformed(host.to_owned()))
}
