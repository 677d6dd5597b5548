use std::time::Duration;

use http::{
    HeaderMap, Method, Uri, Version,
    uri::{Authority, PathAndQuery, Scheme},
};

use super::Outgoing;
use crate::headers;

/// A request on its way out, by whichever protocol.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Outgoing,
    /// The time that is left for the call, as the server is told.
    pub(crate) left: Duration,
}

impl Request {
    /// One that was not sent yet: each try says how much time is left.
    pub(crate) fn new(head: Head, body: Outgoing) -> Self {
        Self { head, body, left: Duration::ZERO }
    }
}

/// A request that waits to be sent. It is taken when a connection has begun to send it: whoever finds it here may send it
/// elsewhere.
pub(crate) type Slot = Option<Request>;

/// What of a request's head is sent. Extensions are the caller's own and stay behind.
#[derive(Clone)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// The host that is asked; a header `host` is in it already and is not sent again.
    pub(crate) authority: Authority,
    pub(crate) path: PathAndQuery,
    pub(crate) headers: HeaderMap,
    pub(crate) grpc: bool,
}

impl Head {
    /// As HTTP/2 has it, with the time that is left.
    pub(super) fn into_http2(self, left: Duration) -> http::Request<()> {
        let mut request = http::Request::new(());
        *request.method_mut() = self.method;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        headers::write_deadline(request.headers_mut(), left, self.grpc);
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority);
        parts.path_and_query = Some(self.path);
        // A scheme, an authority and a path are always a URI.
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        request
    }
}
