//! The state of one HTTP/1.1 connection.

mod close;
mod exchange;
mod offloaded;
mod read_request;
mod response;

use std::{pin::Pin, time::Duration};

use fairmesh_http::h1::{ReceivedRequest, RequestReader, WriteBuffer};
use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot::Receiver,
    time::{Instant, Sleep, sleep},
};

use crate::http1::{
    date::Date,
    offload::{NoOffload, Offload},
    outcome::ConnectionError,
    read_side::ReadSide,
    request_body::BodyReader,
    upgrade::PendingUpgrade,
};

/// Capacity beyond which the write buffer is released.
pub(crate) const KEEP_CAPACITY: usize = 8 * 1024;
/// Maximum bytes of pipelined requests that are read while a response is in progress.
pub(crate) const READ_AHEAD: usize = 64 * 1024;
/// How long a client that may still be sending can pause after the last response of its connection, which is read
/// meanwhile: if it were closed at once, the system would send a reset and discard response data that the client has not
/// read.
pub(crate) const LINGER_PAUSE: Duration = Duration::from_secs(1);
/// How long such a connection is read in all, as nginx does (`lingering_time`).
pub(crate) const LINGER: Duration = Duration::from_secs(30);
/// How many bytes of such a connection are read in all: a client that ignores its response must not keep a core busy.
pub(crate) const MAX_LINGER_BYTES: u64 = 256 << 20;

/// A client connection.
pub(crate) struct Connection<R, W, O = NoOffload> {
    pub(crate) source: ReadState<R>,
    pub(crate) requests: RequestReader,
    /// Whether no byte of the next request has been parsed.
    pub(crate) unparsed: bool,
    /// Until when the rest of a nearly complete request is awaited.
    pub(crate) rest_deadline: Option<Instant>,
    /// Bytes of the read buffer that belong to the request that the fast path forwards.
    pub(crate) forwarded_len: usize,
    pub(crate) writer: W,
    pub(crate) output: WriteBuffer,
    /// Whether the request in progress may upgrade the connection, so that further bytes may not be HTTP.
    pub(crate) may_switch: bool,
    /// Receives the connection after the response in progress.
    pub(crate) pending_upgrade: Option<PendingUpgrade>,
    /// Requests of this client that another sender sends.
    pub(crate) offload: Option<O>,
    pub(crate) date: Date,
    pub(crate) idle_timeout: Duration,
    /// Deadline of the client's next read or write.
    pub(crate) deadline: Instant,
    /// Fires at the deadline or earlier; then the deadline is checked. Not reset for each request, since most requests
    /// end long before.
    pub(crate) timer: Pin<Box<Sleep>>,
    #[cfg(test)]
    pub(crate) mutation: Option<Mutation>,
}

/// A bug that a test injects and must detect.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    BodyIsNextRequest,
    NeverCloses,
    NoChunks,
    OneMessageARead,
    NoTail,
}

/// The owner of the read half.
pub(crate) enum ReadState<R> {
    Owned(ReadSide<R>),
    /// The body of the request in progress.
    Lent(Receiver<BodyReader<R>>),
    /// Later bytes cannot be delimited from the request's body.
    Unframed(ReadSide<R>),
    /// Dropped together with the body.
    Lost,
}

/// The next event on a connection.
pub(crate) enum NextRequest {
    /// The first bytes of a request arrived and are not parsed; reported once for each request.
    Started,
    /// Boxed, so that idle connections reserve no space for it. Requests on the fast path do not get here.
    Request(Box<ReceivedRequest>),
    Refused(StatusCode, &'static str),
    Http2,
    /// The client closed the connection or is idle.
    Idle,
    Failed(ConnectionError),
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    pub(crate) fn new(io: R, writer: W, idle_timeout: Duration) -> Self {
        Self::with_offload(io, writer, idle_timeout, None)
    }
}

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// A connection whose requests another sender may send.
    pub(crate) fn with_offload(io: R, writer: W, idle_timeout: Duration, offload: Option<O>) -> Self {
        Self {
            source: ReadState::Owned(ReadSide::new(io)),
            requests: RequestReader::default(),
            unparsed: true,
            rest_deadline: None,
            forwarded_len: 0,
            writer,
            output: WriteBuffer::default(),
            may_switch: false,
            pending_upgrade: None,
            offload,
            date: Date::new(),
            idle_timeout,
            deadline: Instant::now() + idle_timeout,
            timer: Box::pin(sleep(idle_timeout)),
            #[cfg(test)]
            mutation: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn set_mutation(&mut self, mutation: Option<Mutation>) {
        self.mutation = mutation;
    }
}
