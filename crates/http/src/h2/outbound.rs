//! What drives the side of a connection that asks.

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

use super::{Lost, Session, Shared, lock};
use crate::h1::Inbox;

/// The most that is read at once, in bytes.
const PIECE: usize = 64 * 1024;
/// Reads of one turn.
const READS: usize = 4;

/// A connection on which calls are made, until it breaks or nothing more is to be done.
///
/// It is read however much waits to be sent: what its server says asks for little to be said, and a server that waits likewise
/// would wait for ever.
pub struct Outbound<I> {
    io: I,
    input: Inbox,
    /// Bytes that came and were not looked at.
    ahead: usize,
    session: Shared,
    /// The last word is to be sent.
    is_ending: bool,
}

impl<I> Outbound<I>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    /// On a connection on which nothing was said.
    pub fn new(io: I) -> Self {
        let session = Arc::new(Mutex::new(Session::asking(Instant::now())));
        Self { io, input: Inbox::default(), ahead: 0, session, is_ending: false }
    }

    /// What both sides have said, to say more.
    pub fn session(&self) -> Shared {
        Arc::clone(&self.session)
    }

    /// Reads what has come; ready when nothing comes any more.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Lost> {
        let mut read = mem::take(&mut self.ahead);
        if let Some(violation) = lock(&self.session).overrun() {
            return Poll::Ready(Lost::Violated(violation));
        }
        for _ in 0..READS {
            if read > 0
                && let Err(violation) = lock(&self.session).receive(&mut self.input, Instant::now)
            {
                return Poll::Ready(Lost::Violated(violation));
            }
            let due = PIECE.saturating_sub(self.input.len() + 1);
            read = match ready!(self.input.poll_read(&mut self.io, due, context)) {
                Ok(0) => return Poll::Ready(Lost::Broken(ErrorKind::UnexpectedEof)),
                Ok(read) => read,
                Err(error) => return Poll::Ready(Lost::Broken(error.kind())),
            };
        }
        self.ahead = read;
        // Whoever waits for what came goes on before more is read.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what there is to say; ready when all is said and done.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = lock(&self.session);
        ready!(session.poll_end_turn(&mut self.io, context))?;
        match self.is_ending || session.is_done() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl<I> Future for Outbound<I>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        lock(&this.session).begin_turn();
        if !this.is_ending
            && let Poll::Ready(lost) = this.poll_read(context)
        {
            lock(&this.session).gone(lost);
            if !lost.is_violation() {
                return Poll::Ready(());
            }
            this.is_ending = true;
        }
        match ready!(this.poll_send(context)) {
            Ok(()) => Pin::new(&mut this.io).poll_shutdown(context).map(|_| ()),
            Err(error) => {
                lock(&this.session).gone(Lost::Broken(error.kind()));
                Poll::Ready(())
            }
        }
    }
}

impl<I> Drop for Outbound<I> {
    fn drop(&mut self) {
        // Whoever waits for an answer has to know.
        lock(&self.session).gone(Lost::Broken(ErrorKind::TimedOut));
    }
}

impl<I> fmt::Debug for Outbound<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("session", &self.session).finish_non_exhaustive()
    }
}
