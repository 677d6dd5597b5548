use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BytesMut};
use fairmesh_wire::transport::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::counters::OpenConnection;

/// A connection that no longer carries HTTP messages.
pub struct RawConnection<I = Stream> {
    /// The stream.
    pub io: I,
    /// Bytes that were read after the last message.
    pub input: BytesMut,
    /// Counts the connection as open.
    pub _open: Option<OpenConnection>,
}

impl<I: AsyncRead + Unpin> AsyncRead for RawConnection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.input.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let size = self.input.len().min(buffer.remaining());
        buffer.put_slice(&self.input[..size]);
        self.input.advance(size);
        if self.input.is_empty() {
            // Frees the buffer, since the connection may stay open for days.
            self.input = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for RawConnection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    /// Shuts down the writing side; the server's bytes can still be read.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
