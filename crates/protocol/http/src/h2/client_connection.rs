//! Drives the client side of a connection.

use std::{
    fmt,
    io::{self, ErrorKind},
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use super::{Session, Shared, StreamError, lock};
use crate::h1::ReadBuffer;

/// Maximum size of one read, in bytes.
const READ_SIZE: usize = 64 * 1024;
/// Maximum number of reads per turn.
const READS_PER_TURN: usize = 4;

/// A connection for calls, until it fails or is retired.
///
/// It is read even while its send buffer is full. Frames from the server cause few frames to send, and pausing would
/// deadlock with a server that pauses reading for the same reason.
pub struct ClientConnection<I> {
    io: I,
    input: ReadBuffer,
    /// Bytes read and not yet parsed.
    unparsed: usize,
    session: Shared,
    /// GOAWAY is still to be sent.
    is_ending: bool,
}

impl<I> ClientConnection<I>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    /// Wraps a new transport connection.
    pub fn new(io: I) -> Self {
        let session = Arc::new(Mutex::new(Session::client(Instant::now())));
        Self { io, input: ReadBuffer::default(), unparsed: 0, session, is_ending: false }
    }

    /// Returns the session, on which calls are made.
    pub fn session(&self) -> Shared {
        Arc::clone(&self.session)
    }

    /// Reads and parses frames. Ready when the connection has failed.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<StreamError> {
        let mut read = mem::take(&mut self.unparsed);
        if let Some(violation) = lock(&self.session).check_backlog() {
            return Poll::Ready(StreamError::Violation(violation));
        }
        for _ in 0..READS_PER_TURN {
            if read > 0
                && let Err(violation) = lock(&self.session).receive(&mut self.input, Instant::now)
            {
                return Poll::Ready(StreamError::Violation(violation));
            }
            let due = READ_SIZE.saturating_sub(self.input.len() + 1);
            read = match ready!(self.input.poll_read(&mut self.io, due, context)) {
                Ok(0) => return Poll::Ready(StreamError::Io(ErrorKind::UnexpectedEof)),
                Ok(read) => read,
                Err(error) => return Poll::Ready(StreamError::Io(error.kind())),
            };
        }
        self.unparsed = read;
        // Yields, so that calls whose responses were received continue before more is read.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends the buffered frames. Ready when the connection is finished.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = lock(&self.session);
        ready!(session.poll_end_turn(&mut self.io, context))?;
        match self.is_ending || session.is_done() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl<I> Future for ClientConnection<I>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        lock(&this.session).begin_turn();
        if !this.is_ending
            && let Poll::Ready(error) = this.poll_read(context)
        {
            lock(&this.session).close(error);
            if !error.is_violation() {
                return Poll::Ready(());
            }
            this.is_ending = true;
        }
        match ready!(this.poll_send(context)) {
            Ok(()) => Pin::new(&mut this.io).poll_shutdown(context).map(|_| ()),
            Err(error) => {
                lock(&this.session).close(StreamError::Io(error.kind()));
                Poll::Ready(())
            }
        }
    }
}

impl<I> Drop for ClientConnection<I> {
    fn drop(&mut self) {
        // Calls in flight get an error.
        lock(&self.session).close(StreamError::Io(ErrorKind::TimedOut));
    }
}

impl<I> fmt::Debug for ClientConnection<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConnection").field("session", &self.session).finish_non_exhaustive()
    }
}
