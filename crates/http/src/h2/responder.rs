//! The answer to a request.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::{Reason, Shared, lock, message, saying::Saying, session::Rest};

/// Says one answer. Dropped early, the stream is reset.
#[derive(Debug)]
pub struct Responder {
    session: Shared,
    stream: u32,
}

/// The stream was reset, or its connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream has ended: {0}")]
pub struct Gone(pub Reason);

impl Responder {
    pub(super) fn new(session: Shared, stream: u32) -> Self {
        Self { session, stream }
    }

    /// Says the head, and nothing else if it `ends`; before that, any informational responses.
    pub fn head(&mut self, mut answer: Response<()>, ends: bool) {
        message::keep_allowed(answer.headers_mut());
        let (head, ()) = answer.into_parts();
        lock(&self.session).say_head(self.stream, &head, ends);
    }

    /// Says as much of this as there is room for, and that nothing follows if it `ends`; ready when all of it is said.
    ///
    /// # Errors
    /// Where the stream was reset.
    pub fn poll_data(
        &mut self,
        data: &mut Bytes,
        ends: bool,
        context: &Context<'_>,
    ) -> Poll<Result<(), Gone>> {
        lock(&self.session).poll_say(self.stream, data, ends, context).map_err(Gone)
    }

    /// Says a body; ready when all of it is said, or the stream was reset.
    ///
    /// # Errors
    /// Where the body breaks off.
    pub(super) fn poll_say<B>(
        &mut self,
        saying: &mut Saying<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), B::Error>>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        saying.poll(&self.session, self.stream, context)
    }

    /// Ready when the stream is reset; until then whoever asks is woken by whatever happens to it.
    pub fn poll_gone(&mut self, context: &Context<'_>) -> Poll<Gone> {
        lock(&self.session).poll_reset(self.stream, context).map(Gone)
    }

    /// What is left of the request, once nobody reads it.
    pub(super) fn poll_rest(&mut self, context: &Context<'_>) -> Poll<Rest> {
        lock(&self.session).poll_rest(self.stream, context)
    }

    /// Ready when the rest that nobody reads has come, or is too long to be waited for.
    pub(super) fn poll_wasted(&mut self, context: &Context<'_>) -> Poll<()> {
        lock(&self.session).poll_wasted(self.stream, context)
    }

    /// Ends the stream early.
    pub fn reset(&mut self, reason: Reason) {
        lock(&self.session).reset(self.stream, reason);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        lock(&self.session).unanswered(self.stream);
    }
}
