//! The body of an answer.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

use super::{Lost, call::Stream, lock, session::Early};

/// The body of an answer, as far as it came with its head, or on its way. Dropped early, the server is told that nobody wants the
/// rest.
#[derive(Debug)]
pub struct AnswerBody {
    data: Option<Bytes>,
    trailers: Option<Box<HeaderMap>>,
    coming: Option<Stream>,
}

impl AnswerBody {
    pub(super) fn new(early: Early, stream: Option<Stream>) -> Self {
        match early {
            Early::Whole(data, trailers) => {
                if let Some(stream) = stream {
                    stream.let_go();
                }
                Self { data, trailers, coming: None }
            }
            Early::Coming => Self { data: None, trailers: None, coming: stream },
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Lost;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Lost>>> {
        let Self { data, trailers, coming } = self.get_mut();
        let Some(stream) = coming else {
            let frame = data
                .take()
                .map(Frame::data)
                .or_else(|| trailers.take().map(|trailers| Frame::trailers(*trailers)));
            return Poll::Ready(frame.map(Ok));
        };
        let piece = ready!(lock(&stream.session).poll_piece(stream.number, context));
        Poll::Ready(piece.map(|piece| piece.map(Frame::from)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.coming {
            None => self.data.is_none() && self.trailers.is_none(),
            Some(stream) => lock(&stream.session).is_read_out(stream.number),
        }
    }
}
