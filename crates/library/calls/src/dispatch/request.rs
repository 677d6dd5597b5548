//! The request of a call: its head, and copies of it for further attempts.

use std::mem;

use fairmesh_connections::{Head, PendingRequest, Replay, Request};
use fairmesh_model::{HostPort, ShardKey};
use fairmesh_router::RequestView;
use http::{HeaderMap, HeaderValue, Method, header, request::Parts, uri::Authority};

use crate::{
    fault::{Fault, FaultKind},
    service::handle::Handle,
};
use fairmesh_headers::{HeaderMapView, KEY, ORIGIN, ROLE, TRACEPARENT, is_grpc, is_grpc_web};
use fairmesh_http::{
    BoxError,
    path::{Path, RawPath},
};

/// A copy of a request, for further attempts.
pub(super) struct RequestCopy {
    head: Head,
    body: Replay,
}

/// Returns a call's request if it was not sent yet.
pub(super) fn pending_request(pending: &mut PendingRequest) -> Result<&mut Request, Fault> {
    pending.as_mut().ok_or_else(|| Fault::new(FaultKind::Invalid, "there is no request to send"))
}

/// Returns the fault for a request body that failed.
pub(crate) fn body_error(error: BoxError) -> Fault {
    Fault::new(FaultKind::Invalid, "the request's body failed").caused_by(error)
}

/// Returns the host of a request, for every protocol and for routes: the header `host`, otherwise the URI's host,
/// otherwise the default. Credentials in the URI belong to the caller and are not sent.
///
/// # Errors
/// The host or its port is invalid.
pub(crate) fn request_authority(
    named: Option<&Authority>,
    headers: &HeaderMap,
    default: &Authority,
) -> Result<Authority, Fault> {
    let authority = match (headers.get(header::HOST), named) {
        // Almost always the handle's own host, which needs no parsing.
        (Some(host), _) if *host == *default.as_str() => return Ok(default.clone()),
        (Some(host), _) => Authority::try_from(host.as_bytes()).ok(),
        (None, Some(named)) => match named.as_str().rsplit_once('@') {
            Some((_, host)) => Authority::try_from(host).ok(),
            None => Some(named.clone()),
        },
        (None, None) => return Ok(default.clone()),
    };
    authority.filter(|authority| HostPort::parse(authority.as_str()).is_some()).ok_or_else(|| {
        let message =
            "the request's host is malformed; write a host or an address, and optionally a port up to 65535";
        Fault::new(FaultKind::Invalid, message)
    })
}

/// Takes the request head to send out of `parts`.
pub(super) fn take_head(handle: &Handle, parts: &mut Parts) -> Result<Head, Fault> {
    let defaults = &handle.default_headers;
    let mut head = take_head_for(&defaults.authority, parts)?;
    let headers = &mut head.headers;
    if let Some(key) = &defaults.key {
        headers.insert(KEY, key.clone());
    }
    if let Some(role) = &defaults.role {
        headers.insert(ROLE, role.clone());
    }
    if let Some(parent) = &defaults.parent
        && !headers.contains_key(TRACEPARENT)
    {
        headers.insert(TRACEPARENT, parent.header());
    }
    Ok(head)
}

/// Like [`take_head`], for a server with this host, without the headers of a handle.
pub(super) fn take_head_for(host: &Authority, parts: &mut Parts) -> Result<Head, Fault> {
    // Extensions belong to the caller and are not sent.
    let raw = mem::take(&mut parts.extensions).remove::<RawPath>();
    let uri = mem::take(&mut parts.uri).into_parts();
    let headers = mem::take(&mut parts.headers);
    let authority = request_authority(uri.authority.as_ref(), &headers, host)?;
    let path = Path::of(uri.path_and_query, raw.as_ref());
    let grpc = is_grpc(&headers);
    Ok(Head { method: mem::take(&mut parts.method), authority, path, headers, grpc })
}

/// Whether the request is a gRPC-Web call. Its response may be a stream.
pub(super) fn is_grpc_web_call(head: &Head) -> bool {
    head.method == Method::POST && is_grpc_web(&head.headers)
}

/// Adds the key that the policy read from the request, as though the caller had set it.
pub(super) fn write_key(head: &mut Head, key: ShardKey) {
    // Digits are always a header value.
    if let Ok(key) = HeaderValue::try_from(key.to_string()) {
        head.headers.insert(KEY, key);
    }
}

/// Writes the first service in the chain of calls, replacing any value set by the program.
pub(super) fn write_origin(head: &mut Head, origin: Option<&'static str>) {
    if let Some(origin) = origin {
        // Names of services are always a header value.
        head.headers.insert(ORIGIN, HeaderValue::from_static(origin));
    }
}

/// Returns the input of route conditions.
pub(super) fn route_view<'a>(
    head: &'a Head,
    headers: &'a HeaderMapView<'a>,
) -> RequestView<'a, HeaderMapView<'a>> {
    RequestView {
        host: head.authority.as_str(),
        path: head.path.as_str(),
        method: head.method.as_str(),
        headers,
        grpc: head.grpc,
    }
}

impl RequestCopy {
    /// Returns a copy of the request if `needed`.
    pub(super) fn of(request: &mut Request, needed: bool) -> Option<Self> {
        needed.then(|| Self { head: request.head.clone(), body: request.body.record_replay() })
    }

    /// Returns the request again; `None` if its body is no longer available.
    pub(super) fn to_request(&self) -> Option<Request> {
        Some(Request::new(self.head.clone(), self.body.to_body()?))
    }

    /// Whether the request can still be sent again.
    pub(super) fn is_available(&self) -> bool {
        self.body.is_available()
    }

    /// Whether two copies of the request can be sent at the same time.
    pub(super) fn is_complete(&self) -> bool {
        self.body.is_complete()
    }
}
