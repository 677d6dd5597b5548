//! Drives the server side of a connection.

use std::{
    fmt, io, mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{Request, Response};
use http_body::Body;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep},
};

use super::{
    PREFACE, Reason, RequestBody, ResetReason, Session, Shared, StreamError, Violation, exchange::Exchange,
    lock,
};
use crate::h1::ReadBuffer;

/// Maximum size of one read, in bytes.
const READ_SIZE: usize = 64 * 1024;
/// Maximum number of reads per turn.
const READS_PER_TURN: usize = 4;
/// Time, and number of bytes, for which a connection is read after the last GOAWAY. If the socket were closed at
/// once, the kernel would send RST and discard data that the client has not read yet.
const LINGER: Duration = Duration::from_secs(1);
const MAX_LINGER_BYTES: usize = 1 << 20;
/// Error of streams whose client has closed the connection.
const CLIENT_GONE: StreamError = StreamError::Reset(Reason::CANCEL);

/// A connection that serves requests until the client closes it or it is drained.
pub struct ServerConnection<I, S, F, B> {
    io: I,
    input: ReadBuffer,
    /// Bytes read and not yet parsed.
    unparsed: usize,
    session: Shared,
    service: S,
    exchanges: FuturesUnordered<Exchange<F, B>>,
    state: State,
}

/// Why a connection ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The transport failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The client violated the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
}

type Outcome = Result<(), Violation>;

enum State {
    Open,
    /// GOAWAY is still to be sent.
    Ending(Outcome),
    /// GOAWAY is sent. Holds the timer of the linger period and the number of bytes received since.
    Lingering(Outcome, Pin<Box<Sleep>>, usize),
}

/// Result of one turn of the connection.
enum Turn {
    /// The client has closed its side, and still receives complete responses.
    ClientClosed,
    Finished(Outcome),
}

impl<I, S, F, B> ServerConnection<I, S, F, B>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes, Error: ResetReason> + Unpin,
{
    /// Serves a connection from which `read`, beginning with [`PREFACE`], was already read.
    pub fn new(io: I, mut read: BytesMut, service: S) -> Self {
        read.advance(PREFACE.len().min(read.len()));
        let session = Arc::new(Mutex::new(Session::server(Instant::now())));
        let (unparsed, input, exchanges) = (read.len(), ReadBuffer::from(read), FuturesUnordered::new());
        Self { io, input, unparsed, session, service, exchanges, state: State::Open }
    }

    /// Returns the session, to control the connection from elsewhere.
    pub fn session(&self) -> Shared {
        Arc::clone(&self.session)
    }

    /// Ends the connection with GOAWAY and this violation.
    ///
    /// # Errors
    /// The transport failed before GOAWAY was sent.
    pub async fn refuse(mut self, violation: Violation) -> Result<(), ConnectionError> {
        self.state = State::Ending(Err(lock(&self.session).terminate(violation)));
        match self.await {
            Err(ConnectionError::Violation(_)) => Ok(()),
            ended => ended,
        }
    }

    /// Reads and dispatches requests. Ready at the end of the stream.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        let mut read = mem::take(&mut self.unparsed);
        for _ in 0..READS_PER_TURN {
            if read > 0 {
                lock(&self.session).receive(&mut self.input, Instant::now)?;
                while let Some(received) = Session::next_request(&self.session) {
                    self.exchanges.push(Exchange::new(received, &mut self.service));
                }
            }
            if lock(&self.session).is_backlogged() {
                return Poll::Pending;
            }
            let due = READ_SIZE.saturating_sub(self.input.len() + 1);
            read = match ready!(self.input.poll_read(&mut self.io, due, context)) {
                // TLS ended without close_notify: HTTP/2 framing alone shows whether messages are complete.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if read == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        self.unparsed = read;
        // Yields: the requests received so far are served before more is read, and other connections get their turn.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Performs a turn of an open connection. Ready after the last turn.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<Turn, ConnectionError>> {
        loop {
            lock(&self.session).begin_turn();
            match self.poll_read(context) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(Turn::ClientClosed)),
                Poll::Ready(Err(ConnectionError::Violation(outcome))) => {
                    return Poll::Ready(Ok(Turn::Finished(Err(outcome))));
                }
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
                Poll::Pending => {}
            }
            while let Poll::Ready(Some(())) = self.exchanges.poll_next_unpin(context) {}
            let mut session = lock(&self.session);
            let was_backlogged = session.is_backlogged();
            let sent = session.poll_end_turn(&mut self.io, context)?;
            if sent.is_ready() && session.is_done() {
                return Poll::Ready(Ok(Turn::Finished(Ok(()))));
            }
            // Reading had stopped because of the send backlog, and nothing else would wake the task.
            if !was_backlogged || session.is_backlogged() {
                return Poll::Pending;
            }
        }
    }

    fn poll_flush_and_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.exchanges.clear();
        ready!(lock(&self.session).poll_end_turn(&mut self.io, context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    /// Ready when the client has closed its side, or after the linger time.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let State::Lingering(_, timer, received) = &mut self.state else { return Poll::Ready(()) };
            if *received > MAX_LINGER_BYTES || timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            self.input.clear();
            match ready!(self.input.poll_read(&mut self.io, READ_SIZE - 1, context)) {
                Ok(read) if read > 0 => *received += read,
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<I, S, F, B> Future for ServerConnection<I, S, F, B>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes, Error: ResetReason> + Unpin,
{
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        let this = self.get_mut();
        loop {
            this.state = match &this.state {
                State::Open => match ready!(this.poll_turn(context))? {
                    Turn::ClientClosed => {
                        lock(&this.session).close(CLIENT_GONE);
                        State::Ending(Ok(()))
                    }
                    Turn::Finished(outcome) => State::Ending(outcome),
                },
                State::Ending(outcome) => {
                    let outcome = *outcome;
                    // The client may have closed the connection already.
                    if ready!(this.poll_flush_and_close(context)).is_err() {
                        return Poll::Ready(Ok(outcome?));
                    }
                    State::Lingering(outcome, Box::pin(sleep(LINGER)), 0)
                }
                State::Lingering(outcome, ..) => {
                    let outcome = *outcome;
                    ready!(this.poll_linger(context));
                    return Poll::Ready(Ok(outcome?));
                }
            };
        }
    }
}

/// No field is structurally pinned.
impl<I, S, F, B> Unpin for ServerConnection<I, S, F, B> {}

impl<I, S, F, B> Drop for ServerConnection<I, S, F, B> {
    fn drop(&mut self) {
        // Streams still in use get an error.
        lock(&self.session).close(CLIENT_GONE);
    }
}

impl<I, S, F, B> fmt::Debug for ServerConnection<I, S, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("exchanges", &self.exchanges.len()).finish_non_exhaustive()
    }
}
