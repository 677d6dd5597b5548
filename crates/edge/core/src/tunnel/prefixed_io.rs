//! A connection with bytes that were already read from it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose reads first return a prefix.
#[derive(Debug)]
pub struct PrefixedIo<I> {
    prefix: BytesMut,
    io: I,
}

impl<I> PrefixedIo<I> {
    /// Wraps a connection whose first bytes, `prefix`, were already read.
    pub fn new(prefix: BytesMut, io: I) -> Self {
        let mut this = Self { prefix, io };
        this.release();
        this
    }

    /// Frees an empty prefix: a connection may stay open for days.
    fn release(&mut self) {
        if self.prefix.is_empty() {
            self.prefix = BytesMut::new();
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for PrefixedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let size = buffer.remaining().min(self.prefix.len());
        buffer.put_slice(&self.prefix[..size]);
        self.prefix.advance(size);
        self.release();
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PrefixedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
