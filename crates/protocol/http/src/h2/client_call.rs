//! Calls on a client connection.

use std::{
    fmt,
    pin::Pin,
    sync::MutexGuard,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::{
    Reason, ResponseBody, Session, Shared, StreamError, body_sender::BodySender, lock, session::RequestHead,
};
use crate::informational;

/// A call until the headers of its response arrive. Dropping it cancels the call with RST_STREAM.
#[derive(Debug)]
pub struct Call<B> {
    stream: Option<Stream>,
    sender: Option<BodySender<B>>,
}

/// The response, with the rest of the upload if the server responded before the end of the request.
pub type CallResponse<B> = (Response<ResponseBody>, Option<Upload<B>>);

/// Why a call has no response.
#[derive(Debug)]
pub enum CallError<E> {
    /// The stream failed.
    Stream(StreamError),
    /// The body of the request failed.
    Body(E),
}

/// Handle to the stream of a call.
pub(super) struct Stream {
    pub(super) session: Shared,
    pub(super) id: u32,
}

impl Stream {
    /// Releases a stream that is complete.
    pub(super) fn detach(mut self) {
        self.id = CONNECTION;
    }
}

/// Stream identifier of the connection itself.
const CONNECTION: u32 = 0;

/// Sends the rest of a request. Ready when everything is sent or the stream was reset.
#[derive(Debug)]
pub struct Upload<B> {
    session: Shared,
    stream: u32,
    sender: BodySender<B>,
}

impl<B> Call<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Begins a call. `locked` is the lock of `session`, which must have capacity. Unless the request `ends` with its
    /// headers, a [body](Self::with) must be added.
    pub fn begin(
        session: &Shared,
        mut locked: MutexGuard<'_, Session>,
        head: &RequestHead<'_>,
        ends: bool,
    ) -> Self {
        let id = locked.open_stream(head, ends);
        drop(locked);
        Self { stream: Some(Stream { session: Shared::clone(session), id }), sender: None }
    }

    /// Sets the body to send after the headers.
    #[must_use]
    pub fn with(self, body: B) -> Self {
        Self { sender: Some(BodySender::new(body)), ..self }
    }
}

impl<B> Call<B> {
    /// Returns the number of pieces taken from the request body so far, and the bytes of the last piece that are
    /// waiting for the send window. `None` once everything is sent.
    pub fn sending(&self) -> Option<(u64, usize)> {
        self.sender.as_ref().map(BodySender::sending)
    }
}

impl<B> Upload<B> {
    /// Returns the number of pieces taken from the request body so far, and the bytes of the last piece that are
    /// waiting for the send window.
    pub fn sending(&self) -> (u64, usize) {
        self.sender.sending()
    }
}

impl<B> Future for Call<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Output = Result<CallResponse<B>, CallError<B::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(stream) = &this.stream else {
            return Poll::Ready(Err(CallError::Stream(StreamError::Reset(Reason::CANCEL))));
        };
        let (session, id) = (&stream.session, stream.id);
        // The response is polled before the body is sent: once there is a response, a failure of the request body does
        // not matter.
        let mut informational_responses = Vec::new();
        let response = lock(session).poll_response(id, &mut informational_responses, context);
        informational_responses.into_iter().for_each(informational::deliver);
        if response.is_pending()
            && let Some(sender) = &mut this.sender
            && let Poll::Ready(sent) = sender.poll(session, id, context)
        {
            sent.map_err(CallError::Body)?;
            this.sender = None;
        }
        let (response, early) = ready!(response).map_err(CallError::Stream)?;
        let upload =
            this.sender.take().map(|sender| Upload { session: Shared::clone(session), stream: id, sender });
        let body = ResponseBody::new(early, this.stream.take());
        Poll::Ready(Ok((response.map(|()| body), upload)))
    }
}

impl<B> Future for Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { session, stream, sender } = self.get_mut();
        if lock(session).poll_reset(*stream, context).is_ready() {
            return Poll::Ready(());
        }
        if ready!(sender.poll(session, *stream, context)).is_err() {
            lock(session).reset(*stream, Reason::CANCEL);
        }
        Poll::Ready(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.id != CONNECTION {
            lock(&self.session).abandon(self.id);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.id).finish()
    }
}
