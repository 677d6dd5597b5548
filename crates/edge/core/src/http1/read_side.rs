//! The read half of a connection.

use std::{
    io,
    task::{Context, Poll, ready},
};

use fairmesh_http::h1::{Decoder, MIN_READ, ReadBuffer};
use tokio::io::AsyncRead;

/// Bytes of buffer reserved for headers in addition to the body.
const HEAD_ROOM: usize = 1024;
/// Maximum size in bytes of a body that is buffered completely before its request is handled.
const MAX_BUFFERED_BODY: usize = 64 * 1024;

/// The read half of a connection with its buffer.
#[derive(Debug)]
pub(crate) struct ReadSide<R> {
    pub(crate) io: R,
    /// Bytes read and not yet parsed.
    pub(crate) input: ReadBuffer,
    /// Bytes read so far.
    pub(crate) read_bytes: u64,
    /// Length of the last request if it was large, as an estimate for the next one.
    pub(crate) expected_len: usize,
    /// Length of the first request while its rest is awaited.
    pub(crate) request_len: Option<usize>,
    /// Bytes of the first request that were discarded from its end.
    pub(crate) discarded: usize,
}

impl<R> ReadSide<R> {
    pub(crate) fn new(io: R) -> Self {
        Self {
            io,
            input: ReadBuffer::default(),
            read_bytes: 0,
            expected_len: 0,
            request_len: None,
            discarded: 0,
        }
    }
}

impl<R: AsyncRead + Unpin> ReadSide<R> {
    /// Reads at least one byte; `due` is the number of bytes expected. Returns 0 when the client has closed
    /// its side.
    pub(crate) fn poll_read(&mut self, due: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match ready!(self.input.poll_read(&mut self.io, due, context)) {
            // TLS closed without close_notify: HTTP/1.1 delimits messages itself.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            read => {
                self.read_bytes += read.as_ref().map_or(0, |read| *read as u64);
                Poll::Ready(read)
            }
        }
    }

    /// Inserts bytes from another source before those already read.
    pub(crate) fn prepend(&mut self, bytes: &[u8]) {
        let read = self.input.split();
        self.input.append(bytes);
        self.input.append(&read);
    }

    /// Reads request headers. The buffer of a new request has room for the largest headers, or for the expected
    /// length if that is larger, because a request that does not fit would cost a second read.
    pub(crate) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let due = match self.request_len {
            Some(request_len) => request_len.saturating_sub(self.input.len()),
            None if self.input.is_empty() => self.expected_len.max(MIN_READ - 1),
            None => 0,
        };
        self.poll_read(due, context)
    }

    /// Notes that parsing of the first request begins, whether or not the request is complete.
    pub(crate) fn started(&mut self) {
        self.request_len = None;
    }

    /// Reads the rest of a short body as far as it is available, so that the read half need not be lent to the
    /// handler.
    pub(crate) fn read_short_body(&mut self, body: &Decoder, context: &mut Context<'_>) {
        let Some(left) = body.left().and_then(|left| usize::try_from(left).ok()) else { return };
        self.expected_len = if left > MIN_READ { left.saturating_add(HEAD_ROOM) } else { 0 };
        while left <= MAX_BUFFERED_BODY && self.input.len() < left {
            let due = left - self.input.len();
            // The next read reports the end and errors.
            if !matches!(self.poll_read(due, context), Poll::Ready(Ok(1..))) {
                break;
            }
        }
    }
}
