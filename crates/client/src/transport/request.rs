use std::time::Duration;

use http::{HeaderMap, Method, uri::Authority};

use super::Outgoing;
use fairmesh_http::path::Path;

/// A request on its way out, by whichever protocol.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Outgoing,
    /// The time that is left for the call, which is sent to the server where the call has a deadline.
    pub(crate) left: Option<Duration>,
}

impl Request {
    /// One that was not sent yet: each try says how much time is left.
    pub(crate) fn new(head: Head, body: Outgoing) -> Self {
        Self { head, body, left: None }
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
    pub(crate) path: Path,
    pub(crate) headers: HeaderMap,
    pub(crate) grpc: bool,
}
