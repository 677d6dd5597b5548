use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

use super::SecureStream;

/// The byte stream of a connection.
///
/// An enum rather than a trait object, so that reads and writes of plaintext cost a branch and no allocation.
#[derive(Debug)]
pub enum Stream {
    /// Plaintext TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<dyn SecureStream>),
}

/// Calls a method of the variant.
macro_rules! on_stream {
    ($streams:expr, $stream:ident => $call:expr) => {
        match $streams.get_mut() {
            Stream::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $stream = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl Stream {
    /// The TCP socket, for access to its options and addresses; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.socket()),
            Self::Unix(_) => None,
        }
    }

    /// Whether neither data nor the end of the stream has arrived. This check may consume a byte, so a connection
    /// that is not quiet must be closed. Makes a system call only if the runtime has seen an event.
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut [0]),
            Self::Unix(stream) => stream.try_read(&mut [0]),
            // Reads records without data, such as session tickets.
            Self::Tls(stream) => {
                let (mut byte, mut context) = ([0], Context::from_waker(Waker::noop()));
                return Pin::new(&mut **stream)
                    .poll_read(&mut context, &mut ReadBuf::new(&mut byte))
                    .is_pending();
            }
        };
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Writes as much as the connection accepts immediately, at most both parts. The next read sends what is
    /// buffered.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if the connection accepts nothing now.
    #[inline]
    pub fn try_write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let parts = [IoSlice::new(first), IoSlice::new(second)];
        match self {
            Self::Tcp(stream) if second.is_empty() => stream.try_write(first),
            Self::Tcp(stream) => stream.try_write_vectored(&parts),
            Self::Unix(stream) => stream.try_write_vectored(&parts),
            Self::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                match Pin::new(&mut **stream).poll_write_vectored(&mut context, &parts) {
                    Poll::Ready(written) => written,
                    Poll::Pending => Err(ErrorKind::WouldBlock.into()),
                }
            }
        }
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(cx, buf))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => true,
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
