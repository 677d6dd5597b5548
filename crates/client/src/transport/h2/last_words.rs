//! Reading what a server said last, on a connection that it has closed.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that is read to its end although it can be written to no more.
///
/// A server that goes says GOAWAY, which tells the calls that it has seen from those that it has not, and closes. A request
/// that is on its way then breaks the connection, and whoever ends at the failed write never reads what has arrived: calls
/// that nobody has seen would fail. So a failed write passes for done, and the reading side says how the connection ended,
/// which it does at once where it is broken.
#[derive(Debug)]
pub(super) struct LastWords<I>(pub(super) I);

/// `done`, where the other end takes nothing any more.
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

impl<I: AsyncRead + Unpin> AsyncRead for LastWords<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for LastWords<I> {
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
