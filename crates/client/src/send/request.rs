//! The head of a request on its way out.

use std::time::Duration;

use fairmesh_router::{Headers, RequestView};
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri, Version, header,
    request::Parts,
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::{
    headers,
    headers::{KEY, ROLE},
    service::Handle,
    transport::{Outgoing, Replay},
};

/// Headers as routes see them.
pub(crate) struct View<'a>(pub(crate) &'a HeaderMap);

impl Headers for View<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(HeaderValue::as_bytes)
    }
}

/// What of a request's head is sent. Extensions are the caller's own and stay behind.
#[derive(Clone)]
pub(super) struct Head {
    method: Method,
    authority: Authority,
    path: PathAndQuery,
    pub(super) headers: HeaderMap,
    grpc: bool,
}

/// What it takes to send a request once more.
pub(super) struct Copy {
    head: Head,
    body: Replay,
}

impl Head {
    pub(super) fn new(handle: &Handle, parts: Parts) -> Self {
        let uri = parts.uri.into_parts();
        let mut headers = parts.headers;
        let marks = &handle.marks;
        let named = || headers.get(header::HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let authority = uri.authority.or_else(named).unwrap_or_else(|| marks.authority.clone());
        if let Some(key) = &marks.key {
            headers.insert(KEY, key.clone());
        }
        if let Some(role) = &marks.role {
            headers.insert(ROLE, role.clone());
        }
        let path = uri.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let grpc = headers::is_grpc(&headers);
        Self { method: parts.method, authority, path, headers, grpc }
    }

    /// What routes look at.
    pub(super) fn view<'a>(&'a self, headers: &'a View<'a>) -> RequestView<'a, View<'a>> {
        RequestView {
            host: self.authority.as_str(),
            path: self.path.path(),
            method: self.method.as_str(),
            headers,
            grpc: self.grpc,
        }
    }

    /// The request, yet to be addressed.
    pub(super) fn request(self, body: Outgoing) -> Request<Outgoing> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.headers_mut() = self.headers;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority);
        parts.path_and_query = Some(self.path);
        // A scheme, an authority and a path are always a URI.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        request
    }
}

impl Copy {
    /// A copy where one may be needed and can be made.
    pub(super) fn of(head: &Head, body: &Outgoing, wanted: bool) -> Option<Self> {
        let body = wanted.then(|| body.replay()).flatten()?;
        Some(Self { head: head.clone(), body })
    }

    pub(super) fn request(&self) -> Request<Outgoing> {
        self.head.clone().request(self.body.again())
    }
}

/// Writes a request as the protocol of its target wants it, with the time that is left.
pub(super) fn address(request: &mut Request<Outgoing>, handle: &Handle, multiplexed: bool, left: Duration) {
    let grpc = headers::is_grpc(request.headers());
    headers::write_deadline(request.headers_mut(), left, grpc);
    if multiplexed {
        *request.version_mut() = Version::HTTP_2;
        return;
    }
    *request.version_mut() = Version::HTTP_11;
    let uri = std::mem::take(request.uri_mut()).into_parts();
    if !request.headers().contains_key(header::HOST) {
        let marks = &handle.marks;
        let host = match &uri.authority {
            Some(authority) if *authority != marks.authority => {
                HeaderValue::from_str(authority.as_str()).ok()
            }
            _ => None,
        };
        request.headers_mut().insert(header::HOST, host.unwrap_or_else(|| marks.host.clone()));
    }
    // HTTP/1.1 servers are asked by path alone (RFC 9112 3.2.1).
    *request.uri_mut() = uri.path_and_query.map(Uri::from).unwrap_or_default();
}
