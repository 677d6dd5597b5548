//! Reads the last bytes of a server on a connection that the server has closed.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that is read to its end even if writing fails.
///
/// A server that shuts down sends GOAWAY, which separates the calls it has processed from the others, and closes the
/// connection. A request in flight then breaks the connection. A client that stopped at the failed write would never
/// read the GOAWAY, so calls that the server did not process would fail. A failed write therefore counts as done, and
/// the reading side reports how the connection ended; on a broken connection, immediately.
#[derive(Debug)]
pub struct DrainRead<I>(pub I);

/// Returns `done` if the peer accepts no more bytes.
fn lenient<T>(result: Poll<io::Result<T>>, done: T) -> Poll<io::Result<T>> {
    match result {
        Poll::Ready(Err(error))
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            Poll::Ready(Ok(done))
        }
        other => other,
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for DrainRead<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for DrainRead<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        lenient(Pin::new(&mut self.0).poll_write(cx, bytes), bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        lenient(Pin::new(&mut self.0).poll_write_vectored(cx, slices), all)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lenient(Pin::new(&mut self.0).poll_flush(cx), ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lenient(Pin::new(&mut self.0).poll_shutdown(cx), ())
    }
}
