//! Bodies on their way out.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Body;

use super::{Shared, lock, message};

/// A body that is said as the other side takes it.
#[derive(Debug)]
pub(super) struct Saying<B> {
    body: B,
    /// What was not said of it.
    piece: Bytes,
    /// Nothing follows.
    is_last: bool,
    /// How many pieces were taken of the body.
    pieces: u64,
}

impl<B> Saying<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn new(body: B) -> Self {
        Self { body, piece: Bytes::new(), is_last: false, pieces: 0 }
    }

    /// Says on this stream what there is room for; ready when all is said, or nobody wants it any more.
    ///
    /// # Errors
    /// Where the body breaks off.
    pub(super) fn poll(
        &mut self,
        session: &Shared,
        stream: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), B::Error>> {
        let Self { body, piece, is_last, pieces } = self;
        loop {
            if !piece.is_empty() || *is_last {
                let said = ready!(lock(session).poll_say(stream, piece, *is_last, context));
                if *is_last || said.is_err() {
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
                        lock(session).say_trailers(stream, &trailers);
                        return Poll::Ready(Ok(()));
                    }
                }
                None => *is_last = true,
            }
        }
    }
}

impl<B> Saying<B> {
    /// How many pieces were taken of the body, and how many bytes of the last one are not said.
    pub(super) fn sending(&self) -> (u64, usize) {
        (self.pieces, self.piece.len())
    }
}
