//! Finds the service of a request by its host.

use std::sync::Arc;

use fairmesh_model::HostPort;
use http::{HeaderMap, HeaderValue, Request, Version, header};

use crate::{
    forward::{connection_info::ConnectionInfo, forwarder::Forwarder},
    services::{host_name::HostError, target::Target},
};

impl Forwarder {
    /// The service of a request; fails if the host is malformed.
    pub(crate) fn target<B>(
        &self,
        request: &Request<B>,
        client_info: &ConnectionInfo,
    ) -> Result<Arc<Target>, HostError> {
        let header = host_header(request)?;
        // The authority of the URI takes precedence over the header (RFC 9112 3.2.2, RFC 9113 8.3.1); HTTP/2 requests
        // and requests to a forward proxy have it.
        let authority = request.uri().authority().map(|authority| authority.as_str());
        if client_info.service.is_some() {
            authority.map_or(Ok(()), validate)?;
            return self.target_of("", client_info);
        }
        let by_host = |host: &str| self.target_of(host, client_info);
        match (authority.map(by_host), header) {
            // The authority names the proxy itself, as with HTTP/2 clients that set the header separately; then the
            // header names the service. The server receives the service's own name in either case.
            (Some(Err(HostError::NotAService(_))) | None, Some(host)) => by_host(host),
            (Some(found), _) => found,
            (None, None) => Err(HostError::Missing),
        }
    }
}

/// The single, well-formed header `host` of a request. HTTP/1.1 requires it even with an authority in the URI
/// (RFC 9112 3.2).
///
/// # Errors
/// The header is repeated, malformed or missing.
pub fn host_header<B>(request: &Request<B>) -> Result<Option<&str>, HostError> {
    let header = single_host(request.headers())?;
    if header.is_none() && request.version() == Version::HTTP_11 {
        return Err(HostError::Missing);
    }
    header.map_or(Ok(()), validate)?;
    Ok(header)
}

/// The header `host`, or an error if it is repeated, since two servers might use different values.
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
