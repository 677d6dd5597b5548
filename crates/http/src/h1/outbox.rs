//! What goes out next.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Up to this length a piece of a body is copied behind the text: the system takes one part sooner than several.
const COPIED: usize = 4 * 1024;

/// What is encoded and not sent: some text, a piece of the body that is not copied, and what goes after that.
#[derive(Debug, Default)]
pub struct Outbox {
    text: Vec<u8>,
    /// How much of the text is sent.
    sent: usize,
    chunk: Bytes,
    tail: &'static [u8],
}

impl Outbox {
    /// The text of the next thing to send, empty. Everything before must be sent.
    pub fn clear(&mut self) -> &mut Vec<u8> {
        self.text.clear();
        self.sent = 0;
        &mut self.text
    }

    /// The text so far.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Sends as much of the text, a chunk and its tail as goes in one write: all of it, nearly always. They are not taken
    /// over, since they are the caller's as long as nothing is sent.
    ///
    /// # Errors
    /// Where the other side takes nothing.
    pub fn poll_begin<W>(
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

    /// Adds what is to follow the text, of which nothing is sent yet: copied where it is short.
    pub fn follow(&mut self, chunk: Bytes, tail: &'static [u8]) {
        match self.copy(&chunk, tail) {
            true => {}
            false => self.begun(Some(chunk), tail, 0),
        }
    }

    /// Copies what is to follow the text behind it, where it is short; whether it is.
    pub fn copy(&mut self, chunk: &[u8], tail: &'static [u8]) -> bool {
        let is_short = chunk.len() <= COPIED;
        if is_short {
            self.text.extend_from_slice(chunk);
            self.text.extend_from_slice(tail);
        }
        is_short
    }

    /// Takes over what is to follow the text; of all three, so many bytes are sent already.
    pub fn begun(&mut self, chunk: Option<Bytes>, tail: &'static [u8], written: usize) {
        self.chunk = chunk.unwrap_or_default();
        self.tail = tail;
        self.advance(written);
    }

    /// How many bytes are not sent.
    pub fn len(&self) -> usize {
        self.text.len() - self.sent + self.chunk.len() + self.tail.len()
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.text.len() && self.chunk.is_empty() && self.tail.is_empty()
    }

    /// Gives back memory beyond so many bytes.
    pub fn shrink(&mut self, most: usize) {
        if self.text.capacity() > most {
            self.text = Vec::new();
            self.sent = 0;
        }
    }

    /// Sends what is left.
    ///
    /// # Errors
    /// Where the other side takes no more.
    pub fn poll_flush<W>(&mut self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = ready!(write([&self.text[self.sent..], &self.chunk, self.tail], io, context))?;
            self.advance(written);
        }
        // A socket has nothing to flush; TLS keeps what the socket below did not take.
        Pin::new(io).poll_flush(context)
    }

    fn advance(&mut self, written: usize) {
        let text = written.min(self.text.len() - self.sent);
        self.sent += text;
        let chunk = (written - text).min(self.chunk.len());
        self.chunk.advance(chunk);
        if self.chunk.is_empty() {
            // An empty piece would keep its memory from whoever reads next.
            self.chunk = Bytes::new();
        }
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
