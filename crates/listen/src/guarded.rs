use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::Connection;

/// What HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The place of a connection in the table of its acceptor, free again when this is dropped.
#[derive(Debug)]
pub struct Place(Arc<Connection>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared().remove(self.0.id());
    }
}

/// The stream of a connection, and its place.
#[derive(Debug)]
pub struct Guarded<S> {
    stream: S,
    place: Option<Place>,
    /// Bytes of the preface that have come; `None` once it is known what is spoken.
    preface: Option<usize>,
}

impl<S> Guarded<S> {
    pub(crate) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self { stream, place: Some(Place(connection)), preface: Some(0) }
    }

    /// A stream that this side opened: nothing bounds it.
    pub const fn free(stream: S) -> Self {
        Self { stream, place: None, preface: None }
    }

    /// What is known of the connection, where another side opened it.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.place.as_ref().map(|Place(connection)| connection)
    }

    /// The stream.
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The bare stream, which nothing closes any more, and the place that it takes.
    pub fn into_parts(self) -> (S, Option<Place>) {
        (self.stream, self.place)
    }

    /// Looks at what was read.
    fn received(&mut self, bytes: &[u8]) {
        let Some(Place(connection)) = &self.place else { return };
        let Some(seen) = self.preface else { return connection.received() };
        let some = bytes.len().min(PREFACE.len() - seen);
        if bytes[..some] != PREFACE[seen..seen + some] {
            self.preface = None;
            connection.set_http1();
        } else if seen + some == PREFACE.len() {
            self.preface = None;
            connection.set_http2();
        } else {
            self.preface = Some(seen + some);
        }
    }

    fn aborted() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, "a limit of this listener closed the connection")
    }

    /// What was written, unless the connection is to be closed.
    fn written<T>(&self, cx: &Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(connection) = self.connection() else { return written };
        connection.set_stalled(written.is_pending());
        if written.is_pending() && connection.poll_closed(cx) {
            return Poll::Ready(Err(Self::aborted()));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.connection().is_some_and(|connection| connection.is_closed()) {
            return Poll::Ready(Err(Self::aborted()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &read {
            Poll::Ready(Ok(())) if buf.filled().len() > before => self.received(&buf.filled()[before..]),
            Poll::Pending if self.connection().is_some_and(|connection| connection.poll_closed(cx)) => {
                return Poll::Ready(Err(Self::aborted()));
            }
            _ => {}
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
