//! The body of a request.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{Lost, Shared, lock};

/// The body of a request over HTTP/2, whole or on its way.
///
/// It is at its end from the beginning only where the headers had END_STREAM. One that ends with an empty DATA frame says so when it
/// is read: gRPC servers take END_STREAM in headers for no half-close, so that it must not be forwarded as that.
///
/// Dropped early, it is not cut short at once: its program may take the answer for lost otherwise, whatever RFC 9113 8.1 says
/// of a reset without an error; curl is one, and may do so for three bytes.
#[derive(Debug)]
pub struct RequestBody(State);

#[derive(Debug)]
enum State {
    /// The headers had END_STREAM.
    Absent,
    /// The payload of all DATA frames, maybe of no bytes.
    Whole(Bytes),
    Coming(Coming),
}

/// What has a stream read.
#[derive(Debug)]
struct Coming {
    session: Shared,
    stream: u32,
    /// Before that it is not at its end, whatever has come.
    was_polled: bool,
}

/// The program has taken its request back, or is gone.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request was taken back: {0}")]
pub struct TakenBack(Lost);

impl RequestBody {
    pub(super) fn absent() -> Self {
        Self(State::Absent)
    }

    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(State::Whole(bytes))
    }

    pub(super) fn coming(session: Shared, stream: u32) -> Self {
        Self(State::Coming(Coming { session, stream, was_polled: false }))
    }

    /// How much was taken of the stream with it.
    pub(super) fn taken(&self) -> Option<u32> {
        match &self.0 {
            State::Absent => Some(0),
            State::Whole(bytes) => Some(bytes.len() as u32),
            State::Coming(_) => None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = TakenBack;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TakenBack>>> {
        let Coming { session, stream, was_polled } = match &mut self.0 {
            State::Absent => return Poll::Ready(None),
            State::Whole(bytes) => {
                let data = Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty());
                self.0 = State::Absent;
                return Poll::Ready(data.map(|data| Ok(Frame::data(data))));
            }
            State::Coming(coming) => coming,
        };
        *was_polled = true;
        let piece = ready!(lock(session).poll_piece(*stream, context));
        Poll::Ready(piece.map(|piece| piece.map(Frame::from).map_err(TakenBack)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Absent => true,
            State::Whole(_) => false,
            State::Coming(Coming { session, stream, was_polled }) => {
                *was_polled && lock(session).left(*stream).0
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Absent => SizeHint::with_exact(0),
            State::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            State::Coming(Coming { session, stream, .. }) => {
                lock(session).left(*stream).1.map_or_else(SizeHint::new, SizeHint::with_exact)
            }
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        lock(&self.session).unread(self.stream);
    }
}
