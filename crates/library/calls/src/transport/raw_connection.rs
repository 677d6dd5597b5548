use bytes::BytesMut;
use fairmesh_wire::transport::Stream;

use crate::observe::OpenConnection;

/// A connection that carries no messages any more.
pub(crate) struct RawConnection<I = Stream> {
    pub(crate) io: I,
    /// Bytes read that belong to no message.
    pub(crate) input: BytesMut,
    /// Counts it as open.
    pub(crate) open: Option<OpenConnection>,
}
