//! Encoded bytes that wait to be sent.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Up to this length a piece of a body is copied behind the headers: one buffer is cheaper to write than several.
const MAX_COPIED: usize = 4 * 1024;

/// Encoded and unsent: headers and framing, a piece of the body that is not copied, and the framing after it.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    text: Vec<u8>,
    /// Bytes of the text already sent.
    sent: usize,
    chunk: Bytes,
    tail: &'static [u8],
}

impl WriteBuffer {
    /// Empties the buffer for the next message. Everything before must be sent.
    pub fn clear(&mut self) -> &mut Vec<u8> {
        self.text.clear();
        self.sent = 0;
        &mut self.text
    }

    /// The text so far.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Sends the text, a chunk and its tail in one write: usually all of it. The chunk stays with the caller until the
    /// first byte of it is sent.
    ///
    /// # Errors
    /// The connection is broken or accepts no more bytes.
    pub fn poll_write_with<W>(
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

    /// Adds a chunk and its tail behind text of which nothing is sent: copied where it is short.
    pub fn append(&mut self, chunk: Bytes, tail: &'static [u8]) {
        match self.copy_if_short(&chunk, tail) {
            true => {}
            false => self.keep_unsent(Some(chunk), tail, 0),
        }
    }

    /// Copies a chunk and its tail behind the text if it is short; returns whether it did.
    pub fn copy_if_short(&mut self, chunk: &[u8], tail: &'static [u8]) -> bool {
        let is_short = chunk.len() <= MAX_COPIED;
        if is_short {
            self.text.extend_from_slice(chunk);
            self.text.extend_from_slice(tail);
        }
        is_short
    }

    /// Keeps a chunk and its tail; `written` bytes of text, chunk and tail together are already sent.
    pub fn keep_unsent(&mut self, chunk: Option<Bytes>, tail: &'static [u8], written: usize) {
        self.chunk = chunk.unwrap_or_default();
        self.tail = tail;
        self.advance(written);
    }

    /// Unsent bytes.
    pub fn len(&self) -> usize {
        self.text.len() - self.sent + self.chunk.len() + self.tail.len()
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.text.len() && self.chunk.is_empty() && self.tail.is_empty()
    }

    /// Frees a buffer larger than `most` bytes.
    pub fn shrink(&mut self, most: usize) {
        if self.text.capacity() > most {
            self.text = Vec::new();
            self.sent = 0;
        }
    }

    /// Sends everything left.
    ///
    /// # Errors
    /// The connection is broken or accepts no more bytes.
    pub fn poll_flush<W>(&mut self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = ready!(write([&self.text[self.sent..], &self.chunk, self.tail], io, context))?;
            self.advance(written);
        }
        // A socket has nothing to flush; TLS keeps what the socket did not accept.
        Pin::new(io).poll_flush(context)
    }

    fn advance(&mut self, written: usize) {
        let text = written.min(self.text.len() - self.sent);
        self.sent += text;
        let chunk = (written - text).min(self.chunk.len());
        self.chunk.advance(chunk);
        if self.chunk.is_empty() {
            // Releases the buffer that the chunk was read into, for the next read.
            self.chunk = Bytes::new();
        }
        self.tail = &self.tail[written - text - chunk..];
    }
}

/// One vectored write of at least one byte.
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
