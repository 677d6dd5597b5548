//! The head of a request on its way out.

use std::mem;

use fairmesh_model::{HostPort, ShardKey};
use fairmesh_router::{Headers, RequestView};
use http::{HeaderMap, HeaderValue, Method, header, request::Parts, uri::Authority};

use crate::{
    Fault, FaultKind,
    service::{Handle, Marks},
    transport::{Head, Replay, Request},
};
use fairmesh_headers::{
    self, {KEY, ROLE},
};
use fairmesh_http::path::{Path, RawPath};

/// Headers as routes see them.
pub(crate) struct View<'a>(pub(crate) &'a HeaderMap);

impl Headers for View<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(HeaderValue::as_bytes)
    }

    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.get_all(name).iter().any(|value| sees(value.as_bytes()))
    }
}

/// What it takes to send a request once more.
pub(super) struct Copy {
    head: Head,
    body: Replay,
}

/// Which host is asked, the same by every protocol, and the one that routes match: a header `host` says it before the URI, and the
/// URI before the handle. Credentials in the URI are the caller's own and stay behind.
///
/// # Errors
/// Where that is no host, or its port is none.
pub(crate) fn authority(
    named: Option<&Authority>,
    headers: &HeaderMap,
    marks: &Marks,
) -> Result<Authority, Fault> {
    let authority = match (headers.get(header::HOST), named) {
        // Nearly always the one that the handle has, and then nothing needs to be made of it.
        (Some(host), _) if *host == *marks.authority.as_str() => return Ok(marks.authority.clone()),
        (Some(host), _) => Authority::try_from(host.as_bytes()).ok(),
        (None, Some(named)) => match named.as_str().rsplit_once('@') {
            Some((_, host)) => Authority::try_from(host).ok(),
            None => Some(named.clone()),
        },
        (None, None) => return Ok(marks.authority.clone()),
    };
    authority.filter(|authority| HostPort::parse(authority.as_str()).is_some()).ok_or_else(|| {
        let words = "the request's host is malformed; name a host or an address, and a port up to 65535 where there is one";
        Fault::new(FaultKind::Invalid, words)
    })
}

impl Head {
    /// Takes what is sent of a request.
    pub(super) fn take(handle: &Handle, parts: &mut Parts) -> Result<Self, Fault> {
        // They are the caller's own, and nobody needs the others any more.
        let raw = mem::take(&mut parts.extensions).remove::<RawPath>();
        let uri = mem::take(&mut parts.uri).into_parts();
        let mut headers = mem::take(&mut parts.headers);
        let marks = &handle.marks;
        let authority = authority(uri.authority.as_ref(), &headers, marks)?;
        if let Some(key) = &marks.key {
            headers.insert(KEY, key.clone());
        }
        if let Some(role) = &marks.role {
            headers.insert(ROLE, role.clone());
        }
        let path = Path::of(uri.path_and_query, raw.as_ref());
        let grpc = fairmesh_headers::is_grpc(&headers);
        Ok(Self { method: mem::take(&mut parts.method), authority, path, headers, grpc })
    }

    /// Whether it is a call of gRPC-Web, whose response may be a stream as well.
    pub(super) fn is_grpc_web(&self) -> bool {
        self.method == Method::POST && fairmesh_headers::is_grpc_web(&self.headers)
    }

    /// Says the key that the policy read in the request, as if the caller had.
    pub(super) fn write_key(&mut self, key: ShardKey) {
        // Digits are always a header value.
        if let Ok(key) = HeaderValue::try_from(key.to_string()) {
            self.headers.insert(KEY, key);
        }
    }

    /// What routes look at.
    pub(super) fn view<'a>(&'a self, headers: &'a View<'a>) -> RequestView<'a, View<'a>> {
        RequestView {
            host: self.authority.as_str(),
            path: self.path.as_str(),
            method: self.method.as_str(),
            headers,
            grpc: self.grpc,
        }
    }
}

impl Copy {
    /// A copy where one may be needed and can be made.
    pub(super) fn of(request: &Request, wanted: bool) -> Option<Self> {
        let body = wanted.then(|| request.body.replay()).flatten()?;
        Some(Self { head: request.head.clone(), body })
    }

    /// The request once more.
    pub(super) fn request(&self) -> Request {
        Request::new(self.head.clone(), self.body.again())
    }
}
