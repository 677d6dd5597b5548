//! Sends a body as flow control allows.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Body;

use super::{Shared, lock, message};

/// A body that is being sent as flow control allows.
#[derive(Debug)]
pub(super) struct BodySender<B> {
    body: B,
    /// Unsent rest of the current piece.
    piece: Bytes,
    /// Whether the current piece is the last.
    is_last: bool,
    /// Number of pieces taken from the body.
    pieces: u64,
}

impl<B> BodySender<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn new(body: B) -> Self {
        Self { body, piece: Bytes::new(), is_last: false, pieces: 0 }
    }

    /// Sends as much as flow control allows. Ready when everything is sent or the stream was reset.
    ///
    /// # Errors
    /// The body failed.
    pub(super) fn poll(
        &mut self,
        session: &Shared,
        stream: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), B::Error>> {
        let Self { body, piece, is_last, pieces } = self;
        loop {
            if !piece.is_empty() || *is_last {
                let sent = ready!(lock(session).poll_send_data(stream, piece, *is_last, context));
                if *is_last || sent.is_err() {
                    return Poll::Ready(Ok(()));
                }
            }
            match ready!(Pin::new(&mut *body).poll_frame(context))
                .transpose()?
                .map(http_body::Frame::into_data)
            {
                Some(Ok(data)) => {
                    *pieces += 1;
                    *piece = data;
                    *is_last = body.is_end_stream();
                }
                Some(Err(frame)) => {
                    if let Ok(mut trailers) = frame.into_trailers() {
                        message::keep_allowed(&mut trailers);
                        lock(session).send_trailers(stream, &trailers);
                        return Poll::Ready(Ok(()));
                    }
                }
                None => *is_last = true,
            }
        }
    }
}

impl<B> BodySender<B> {
    /// Returns the number of pieces taken from the body, and the unsent bytes of the last piece.
    pub(super) fn sending(&self) -> (u64, usize) {
        (self.pieces, self.piece.len())
    }
}
