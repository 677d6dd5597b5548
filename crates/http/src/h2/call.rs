//! One call on a connection.

use std::{
    fmt,
    pin::Pin,
    sync::MutexGuard,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::{AnswerBody, Lost, Reason, Session, Shared, lock, saying::Saying, session::Ask};
use crate::informational;

/// A call from its request to the head of its answer. Dropped early, it is given up, which the server is told.
#[derive(Debug)]
pub struct Call<B> {
    stream: Option<Stream>,
    saying: Option<Saying<B>>,
}

/// The answer, and the rest of the request where the server has answered before it heard all of it.
pub type Answered<B> = (Response<AnswerBody>, Option<Upload<B>>);

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered<E> {
    /// What became of the call.
    Lost(Lost),
    /// The body of the request broke off.
    Unsaid(E),
}

/// A stream that its caller needs.
pub(super) struct Stream {
    pub(super) session: Shared,
    pub(super) number: u32,
}

impl Stream {
    /// Nothing is left of it that anybody could need.
    pub(super) fn let_go(mut self) {
        self.number = NONE;
    }
}

/// The number of the connection itself.
const NONE: u32 = 0;

/// Says the rest of a request; done when all is said, or nobody wants it.
#[derive(Debug)]
pub struct Upload<B> {
    session: Shared,
    stream: u32,
    saying: Saying<B>,
}

impl<B> Call<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Begins a call where `locked`, which is of `session`, has a place for it. Unless it `ends` with its head, it has to be given
    /// its [body](Self::with).
    pub fn begin(session: &Shared, mut locked: MutexGuard<'_, Session>, ask: &Ask<'_>, ends: bool) -> Self {
        let number = locked.ask(ask, ends);
        drop(locked);
        Self { stream: Some(Stream { session: Shared::clone(session), number }), saying: None }
    }

    /// Says this after its head.
    #[must_use]
    pub fn with(self, body: B) -> Self {
        Self { saying: Some(Saying::new(body)), ..self }
    }
}

impl<B> Call<B> {
    /// How many pieces were taken of the request's body, and how many bytes of the last one wait for room; `None` once all is said.
    pub fn sending(&self) -> Option<(u64, usize)> {
        self.saying.as_ref().map(Saying::sending)
    }
}

impl<B> Upload<B> {
    /// How many pieces were taken of the request's body, and how many bytes of the last one wait for room.
    pub fn sending(&self) -> (u64, usize) {
        self.saying.sending()
    }
}

impl<B> Future for Call<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Output = Result<Answered<B>, Unanswered<B::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(stream) = &this.stream else {
            return Poll::Ready(Err(Unanswered::Lost(Lost::Reset(Reason::CANCEL))));
        };
        let (session, number) = (&stream.session, stream.number);
        // Before what is to be said: who has answered need not hear that a body broke off.
        let mut before = Vec::new();
        let answered = lock(session).poll_answer(number, &mut before, context);
        before.into_iter().for_each(informational::came);
        if answered.is_pending()
            && let Some(saying) = &mut this.saying
            && let Poll::Ready(said) = saying.poll(session, number, context)
        {
            said.map_err(Unanswered::Unsaid)?;
            this.saying = None;
        }
        let (answer, early) = ready!(answered).map_err(Unanswered::Lost)?;
        let upload = this.saying.take().map(|saying| Upload {
            session: Shared::clone(session),
            stream: number,
            saying,
        });
        let body = AnswerBody::new(early, this.stream.take());
        Poll::Ready(Ok((answer.map(|()| body), upload)))
    }
}

impl<B> Future for Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { session, stream, saying } = self.get_mut();
        if lock(session).poll_reset(*stream, context).is_ready() {
            return Poll::Ready(());
        }
        if ready!(saying.poll(session, *stream, context)).is_err() {
            lock(session).reset(*stream, Reason::CANCEL);
        }
        Poll::Ready(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.number != NONE {
            lock(&self.session).abandon(self.number);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.number).finish()
    }
}
