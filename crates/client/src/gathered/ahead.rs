//! What has come of a connection, read in one piece.
//!
//! h2 reads 8 KB at a time, which is two system calls a request where bodies have 4 KB and many share a connection.

use std::{
    cell::Cell,
    io, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, ReadBuf},
    task::coop::poll_proceed,
};
use tokio_util::io::poll_read_buf;

/// The most that is read at once, in bytes.
const PIECE: usize = 64 * 1024;
/// Whoever has so much room is given what comes without a copy; h2 has it where it waits for a large frame.
const LARGE: usize = PIECE / 2;

thread_local! {
    /// Lent to the connection that is read: those that wait hold no memory, unless it is for their writes that they wait.
    static SPARE: Cell<BytesMut> = Cell::default();
}

/// A connection that is read ahead.
pub(super) struct Ahead<I> {
    pub(super) io: I,
    /// Read, and not taken yet.
    pub(super) bytes: BytesMut,
}

impl<I> Ahead<I> {
    pub(super) fn new(io: I) -> Self {
        Self { io, bytes: BytesMut::new() }
    }

    /// Whether nothing was read that is not taken.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, buffer: &mut ReadBuf<'_>) {
        let size = self.bytes.len().min(buffer.remaining());
        buffer.put_slice(&self.bytes[..size]);
        self.bytes.advance(size);
        if self.bytes.is_empty() {
            self.lend();
        }
    }

    fn lend(&mut self) {
        SPARE.set(mem::take(&mut self.bytes));
    }
}

impl<I: AsyncRead + Unpin> Ahead<I> {
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            if buffer.remaining() >= LARGE {
                return Pin::new(&mut self.io).poll_read(context, buffer);
            }
            self.bytes = SPARE.take();
            self.bytes.clear();
            self.bytes.reserve(PIECE);
            let read = poll_read_buf(Pin::new(&mut self.io), context, &mut self.bytes);
            if !matches!(read, Poll::Ready(Ok(1..))) {
                self.lend();
                return read.map_ok(|_| ());
            }
        } else {
            // As if it were read only now, so that a reader with much at hand still makes way for others.
            ready!(poll_proceed(context)).made_progress();
        }
        self.take(buffer);
        Poll::Ready(Ok(()))
    }
}
