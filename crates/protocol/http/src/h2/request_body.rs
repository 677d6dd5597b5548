//! Request bodies.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{Shared, StreamError, lock};

/// The body of an HTTP/2 request, complete or streamed.
///
/// `is_end_stream` is true from the beginning only if the headers had END_STREAM. A body that ends with an empty DATA
/// frame is at its end only once it is read: gRPC servers do not accept END_STREAM in headers as a half-close, so it
/// must not be forwarded in that form.
///
/// If the body is dropped early, the stream is not reset at once. Some clients would then discard the response, even
/// though RFC 9113 8.1 requires them to keep it after a reset with NO_ERROR; curl may discard it even if only three
/// bytes are unsent.
#[derive(Debug)]
pub struct RequestBody(State);

#[derive(Debug)]
enum State {
    /// The headers had END_STREAM.
    Absent,
    /// The payload of all DATA frames; may be empty.
    Complete(Bytes),
    Streaming(Streaming),
}

/// Reads the body from its stream.
#[derive(Debug)]
struct Streaming {
    session: Shared,
    stream: u32,
    /// Before the first poll the body is never at its end, whatever was received.
    was_polled: bool,
}

/// The client cancelled the request or closed the connection.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client cancelled the request: {0}")]
pub struct RequestCancelled(StreamError);

impl RequestBody {
    pub(super) fn absent() -> Self {
        Self(State::Absent)
    }

    pub(super) fn complete(bytes: Bytes) -> Self {
        Self(State::Complete(bytes))
    }

    pub(super) fn streaming(session: Shared, stream: u32) -> Self {
        Self(State::Streaming(Streaming { session, stream, was_polled: false }))
    }

    /// Number of bytes that were taken from the stream with a complete body; `None` for a streamed body.
    pub(super) fn taken(&self) -> Option<u32> {
        match &self.0 {
            State::Absent => Some(0),
            State::Complete(bytes) => Some(bytes.len() as u32),
            State::Streaming(_) => None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestCancelled;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestCancelled>>> {
        let Streaming { session, stream, was_polled } = match &mut self.0 {
            State::Absent => return Poll::Ready(None),
            State::Complete(bytes) => {
                let data = Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty());
                self.0 = State::Absent;
                return Poll::Ready(data.map(|data| Ok(Frame::data(data))));
            }
            State::Streaming(streaming) => streaming,
        };
        *was_polled = true;
        let piece = ready!(lock(session).poll_piece(*stream, context));
        Poll::Ready(piece.map(|piece| piece.map(Frame::from).map_err(RequestCancelled)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Absent => true,
            State::Complete(_) => false,
            State::Streaming(Streaming { session, stream, was_polled }) => {
                *was_polled && lock(session).remaining_body(*stream).0
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Absent => SizeHint::with_exact(0),
            State::Complete(bytes) => SizeHint::with_exact(bytes.len() as u64),
            State::Streaming(Streaming { session, stream, .. }) => {
                lock(session).remaining_body(*stream).1.map_or_else(SizeHint::new, SizeHint::with_exact)
            }
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        lock(&self.session).drop_reader(self.stream);
    }
}
