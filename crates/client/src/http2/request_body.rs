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
/// Dropped early, it is not cut short at once: its program may take the answer for lost otherwise, whatever RFC 9113 8.1 says
/// of a reset without an error; curl is one, and may do so for three bytes.
#[derive(Debug)]
pub struct RequestBody(State);

#[derive(Debug)]
enum State {
    Whole(Bytes),
    Coming(Coming),
}

/// What has a stream read.
#[derive(Debug)]
struct Coming {
    session: Shared,
    stream: u32,
}

/// The program has taken its request back, or is gone.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request was taken back: {0}")]
pub struct TakenBack(Lost);

impl RequestBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(State::Whole(bytes))
    }

    pub(super) fn coming(session: Shared, stream: u32) -> Self {
        Self(State::Coming(Coming { session, stream }))
    }

    /// How much was taken of the stream with it.
    pub(super) fn taken(&self) -> Option<u32> {
        match &self.0 {
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
        let Coming { session, stream } = match &mut self.0 {
            State::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            State::Whole(bytes) => return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            State::Coming(coming) => coming,
        };
        let piece = ready!(lock(session).poll_piece(*stream, context));
        Poll::Ready(piece.map(|piece| piece.map(Frame::from).map_err(TakenBack)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::Whole(bytes) => bytes.is_empty(),
            State::Coming(Coming { session, stream }) => lock(session).left(*stream).0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            State::Coming(Coming { session, stream }) => {
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
