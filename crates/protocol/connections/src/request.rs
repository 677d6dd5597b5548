use std::time::Duration;

use http::{HeaderMap, Method, uri::Authority};

use super::request_body::RequestBody;
use fairmesh_http::path::Path;

/// A request to send over either protocol.
pub struct Request {
    /// The head.
    pub head: Head,
    /// The body.
    pub body: RequestBody,
    /// The time left for the call. Sent to the server if the call has a deadline.
    pub left: Option<Duration>,
}

impl Request {
    /// Creates a request. Each attempt sets the time left.
    pub fn new(head: Head, body: RequestBody) -> Self {
        Self { head, body, left: None }
    }
}

/// A request that is waiting to be sent; `None` once a connection has begun to send it. As long as it is `Some`, it may
/// be sent to another endpoint.
pub type PendingRequest = Option<Request>;

/// The parts of a request's head that are sent. Extensions belong to the caller and are not sent.
#[derive(Clone)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// Host of the request. A `host` header is included here and not sent again.
    pub authority: Authority,
    /// The path with its query.
    pub path: Path,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// Whether the request is a gRPC call.
    pub grpc: bool,
}
