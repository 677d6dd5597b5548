use std::time::Duration;

use http::{HeaderMap, Method, uri::Authority};

use super::request_body::RequestBody;
use fairmesh_http::path::Path;

/// A request to be sent, by either protocol.
pub struct Request {
    /// The head.
    pub head: Head,
    /// The body.
    pub body: RequestBody,
    /// The time left for the call, which is sent to the server where the call has a deadline.
    pub left: Option<Duration>,
}

impl Request {
    /// A request that was not sent yet: each attempt sets the time left.
    pub fn new(head: Head, body: RequestBody) -> Self {
        Self { head, body, left: None }
    }
}

/// A request that waits to be sent; `None` once a connection has begun to send it. While it is here, it may be sent to
/// another endpoint.
pub type PendingRequest = Option<Request>;

/// The parts of a request's head that are sent. Extensions are the caller's own and are not sent.
#[derive(Clone)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// The host of the request, that of a `host` header included, which is not sent again.
    pub authority: Authority,
    /// The path with its query.
    pub path: Path,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// Whether it is a gRPC call.
    pub grpc: bool,
}
