//! How a connection ends.

use std::io;

use bytes::BytesMut;
use fairmesh_calls::BoxError;
use fairmesh_http::h1::WrongLength;

use crate::http1::upgraded_stream::PendingUpgrade;

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum ConnectionEnd<R, W> {
    /// The connection ended in order.
    Closed,
    /// The connection failed.
    Failed(ConnectionError),
    /// The client speaks HTTP/2.
    Http2(ConnectionParts<R, W>),
    /// The connection was upgraded, or carries a tunnel.
    Upgraded(ConnectionParts<R, W>, PendingUpgrade),
}

/// The halves of a connection, and bytes that were read and not yet parsed.
#[derive(Debug)]
pub(crate) struct ConnectionParts<R, W> {
    pub(crate) reader: R,
    pub(crate) writer: W,
    pub(crate) read: BytesMut,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("invalid HTTP/1.1: {0}")]
    Refused(&'static str),
    #[error("connection closed in the middle of a request")]
    UnexpectedEof,
    #[error("client disconnected before the response")]
    Disconnected,
    #[error("client exceeded the time limit for request headers, or did not read its response in time")]
    Timeout,
    #[error("connection failed")]
    Io(#[from] io::Error),
    #[error("response body failed")]
    Response(#[source] BoxError),
    #[error("response body does not match its content-length")]
    BodyLength(#[from] WrongLength),
}
