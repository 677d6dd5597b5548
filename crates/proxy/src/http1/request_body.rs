//! The body of a request, on its way from the program to whoever answers.

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
use fairmesh_client::BoxError;
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
    /// It came with its head; `None` where there is none, or it was read.
    Buffered(Option<Bytes>),
    /// It is read from the connection as its reader asks for it.
    Streamed(StreamedBody<R>),
}

/// What is to come of a body. It holds what reads the connection, and gives it back at its end or when it is dropped: no
/// lock is needed, since at any time one of the two reads.
#[derive(Debug)]
pub(crate) struct StreamedBody<R> {
    reader: Option<(BodyReader<R>, Sender<BodyReader<R>>)>,
    /// Set when the body is first asked for, where the program waits for that.
    continue_wanted: Option<Arc<AtomicBool>>,
}

/// What reads a connection, in the middle of a body or at its end.
#[derive(Debug)]
pub(crate) struct BodyReader<R> {
    pub(crate) read_side: ReadSide<R>,
    pub(crate) decoder: Decoder,
    /// The body broke off, or was no body: what follows is nothing that can be told.
    pub(crate) failed: bool,
}

impl<R: AsyncRead + Unpin> IncomingBody<R> {
    /// A body that is to be read, and who gets back what reads it.
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
                let cut = "the program ended the connection in the middle of its request";
                return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, cut).into())));
            }
        }
    }
}

impl<R> StreamedBody<R> {
    fn return_reader(&mut self) {
        if let Some((reader, sender)) = self.reader.take() {
            // Nobody takes it where the connection has ended.
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
