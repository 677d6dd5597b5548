//! Response bodies.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

use super::{StreamError, client_call::Stream, lock, session::EarlyBody};

/// The body of a response: complete if it arrived with the headers, otherwise streamed. If it is dropped early, the
/// stream is reset.
#[derive(Debug)]
pub struct ResponseBody {
    data: Option<Bytes>,
    trailers: Option<Box<HeaderMap>>,
    stream: Option<Stream>,
}

impl ResponseBody {
    pub(super) fn new(early: EarlyBody, stream: Option<Stream>) -> Self {
        match early {
            EarlyBody::Complete(data, trailers) => {
                if let Some(stream) = stream {
                    stream.detach();
                }
                Self { data, trailers, stream: None }
            }
            EarlyBody::Streaming => Self { data: None, trailers: None, stream },
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        let Self { data, trailers, stream } = self.get_mut();
        let Some(stream) = stream else {
            let frame = data
                .take()
                .map(Frame::data)
                .or_else(|| trailers.take().map(|trailers| Frame::trailers(*trailers)));
            return Poll::Ready(frame.map(Ok));
        };
        let piece = ready!(lock(&stream.session).poll_piece(stream.id, context));
        Poll::Ready(piece.map(|piece| piece.map(Frame::from)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.stream {
            None => self.data.is_none() && self.trailers.is_none(),
            Some(stream) => lock(&stream.session).is_fully_read(stream.id),
        }
    }
}
