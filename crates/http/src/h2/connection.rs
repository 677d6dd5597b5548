//! What drives the side of a connection that is asked.

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
    Lost, PREFACE, Reason, RequestBody, ResetReason, Session, Shared, Violation, exchange::Exchange, lock,
};
use crate::h1::Inbox;

/// The most that is read at once, in bytes.
const PIECE: usize = 64 * 1024;
/// Reads of one turn.
const READS: usize = 4;
/// How long, and how much, a connection is read after its last word: closed at once, the system would reset it, and take
/// away what was not read yet.
const LINGER: Duration = Duration::from_secs(1);
const MOST_LINGERED: usize = 1 << 20;
/// What becomes of streams whose program is gone.
const LEFT: Lost = Lost::Reset(Reason::CANCEL);

/// A connection on which requests are answered, until its program has ended it or nothing more is to be done.
pub struct Connection<I, S, F, B> {
    io: I,
    input: Inbox,
    /// Bytes that came and were not looked at.
    ahead: usize,
    session: Shared,
    service: S,
    exchanges: FuturesUnordered<Exchange<F, B>>,
    state: State,
}

/// How a connection ended that did not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// It broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// Its program did what the protocol forbids.
    #[error(transparent)]
    Violation(#[from] Violation),
}

type Why = Result<(), Violation>;

enum State {
    Open,
    /// The last word is to be sent.
    Ending(Why),
    /// It is sent; so much came since.
    Lingering(Why, Pin<Box<Sleep>>, usize),
}

/// What a turn comes to.
enum Turn {
    /// The program has ended its side, and is sent what was said by then.
    Left,
    Ends(Why),
}

impl<I, S, F, B> Connection<I, S, F, B>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes, Error: ResetReason> + Unpin,
{
    /// On a connection of which this has been read, which begins with [`PREFACE`].
    pub fn new(io: I, mut read: BytesMut, service: S) -> Self {
        read.advance(PREFACE.len().min(read.len()));
        let session = Arc::new(Mutex::new(Session::asked(Instant::now())));
        let (ahead, input, exchanges) = (read.len(), Inbox::from(read), FuturesUnordered::new());
        Self { io, input, ahead, session, service, exchanges, state: State::Open }
    }

    /// What both sides have said, to say more.
    pub fn session(&self) -> Shared {
        Arc::clone(&self.session)
    }

    /// Ends the connection, of which the program is told why.
    ///
    /// # Errors
    /// Where it broke before.
    pub async fn refuse(mut self, violation: Violation) -> Result<(), End> {
        self.state = State::Ending(Err(lock(&self.session).end(violation)));
        match self.await {
            Err(End::Violation(_)) => Ok(()),
            ended => ended,
        }
    }

    /// Reads what has come, and has it answered; ready when nothing comes any more.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        let mut read = mem::take(&mut self.ahead);
        for _ in 0..READS {
            if read > 0 {
                lock(&self.session).receive(&mut self.input, Instant::now)?;
                while let Some(came) = Session::next(&self.session) {
                    self.exchanges.push(Exchange::new(came, &mut self.service));
                }
            }
            if lock(&self.session).is_crowded() {
                return Poll::Pending;
            }
            let due = PIECE.saturating_sub(self.input.len() + 1);
            read = match ready!(self.input.poll_read(&mut self.io, due, context)) {
                // TLS without a farewell: whether what was said is whole, HTTP/2 says itself.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if read == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        self.ahead = read;
        // Those that came are answered before others are read, and other connections have their turn.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// A turn of an open connection; ready when it was the last.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<Turn, End>> {
        loop {
            lock(&self.session).begin_turn();
            match self.poll_read(context) {
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(Turn::Left)),
                Poll::Ready(Err(End::Violation(why))) => return Poll::Ready(Ok(Turn::Ends(Err(why)))),
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
                Poll::Pending => {}
            }
            while let Poll::Ready(Some(())) = self.exchanges.poll_next_unpin(context) {}
            let mut session = lock(&self.session);
            let was_crowded = session.is_crowded();
            let sent = session.poll_end_turn(&mut self.io, context)?;
            if sent.is_ready() && session.is_done() {
                return Poll::Ready(Ok(Turn::Ends(Ok(()))));
            }
            // Nobody wakes who did not read for want of room.
            if !was_crowded || session.is_crowded() {
                return Poll::Pending;
            }
        }
    }

    fn poll_last_word(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.exchanges.clear();
        ready!(lock(&self.session).poll_end_turn(&mut self.io, context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    /// Ready when the program has heard the last word, or had the time for it.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let State::Lingering(_, patience, came) = &mut self.state else { return Poll::Ready(()) };
            if *came > MOST_LINGERED || patience.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            self.input.clear();
            match ready!(self.input.poll_read(&mut self.io, PIECE - 1, context)) {
                Ok(read) if read > 0 => *came += read,
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<I, S, F, B> Future for Connection<I, S, F, B>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: FnMut(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Unpin,
    B: Body<Data = Bytes, Error: ResetReason> + Unpin,
{
    type Output = Result<(), End>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        let this = self.get_mut();
        loop {
            this.state = match &this.state {
                State::Open => match ready!(this.poll_turn(context))? {
                    Turn::Left => {
                        lock(&this.session).gone(LEFT);
                        State::Ending(Ok(()))
                    }
                    Turn::Ends(why) => State::Ending(why),
                },
                State::Ending(why) => {
                    let why = *why;
                    // Whoever takes it no more need not.
                    if ready!(this.poll_last_word(context)).is_err() {
                        return Poll::Ready(Ok(why?));
                    }
                    State::Lingering(why, Box::pin(sleep(LINGER)), 0)
                }
                State::Lingering(why, ..) => {
                    let why = *why;
                    ready!(this.poll_linger(context));
                    return Poll::Ready(Ok(why?));
                }
            };
        }
    }
}

/// Nothing of it is pinned where it lies.
impl<I, S, F, B> Unpin for Connection<I, S, F, B> {}

impl<I, S, F, B> Drop for Connection<I, S, F, B> {
    fn drop(&mut self) {
        // Whoever still reads or says something of it has to know.
        lock(&self.session).gone(LEFT);
    }
}

impl<I, S, F, B> fmt::Debug for Connection<I, S, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("exchanges", &self.exchanges.len()).finish_non_exhaustive()
    }
}
