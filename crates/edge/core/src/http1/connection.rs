//! The state of one HTTP/1.1 connection.

mod close;
mod exchange;
mod offloaded_requests;
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
    connection_end::ConnectionError,
    date::Date,
    read_side::ReadSide,
    request_body::BodyReader,
    request_offload::{NoOffload, Offload},
    upgraded_stream::PendingUpgrade,
};

/// Capacity in bytes above which the write buffer is released.
pub(crate) const KEEP_CAPACITY: usize = 8 * 1024;
/// Maximum bytes of pipelined requests that are read while a response is in progress.
pub(crate) const READ_AHEAD: usize = 64 * 1024;
/// Maximum pause of a client while its connection is read after the last response. If the connection were closed at
/// once, the system would send a reset, and the client would lose response data that it has not read.
pub(crate) const LINGER_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time for which a connection is read after its last response, as in nginx (`lingering_time`).
pub(crate) const LINGER: Duration = Duration::from_secs(30);
/// Maximum bytes that are read from a connection after its last response, so that a client that ignores the response
/// cannot keep a core busy.
pub(crate) const MAX_LINGER_BYTES: u64 = 256 << 20;

/// A client connection.
pub(crate) struct Connection<R, W, O = NoOffload> {
    pub(crate) source: ReadState<R>,
    pub(crate) requests: RequestReader,
    /// Whether no byte of the next request has been parsed yet.
    pub(crate) unparsed: bool,
    /// Time until which the connection waits for the rest of a nearly complete request.
    pub(crate) rest_deadline: Option<Instant>,
    /// Number of bytes in the read buffer that belong to the request on the fast path.
    pub(crate) forwarded_len: usize,
    pub(crate) writer: W,
    pub(crate) output: WriteBuffer,
    /// Whether the request in progress may upgrade the connection. Bytes after it may then not be HTTP.
    pub(crate) may_switch: bool,
    /// Receiver of the connection after the response in progress.
    pub(crate) pending_upgrade: Option<PendingUpgrade>,
    /// Sender of some of this client's requests, which bypass the proxy.
    pub(crate) offload: Option<O>,
    pub(crate) date: Date,
    pub(crate) idle_timeout: Duration,
    /// Deadline of the client's next read or write.
    pub(crate) deadline: Instant,
    /// Timer that fires at the deadline or earlier; the deadline is then checked. It is not reset for each request,
    /// since most requests end long before it fires.
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

/// Owner of the read half.
pub(crate) enum ReadState<R> {
    Owned(ReadSide<R>),
    /// The body of the request in progress owns the read half.
    Lent(Receiver<BodyReader<R>>),
    /// The end of the request's body is unknown, so no further request can be parsed.
    Unframed(ReadSide<R>),
    /// The read half was dropped together with the body.
    Lost,
}

/// The next event on a connection.
pub(crate) enum NextRequest {
    /// The first bytes of a request arrived and are not parsed yet. Reported once per request.
    Started,
    /// A parsed request. Boxed, so that idle connections reserve no space for it. Requests on the fast path
    /// do not produce this event.
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
    /// Creates a connection whose requests may be sent by another sender.
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
