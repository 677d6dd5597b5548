//! Encoded bytes that are waiting to be sent.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Maximum length of a body piece that is copied behind the headers, in bytes: writing one buffer is cheaper than
/// writing several.
const MAX_COPIED: usize = 4 * 1024;

/// Encoded, unsent data: headers and framing (the text), a body chunk that is not copied, and the framing after the
/// chunk (the tail).
#[derive(Debug, Default)]
pub struct WriteBuffer {
    text: Vec<u8>,
    /// Bytes of the text that were already sent.
    sent: usize,
    chunk: Bytes,
    tail: &'static [u8],
}

impl WriteBuffer {
    /// Empties the buffer for the next message, and returns it. Everything in it must have been sent.
    pub fn clear(&mut self) -> &mut Vec<u8> {
        self.text.clear();
        self.sent = 0;
        &mut self.text
    }

    /// Returns the text so far.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Sends the text, a chunk and its tail in one write, which usually sends everything. The chunk stays with the
    /// caller until its first byte is sent.
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

    /// Appends a chunk and its tail to text that is entirely unsent. A short chunk is copied.
    pub fn append(&mut self, chunk: Bytes, tail: &'static [u8]) {
        match self.copy_if_short(&chunk, tail) {
            true => {}
            false => self.keep_unsent(Some(chunk), tail, 0),
        }
    }

    /// Copies a chunk and its tail behind the text if the chunk is short. Returns whether it was copied.
    pub fn copy_if_short(&mut self, chunk: &[u8], tail: &'static [u8]) -> bool {
        let is_short = chunk.len() <= MAX_COPIED;
        if is_short {
            self.text.extend_from_slice(chunk);
            self.text.extend_from_slice(tail);
        }
        is_short
    }

    /// Keeps a chunk and its tail after a partial write: the first `written` bytes of text, chunk and tail are already
    /// sent.
    pub fn keep_unsent(&mut self, chunk: Option<Bytes>, tail: &'static [u8], written: usize) {
        self.chunk = chunk.unwrap_or_default();
        self.tail = tail;
        self.advance(written);
    }

    /// Number of unsent bytes.
    pub fn len(&self) -> usize {
        self.text.len() - self.sent + self.chunk.len() + self.tail.len()
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.text.len() && self.chunk.is_empty() && self.tail.is_empty()
    }

    /// Frees the buffer if it is larger than `most` bytes.
    pub fn shrink(&mut self, most: usize) {
        if self.text.capacity() > most {
            self.text = Vec::new();
            self.sent = 0;
        }
    }

    /// Sends everything that is left.
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
        // A socket has nothing to flush, but TLS buffers what the socket did not accept.
        Pin::new(io).poll_flush(context)
    }

    fn advance(&mut self, written: usize) {
        let text = written.min(self.text.len() - self.sent);
        self.sent += text;
        let chunk = (written - text).min(self.chunk.len());
        self.chunk.advance(chunk);
        if self.chunk.is_empty() {
            // Releases the memory of the chunk, a read buffer, for the next read.
            self.chunk = Bytes::new();
        }
        self.tail = &self.tail[written - text - chunk..];
    }
}

/// Performs one vectored write of at least one byte.
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
