//! Sends responses.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::{Reason, Shared, body_sender::BodySender, lock, message, session::RequestRemainder};

/// Sends one response. If it is dropped early, the stream is reset.
#[derive(Debug)]
pub struct Responder {
    session: Shared,
    stream: u32,
}

/// The stream was reset, or its connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream was reset: {0}")]
pub struct StreamReset(pub Reason);

impl Responder {
    pub(super) fn new(session: Shared, stream: u32) -> Self {
        Self { session, stream }
    }

    /// Sends the headers, with END_STREAM if the response `ends`. Also sends informational responses.
    pub fn send_headers(&mut self, mut response: Response<()>, ends: bool) {
        message::normalize_response(response.status(), response.headers_mut());
        let (head, ()) = response.into_parts();
        lock(&self.session).send_headers(self.stream, &head, ends);
    }

    /// Sends as much data as flow control allows, with END_STREAM if the data `ends` the body. Ready when everything is
    /// sent.
    ///
    /// # Errors
    /// The stream was reset.
    pub fn poll_send_data(
        &mut self,
        data: &mut Bytes,
        ends: bool,
        context: &Context<'_>,
    ) -> Poll<Result<(), StreamReset>> {
        lock(&self.session).poll_send_data(self.stream, data, ends, context).map_err(StreamReset)
    }

    /// Sends a body. Ready when everything is sent or the stream was reset.
    ///
    /// # Errors
    /// The body failed.
    pub(super) fn poll_send_body<B>(
        &mut self,
        sender: &mut BodySender<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), B::Error>>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        sender.poll(&self.session, self.stream, context)
    }

    /// Ready when the stream is reset. Until then, every event of the stream wakes the task.
    pub fn poll_reset(&mut self, context: &Context<'_>) -> Poll<StreamReset> {
        lock(&self.session).poll_reset(self.stream, context).map(StreamReset)
    }

    /// Returns the state of the request, once its body is dropped.
    pub(super) fn poll_remainder(&mut self, context: &Context<'_>) -> Poll<RequestRemainder> {
        lock(&self.session).poll_remainder(self.stream, context)
    }

    /// Ready when the rest of the request has been discarded, or exceeds the limit.
    pub(super) fn poll_discarded(&mut self, context: &Context<'_>) -> Poll<()> {
        lock(&self.session).poll_discarded(self.stream, context)
    }

    /// Resets the stream.
    pub fn reset(&mut self, reason: Reason) {
        lock(&self.session).reset(self.stream, reason);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        lock(&self.session).drop_responder(self.stream);
    }
}
