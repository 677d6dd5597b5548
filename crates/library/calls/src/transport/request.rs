use std::time::Duration;

use http::{HeaderMap, Method, uri::Authority};

use super::request_body::RequestBody;
use fairmesh_http::path::Path;

/// A request to be sent, by either protocol.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: RequestBody,
    /// The time left for the call, which is sent to the server where the call has a deadline.
    pub(crate) left: Option<Duration>,
}

impl Request {
    /// A request that was not sent yet: each attempt sets the time left.
    pub(crate) fn new(head: Head, body: RequestBody) -> Self {
        Self { head, body, left: None }
    }
}

/// A request that waits to be sent; `None` once a connection has begun to send it. While it is here, it may be sent to
/// another endpoint.
pub(crate) type PendingRequest = Option<Request>;

/// The parts of a request's head that are sent. Extensions are the caller's own and are not sent.
#[derive(Clone)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// The host of the request, that of a `host` header included, which is not sent again.
    pub(crate) authority: Authority,
    pub(crate) path: Path,
    pub(crate) headers: HeaderMap,
    pub(crate) grpc: bool,
}
