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

/// How long a connection may take to say what it is for. Both sorts say it at once.
const FIRST_BYTES: Duration = Duration::from_secs(5);

/// One connection, and who is at its other end.
#[derive(Debug)]
pub struct Socket {
    stream: GuardedStream<Stream>,
    identity: Identity,
    /// What was read to find out what the connection is for, and is yet to be read by whom it is for.
    ahead: Bytes,
    /// Fails reads once it fires, where the connection may have to be ended from outside.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    /// With the user at the other end.
    Unix(UnixStream, u32),
}

/// The other end of a connection that was accepted, as the handlers of its calls see it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Who it is.
    pub identity: Identity,
    /// The connection.
    pub connection: Arc<Connection>,
}

impl Stream {
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Calls are small and waited for: Nagle's algorithm would hold each back for a round trip.
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
        Self { stream, identity, ahead: Bytes::new(), cut: None }
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

    /// Ends the connection, whatever is under way on it, once `cut` fires.
    #[must_use]
    pub(super) fn cut_by(mut self, cut: CancellationToken) -> Self {
        self.cut = Some(Box::pin(cut.cancelled_owned()));
        self
    }

    /// Whether the connection begins with `preamble`, which is taken from it then; nothing is taken where it does not.
    pub(super) async fn begins_with(&mut self, preamble: &[u8; 8]) -> io::Result<bool> {
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
        timeout(FIRST_BYTES, reading).await??;
        let begins = first[..filled] == *preamble;
        if !begins {
            self.ahead = Bytes::copy_from_slice(&first[..filled]);
        }
        Ok(begins)
    }

    /// The bare socket, where it is one that hands over memory, and the place that it takes at its listener. Nothing cuts it any
    /// more.
    pub fn into_unix(self) -> Option<(UnixStream, Option<ConnectionSlot>)> {
        match self.stream.into_parts() {
            (Stream::Unix(stream, _), place) => Some((stream, place)),
            (Stream::Tcp(_), _) => None,
        }
    }

    /// What its listener knows of the connection; `None` where this side opened it.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.stream.connection()
    }

    /// Who is at the other end.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    fn poll_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().map(|cut| cut.as_mut().poll(cx)) {
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

/// Calls a method of whichever stream it is.
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
        self.poll_cut(cx)?;
        if !self.ahead.is_empty() {
            let some = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(some));
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
