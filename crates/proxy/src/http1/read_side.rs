//! The read half of a connection.

use std::{
    io,
    task::{Context, Poll, ready},
};

use fairmesh_http::h1::{Decoder, Inbox, LEAST_READ};
use tokio::io::AsyncRead;

/// What the head of a request may well need, besides its body.
const HEAD_ROOM: usize = 1024;
/// The longest body that is awaited where the connection is read, and not lent.
const MAX_BUFFERED_BODY: usize = 64 * 1024;

/// The half of a connection that is read.
#[derive(Debug)]
pub(crate) struct ReadSide<R> {
    pub(crate) io: R,
    /// What came and belongs to nothing yet.
    pub(crate) input: Inbox,
    /// The size of the last request, where it was large: the next one may be alike.
    pub(crate) expected_len: usize,
    /// The length of a request that has begun to come, where the rest of it is waited for.
    pub(crate) request_len: Option<usize>,
    /// How much of the first request is gone, the end of it.
    pub(crate) discarded: usize,
}

impl<R> ReadSide<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, input: Inbox::default(), expected_len: 0, request_len: None, discarded: 0 }
    }
}

impl<R: AsyncRead + Unpin> ReadSide<R> {
    /// Reads what comes, of which so much is due; 0 where the program ended its side.
    pub(crate) fn poll_read(&mut self, due: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match ready!(self.input.poll_read(&mut self.io, due, context)) {
            // TLS without a farewell: whether what was said is whole, HTTP/1.1 says itself.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            read => Poll::Ready(read),
        }
    }

    /// Reads what comes of a head. One that begins gets as much memory as there ever is for heads, which is nearly always
    /// that of the head before, or as a whole request is expected to have: one that were cut in two would cost a second read.
    pub(crate) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let due = match self.request_len {
            Some(request_len) => request_len.saturating_sub(self.input.len()),
            None if self.input.is_empty() => self.expected_len.max(LEAST_READ - 1),
            None => 0,
        };
        self.poll_read(due, context)
    }

    /// The first request is looked at, whole or not.
    pub(crate) fn started(&mut self) {
        self.request_len = None;
    }

    /// Reads what has come of a body that is not long, so that it need not be lent to whoever answers.
    pub(crate) fn read_short_body(&mut self, body: &Decoder, context: &mut Context<'_>) {
        let Some(left) = body.left().and_then(|left| usize::try_from(left).ok()) else { return };
        self.expected_len = if left > LEAST_READ { left.saturating_add(HEAD_ROOM) } else { 0 };
        while left <= MAX_BUFFERED_BODY && self.input.len() < left {
            let due = left - self.input.len();
            // Whoever reads on learns of the end, and of what broke.
            if !matches!(self.poll_read(due, context), Poll::Ready(Ok(1..))) {
                break;
            }
        }
    }
}
