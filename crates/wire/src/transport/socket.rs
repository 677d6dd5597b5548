use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_listen::{Connection, ConnectionSlot, GuardedStream};
use fairmesh_model::Identity;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::Address;

/// Timeout of the first bytes, which distinguish watches from calls. Clients of both send them at once.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection with the identity of its peer.
#[derive(Debug)]
pub struct Socket {
    stream: GuardedStream<Stream>,
    identity: Identity,
    /// Bytes that were read to classify the connection and have to be delivered to its reader.
    peeked: Bytes,
    /// Fails reads once it fires; set if the connection may have to be aborted.
    abort: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    /// With the user id of the peer.
    Unix(UnixStream, u32),
}

/// The peer of an accepted connection, as seen by handlers of its calls.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The identity of the peer.
    pub identity: Identity,
    /// The connection.
    pub connection: Arc<Connection>,
}

impl Stream {
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Calls are small and latency-sensitive: Nagle's algorithm would delay each by a round trip.
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(super) fn unix(stream: UnixStream) -> io::Result<Self> {
        let uid = stream.peer_cred()?.uid();
        Ok(Self::Unix(stream, uid))
    }
}

impl From<GuardedStream<Stream>> for Socket {
    fn from(stream: GuardedStream<Stream>) -> Self {
        let identity = match stream.get_ref() {
            Stream::Tcp(_) => Identity::Anonymous,
            Stream::Unix(_, uid) => Identity::Local { uid: *uid },
        };
        Self { stream, identity, peeked: Bytes::new(), abort: None }
    }
}

impl Socket {
    pub(super) async fn dial(address: &Address) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => Stream::tcp(TcpStream::connect(address).await?)?,
            Address::Unix(path) => Stream::unix(UnixStream::connect(path).await?)?,
        };
        Ok(GuardedStream::outgoing(stream).into())
    }

    /// Aborts the connection and all that is in flight on it once `abort` fires.
    #[must_use]
    pub(super) fn abort_on(mut self, abort: CancellationToken) -> Self {
        self.abort = Some(Box::pin(abort.cancelled_owned()));
        self
    }

    /// Whether the connection begins with `preamble`, which is then consumed; otherwise nothing is consumed.
    pub(super) async fn strip_preamble(&mut self, preamble: &[u8; 8]) -> io::Result<bool> {
        let mut first = [0; 8];
        let mut filled = 0;
        let reading = async {
            while filled < first.len() && first[..filled] == preamble[..filled] {
                match self.read(&mut first[filled..]).await? {
                    0 => break,
                    read => filled += read,
                }
            }
            io::Result::Ok(())
        };
        timeout(PREAMBLE_TIMEOUT, reading).await??;
        let begins = first[..filled] == *preamble;
        if !begins {
            self.peeked = Bytes::copy_from_slice(&first[..filled]);
        }
        Ok(begins)
    }

    /// The raw Unix socket, for passing memory, with the place that it has at its listener. The connection is no
    /// longer aborted.
    pub fn into_unix(self) -> Option<(UnixStream, Option<ConnectionSlot>)> {
        match self.stream.into_parts() {
            (Stream::Unix(stream, _), place) => Some((stream, place)),
            (Stream::Tcp(_), _) => None,
        }
    }

    /// The listener's state of the connection; `None` if this side opened it.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.stream.connection()
    }

    /// The identity of the peer.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    fn poll_abort(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.abort.as_mut().map(|abort| abort.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "shutting down")),
            Some(Poll::Pending) | None => Ok(()),
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = Option<Peer>;

    fn connect_info(&self) -> Option<Peer> {
        let connection = Arc::clone(self.connection()?);
        Some(Peer { identity: self.identity.clone(), connection })
    }
}

/// Calls a method of the underlying stream.
macro_rules! on_stream {
    ($streams:expr, $stream:ident => $call:expr) => {
        match $streams.get_mut() {
            Stream::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Unix(stream, _) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_abort(cx)?;
        if !self.peeked.is_empty() {
            let some = self.peeked.len().min(buf.remaining());
            buf.put_slice(&self.peeked.split_to(some));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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
