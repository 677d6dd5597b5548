use std::{
    any::Any,
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{connection::Connection, http2_frames::Http2Frames};

/// The connection preface of HTTP/2 (RFC 9113 §3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The slot of a connection in its acceptor's table. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    connection: Arc<Connection>,
    /// A value that is dropped with the slot.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connection.shared().remove(self.connection.id());
    }
}

/// The stream of a connection, together with its slot.
#[derive(Debug)]
pub struct GuardedStream<S> {
    stream: S,
    slot: Option<ConnectionSlot>,
    /// Number of bytes of the HTTP/2 preface received so far; `None` once the protocol is known.
    preface: Option<usize>,
    /// HTTP/2 frame counter, from the end of the preface.
    frames: Option<Http2Frames>,
    /// Bytes that were read but are held back, because they would open too many streams.
    held: Bytes,
    /// Whether the connection becomes exempt from time limits once its protocol is known.
    exempts: bool,
}

impl<S> GuardedStream<S> {
    pub(crate) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self {
            stream,
            slot: Some(ConnectionSlot { connection, held: None }),
            preface: Some(0),
            frames: None,
            held: Bytes::new(),
            exempts: false,
        }
    }

    /// Wraps an outgoing connection, which has no limits.
    pub const fn outgoing(stream: S) -> Self {
        Self { stream, slot: None, preface: None, frames: None, held: Bytes::new(), exempts: false }
    }

    /// State of the connection; `None` for an outgoing connection.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.slot.as_ref().map(|slot| &slot.connection)
    }

    /// The underlying stream.
    pub const fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the underlying stream, to which time limits no longer apply, and its slot.
    pub fn into_parts(self) -> (S, Option<ConnectionSlot>) {
        (self.stream, self.slot)
    }

    /// Returns the stream that `establish` makes of this one, for example by a TLS handshake. The listener's time
    /// limits apply meanwhile. Must be called before anything is read.
    ///
    /// # Errors
    /// The error of `establish`, or a limit closed the connection.
    pub async fn establish<T>(
        self,
        establish: impl AsyncFnOnce(S) -> io::Result<T>,
    ) -> io::Result<GuardedStream<T>> {
        let Self { stream, slot, preface, frames, held, exempts } = self;
        let mut establishing = pin!(establish(stream));
        let stream = poll_fn(|cx| match establishing.as_mut().poll(cx) {
            Poll::Pending if slot.as_ref().is_some_and(|slot| slot.connection.poll_closed(cx)) => {
                Poll::Ready(Err(Self::aborted()))
            }
            established => established,
        });
        Ok(GuardedStream { stream: stream.await?, slot, preface, frames, held, exempts })
    }

    /// Keeps a value until the connection is closed. Has no effect on an outgoing connection.
    #[must_use]
    pub fn holding(mut self, value: Arc<dyn Any + Send + Sync>) -> Self {
        if let Some(slot) = &mut self.slot {
            slot.held = Some(value);
        }
        self
    }

    /// Exempts the connection from further time limits once its protocol is known, for servers that do not report their
    /// requests.
    #[must_use]
    pub fn exempt_once_begun(self) -> Self {
        Self { exempts: true, ..self }
    }

    /// Tracks received bytes. Returns how many of them may be passed on.
    fn received(&mut self, bytes: &[u8]) -> usize {
        let Some(ConnectionSlot { connection, .. }) = &self.slot else { return bytes.len() };
        let Some(seen) = self.preface else {
            return match &mut self.frames {
                Some(frames) => read_frames(frames, bytes, connection),
                None => {
                    connection.received();
                    bytes.len()
                }
            };
        };
        let some = bytes.len().min(PREFACE.len() - seen);
        if bytes[..some] != PREFACE[seen..seen + some] {
            self.preface = None;
            connection.set_http1();
        } else if seen + some == PREFACE.len() {
            self.preface = None;
            connection.set_http2();
            if !self.exempts {
                let frames = self.frames.insert(Http2Frames::default());
                return some + read_frames(frames, &bytes[some..], connection);
            }
        } else {
            self.preface = Some(seen + some);
        }
        if self.exempts && self.preface.is_none() {
            connection.exempt();
        }
        bytes.len()
    }

    fn aborted() -> io::Error {
        io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the connection was closed by a limit of this listener",
        )
    }

    /// Returns the result of a write, or an error if the connection was closed by a limit.
    fn written<T>(&self, cx: &Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(connection) = self.connection() else { return written };
        connection.set_write_blocked(written.is_pending());
        if written.is_pending() && connection.poll_closed(cx) {
            return Poll::Ready(Err(Self::aborted()));
        }
        written
    }
}

/// Reads frames until no more streams may be opened. Returns the number of bytes read.
fn read_frames(frames: &mut Http2Frames, bytes: &[u8], connection: &Connection) -> usize {
    let unbegun = connection.unbegun();
    let (read, opened) = frames.read(bytes, unbegun.room());
    unbegun.open(opened);
    read
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.connection().is_some_and(|connection| connection.is_closed()) {
            return Poll::Ready(Err(Self::aborted()));
        }
        if self.connection().is_some_and(|connection| connection.poll_paused(cx)) {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = match self.held.is_empty() {
            true => Pin::new(&mut self.stream).poll_read(cx, buf),
            false => {
                let some = self.held.len().min(buf.remaining());
                buf.put_slice(&self.held.split_to(some));
                Poll::Ready(Ok(()))
            }
        };
        match &read {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                let passed = self.received(&buf.filled()[before..]);
                let rest = &buf.filled()[before + passed..];
                if !rest.is_empty() {
                    // Reached only while many streams are open; otherwise nothing is copied.
                    self.held = [rest, &self.held].concat().into();
                    buf.set_filled(before + passed);
                }
            }
            Poll::Pending if self.connection().is_some_and(|connection| connection.poll_closed(cx)) => {
                return Poll::Ready(Err(Self::aborted()));
            }
            _ => {}
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
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

/// Implements `AsyncWrite` for a type by forwarding to one of its fields.
#[macro_export]
macro_rules! forward_async_write {
    ($type:ty, $field:tt) => {
        impl ::tokio::io::AsyncWrite for $type {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.$field).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bufs: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.$field).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                ::tokio::io::AsyncWrite::is_write_vectored(&self.$field)
            }

            fn poll_flush(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.$field).poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.$field).poll_shutdown(cx)
            }
        }
    };
}
