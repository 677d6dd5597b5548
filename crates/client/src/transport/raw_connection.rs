use bytes::BytesMut;
use tokio::net::TcpStream;

use crate::observe::OpenConnection;

/// A connection that carries no messages any more.
pub(crate) struct RawConnection<I = TcpStream> {
    pub(crate) io: I,
    /// Bytes read that belong to no message.
    pub(crate) input: BytesMut,
    /// Counts it as open.
    pub(crate) open: Option<OpenConnection>,
}
