//! How a connection ends.

use std::io;

use bytes::BytesMut;
use fairmesh_client::BoxError;
use fairmesh_http::h1::WrongLength;

use crate::http1::upgrade::PendingUpgrade;

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum ConnectionEnd<R, W> {
    /// As it should.
    Closed,
    /// Early.
    Failed(ConnectionError),
    /// It carries HTTP/2.
    Http2(ConnectionParts<R, W>),
    /// It carries what was asked for, now that this is answered.
    Upgraded(ConnectionParts<R, W>, PendingUpgrade),
}

/// What is left of a connection: its halves, and what was read and not used.
#[derive(Debug)]
pub(crate) struct ConnectionParts<R, W> {
    pub(crate) reader: R,
    pub(crate) writer: W,
    pub(crate) read: BytesMut,
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("it was not HTTP/1.1 that is served: {0}")]
    Refused(&'static str),
    #[error("it ended in the middle of a request")]
    UnexpectedEof,
    #[error("its program had gone before it was answered")]
    Disconnected,
    #[error("its program took too long to send the head of a request, or to take an answer")]
    Timeout,
    #[error("it broke")]
    Io(#[from] io::Error),
    #[error("the answer broke off")]
    Response(#[source] BoxError),
    #[error("the answer was not framed as it said")]
    BodyLength(#[from] WrongLength),
}
