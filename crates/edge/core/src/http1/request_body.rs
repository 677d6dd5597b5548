//! Bodies of requests.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_calls::BoxError;
use fairmesh_http::h1::{Decoder, Piece};
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::AsyncRead,
    sync::oneshot::{self, Receiver, Sender},
};

use crate::http1::read_side::ReadSide;

/// The body of a request.
#[derive(Debug)]
pub(crate) enum IncomingBody<R> {
    /// Read together with the headers. `None` if there is no body or it was consumed.
    Buffered(Option<Bytes>),
    /// Read from the connection on demand.
    Streamed(StreamedBody<R>),
}

/// The unread rest of a body. It owns the read half, and returns it at the end of the body or when dropped. Since
/// only one side reads at a time, no lock is needed.
#[derive(Debug)]
pub(crate) struct StreamedBody<R> {
    reader: Option<(BodyReader<R>, Sender<BodyReader<R>>)>,
    /// Flag to set when the body is first polled, if the client waits for `100 Continue`.
    continue_wanted: Option<Arc<AtomicBool>>,
}

/// The read half of a connection, within or at the end of a body.
#[derive(Debug)]
pub(crate) struct BodyReader<R> {
    pub(crate) read_side: ReadSide<R>,
    pub(crate) decoder: Decoder,
    /// The body ended early or was malformed, so that later bytes cannot be delimited.
    pub(crate) failed: bool,
}

impl<R: AsyncRead + Unpin> IncomingBody<R> {
    /// A streamed body, and the receiver that gets the read half back.
    pub(crate) fn streamed(
        reader: BodyReader<R>,
        continue_wanted: Option<Arc<AtomicBool>>,
    ) -> (Self, Receiver<BodyReader<R>>) {
        let (sender, returned) = oneshot::channel();
        (Self::Streamed(StreamedBody { reader: Some((reader, sender)), continue_wanted }), returned)
    }
}

impl<R: AsyncRead + Unpin> StreamedBody<R> {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(continue_wanted) = self.continue_wanted.take() {
            continue_wanted.store(true, Relaxed);
        }
        let Some((reader, _)) = &mut self.reader else { return Poll::Ready(None) };
        let frame = ready!(reader.poll_frame(context));
        reader.failed = matches!(frame, Some(Err(_)));
        if reader.failed || reader.decoder.is_done() {
            self.return_reader();
        }
        Poll::Ready(frame)
    }

    fn left(&self) -> Option<u64> {
        self.reader.as_ref().map_or(Some(0), |(reader, _)| reader.decoder.left())
    }
}

impl<R: AsyncRead + Unpin> BodyReader<R> {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { read_side, decoder, .. } = self;
        loop {
            match decoder.decode(&mut read_side.input)? {
                Some(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Piece::Trailers(trailers)) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                None if decoder.is_done() => return Poll::Ready(None),
                None => {}
            }
            let due = usize::try_from(decoder.due()).unwrap_or(usize::MAX);
            if ready!(read_side.poll_read(due, context))? == 0 {
                let cut = "the client closed the connection in the middle of its request";
                return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, cut).into())));
            }
        }
    }
}

impl<R> StreamedBody<R> {
    fn return_reader(&mut self) {
        if let Some((reader, sender)) = self.reader.take() {
            // The receiver is gone if the connection has ended.
            let _ = sender.send(reader);
        }
    }
}

impl<R> Drop for StreamedBody<R> {
    fn drop(&mut self) {
        self.return_reader();
    }
}

impl<R: AsyncRead + Unpin> Body for IncomingBody<R> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Buffered(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Streamed(body) => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Buffered(body) => body.is_none(),
            Self::Streamed(body) => body.reader.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Buffered(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Streamed(body) => body.left().map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}
