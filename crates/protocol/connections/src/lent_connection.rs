//! Connections to an endpoint on which another component sends its own requests.

use std::fmt;

use bytes::BytesMut;
use http::StatusCode;
use tokio::net::TcpStream;

use crate::counters::OpenConnection;

/// Owner of a connection that is used for several requests. If the owner is dropped without `take_back`, the
/// connection was closed.
pub trait ConnectionOwner: fmt::Debug + Send + Sync {
    /// Notes the status of the response, before its body is read.
    fn note_status(&self, status: StatusCode);

    /// Takes the connection back after a response, ready for the next request.
    fn take_back(self: Box<Self>, connection: EndpointConnection);
}

/// A connection, counted as open while this value lives.
pub struct EndpointConnection {
    /// The socket.
    pub stream: TcpStream,
    /// The beginning of the response, which the owner has already read.
    pub read: BytesMut,
    pub(super) open: Option<OpenConnection>,
}

/// A connection that returns to its owner after the response.
pub struct OwnedConnection {
    pub(super) connection: EndpointConnection,
    pub(super) owner: Box<dyn ConnectionOwner>,
}

impl EndpointConnection {
    /// Turns the connection into one that returns to `owner` after the response.
    pub fn owned_by(self, owner: Box<dyn ConnectionOwner>) -> OwnedConnection {
        OwnedConnection { connection: self, owner }
    }
}

impl fmt::Debug for EndpointConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointConnection").field("stream", &self.stream).finish_non_exhaustive()
    }
}
