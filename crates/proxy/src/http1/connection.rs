//! The state of one connection.

mod close;
mod exchange;
mod read_request;
mod response;

use std::{pin::Pin, time::Duration};

use fairmesh_http::h1::{Outbox, Received, RequestReader};
use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot::Receiver,
    time::{Instant, Sleep, sleep},
};

use crate::http1::{
    date::Date, outcome::ConnectionError, read_side::ReadSide, request_body::BodyReader,
    upgrade::PendingUpgrade,
};

/// Text beyond which the memory of answers is given back.
pub(crate) const KEEP_CAPACITY: usize = 8 * 1024;
/// How much of later requests is read while one is answered.
pub(crate) const READ_AHEAD: usize = 64 * 1024;
/// How long a connection is read after its last answer where its program may still be sending: closed at once, the system
/// would reset it, and take the answer away that was not read yet.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// A connection of a program.
pub(crate) struct Connection<R, W> {
    pub(crate) source: ReadState<R>,
    pub(crate) requests: RequestReader,
    /// Whether nothing that came of the next request was looked at.
    pub(crate) unparsed: bool,
    /// Until when the rest of a request is waited for, most of which has come.
    pub(crate) rest_deadline: Option<Instant>,
    /// How much of what came belongs to the request that is being passed on.
    pub(crate) forwarded_len: usize,
    pub(crate) writer: W,
    pub(crate) output: Outbox,
    /// Whether what came after the request that waits for its answer may be something else than messages.
    pub(crate) may_switch: bool,
    /// Who takes the connection after the answer that is being sent.
    pub(crate) pending_upgrade: Option<PendingUpgrade>,
    pub(crate) date: Date,
    pub(crate) idle_timeout: Duration,
    /// Until when the program may take for what it is to do next.
    pub(crate) deadline: Instant,
    /// Rings when that is looked at again. It is not set anew for each request: most end long before.
    pub(crate) timer: Pin<Box<Sleep>>,
    #[cfg(test)]
    pub(crate) mutation: Option<Mutation>,
}

/// A mistake, for a test that must find it.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    BodyIsNextRequest,
    NeverCloses,
    NoChunks,
    OneMessageARead,
    NoTail,
}

/// Who reads the connection.
pub(crate) enum ReadState<R> {
    Owned(ReadSide<R>),
    /// The body of the request that is being answered.
    Lent(Receiver<BodyReader<R>>),
    /// Nobody any more: nothing after the request can be told from its body.
    Unframed(ReadSide<R>),
    /// Nobody: it was lost with the body.
    Lost,
}

/// What a program does next.
pub(crate) enum NextRequest {
    /// It has begun to send a request, of which nothing was looked at; said once of each.
    Started,
    /// Boxed, so that a connection that idles keeps no room for it. Plain requests, which are most, do not come here.
    Request(Box<Received>),
    Refused(StatusCode, &'static str),
    Http2,
    /// Nothing.
    Idle,
    Failed(ConnectionError),
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    pub(crate) fn new(io: R, writer: W, idle_timeout: Duration) -> Self {
        Self {
            source: ReadState::Owned(ReadSide::new(io)),
            requests: RequestReader::default(),
            unparsed: true,
            rest_deadline: None,
            forwarded_len: 0,
            writer,
            output: Outbox::default(),
            may_switch: false,
            pending_upgrade: None,
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
