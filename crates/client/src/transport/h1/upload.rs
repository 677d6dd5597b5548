use std::{
    future::poll_fn,
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use http_body::Body as _;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, WriteHalf};

use super::Outgoing;
use crate::{BoxError, http1::Encoder};

/// A request that is being sent.
pub(super) struct Upload {
    pub(super) body: Outgoing,
    pub(super) encoder: Encoder,
}

/// What ended it.
pub(super) enum UploadError {
    /// The caller's body.
    Body(BoxError),
    /// The server takes no more of it.
    Refused,
}

/// What is encoded and not sent: some text, a piece of the body that is not copied, and what goes after that.
#[derive(Default)]
pub(super) struct Outbox {
    text: Vec<u8>,
    /// How much of the text is sent.
    sent: usize,
    chunk: Bytes,
    tail: &'static [u8],
}

impl Upload {
    /// Sends what can be sent; ready when that was all.
    pub(super) fn poll<W>(
        &mut self,
        output: &mut Outbox,
        io: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>>
    where
        W: AsyncWrite + Unpin,
    {
        loop {
            ready!(output.poll_flush(io, context)).map_err(|_| UploadError::Refused)?;
            if self.encoder.is_done() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_encode(output, context)).map_err(UploadError::Body)?;
        }
    }

    /// Encodes what the body has next.
    fn poll_encode(&mut self, output: &mut Outbox, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()?;
        match frame.map(http_body::Frame::into_data) {
            Some(Ok(chunk)) if chunk.is_empty() => {}
            Some(Ok(chunk)) => {
                let last = self.body.is_end_stream();
                let tail = self.encoder.data(chunk.len(), last, output.clear())?;
                output.begun(Some(chunk), tail, 0);
            }
            Some(Err(frame)) => {
                self.encoder.end(&frame.into_trailers().unwrap_or_default(), output.clear())?;
            }
            None => self.encoder.end(&HeaderMap::new(), output.clear())?,
        }
        Poll::Ready(Ok(()))
    }

    /// Sends all of it. A request that cannot be ended is cut off, so that the server does not take it for whole.
    pub(super) async fn finish<I>(mut self, mut output: Outbox, mut io: WriteHalf<I>)
    where
        I: AsyncWrite,
    {
        let sent = poll_fn(|context| self.poll(&mut output, &mut io, context)).await;
        if sent.is_err() {
            // The reader of the answer sees what becomes of it.
            let _ = io.shutdown().await;
        }
    }
}

impl Outbox {
    /// The text of the next thing to send, empty. Everything before must be sent.
    pub(super) fn clear(&mut self) -> &mut Vec<u8> {
        self.text.clear();
        self.sent = 0;
        &mut self.text
    }

    /// The text so far.
    pub(super) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Sends as much of the text, a chunk and its tail as goes in one write: all of it, nearly always. They are not taken
    /// over, since they are the caller's as long as nothing is sent.
    pub(super) fn poll_begin<W>(
        &self,
        io: &mut W,
        chunk: &[u8],
        tail: &'static [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        W: AsyncWrite + Unpin,
    {
        write([&self.text, chunk, tail], io, context)
    }

    /// Takes over what [`poll_begin`](Self::poll_begin) began to send.
    pub(super) fn begun(&mut self, chunk: Option<Bytes>, tail: &'static [u8], written: usize) {
        self.chunk = chunk.unwrap_or_default();
        self.tail = tail;
        self.advance(written);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.text.len() && self.chunk.is_empty() && self.tail.is_empty()
    }

    /// Gives back memory beyond so many bytes.
    pub(super) fn shrink(&mut self, most: usize) {
        if self.text.capacity() > most {
            self.text = Vec::new();
            self.sent = 0;
        }
    }

    fn poll_flush<W>(&mut self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = ready!(write([&self.text[self.sent..], &self.chunk, self.tail], io, context))?;
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        let text = written.min(self.text.len() - self.sent);
        self.sent += text;
        let chunk = (written - text).min(self.chunk.len());
        self.chunk.advance(chunk);
        self.tail = &self.tail[written - text - chunk..];
    }
}

/// One write of several parts, at least one byte.
fn write<W>(parts: [&[u8]; 3], io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<usize>>
where
    W: AsyncWrite + Unpin,
{
    let written = match parts {
        [text, [], []] => ready!(Pin::new(io).poll_write(context, text))?,
        parts => ready!(Pin::new(io).poll_write_vectored(context, &parts.map(IoSlice::new)))?,
    };
    Poll::Ready(if written > 0 { Ok(written) } else { Err(ErrorKind::WriteZero.into()) })
}
