//! What has come of a connection, read in one piece.
//!
//! h2 reads 8 KB at a time, which is two system calls a request where bodies have 4 KB and many share a connection.

use std::{
    cell::Cell,
    io, mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

/// The most that is read at once, in bytes.
const PIECE: usize = 64 * 1024;

thread_local! {
    /// Lent to the connection that is read: those that wait hold no memory.
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
            self.bytes = SPARE.take();
            self.bytes.clear();
            self.bytes.reserve(PIECE);
            let read = poll_read_buf(Pin::new(&mut self.io), context, &mut self.bytes);
            if !matches!(read, Poll::Ready(Ok(1..))) {
                self.lend();
                return read.map_ok(|_| ());
            }
        }
        self.take(buffer);
        Poll::Ready(Ok(()))
    }
}
