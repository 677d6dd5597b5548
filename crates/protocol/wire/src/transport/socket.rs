use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_listen::{Connection, ConnectionSlot, GuardedStream, forward_async_write};
use fairmesh_model::Identity;
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::UnixStream,
};
use tokio_util::sync::WaitForCancellationFutureOwned;
#[cfg(feature = "server")]
use {
    super::{UserPlace, UserPlaces, WithoutCertificate, peer_program, unix_authority::AuthorityFilter},
    fairmesh_model::ProgramFacts,
    std::time::Duration,
    tokio::{io::AsyncReadExt as _, time::timeout},
    tokio_util::sync::CancellationToken,
    tonic::transport::server::Connected,
};

use super::Stream;

/// Timeout for the first bytes, which distinguish watches from calls. Clients of both kinds send them immediately.
#[cfg(feature = "server")]
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection with the identity of its peer.
#[derive(Debug)]
pub struct Socket {
    stream: GuardedStream<Stream>,
    identity: Identity,
    #[cfg(feature = "server")]
    program: Option<Arc<ProgramFacts>>,
    /// Slot that the connection occupies among its user's connections, if their number is limited.
    #[cfg(feature = "server")]
    _place: Option<UserPlace>,
    /// Whether the process accepts user tokens, also from peers without a certificate.
    #[cfg(feature = "server")]
    takes_tokens: bool,
    /// Bytes read to classify the connection and not yet delivered to its reader.
    peeked: Bytes,
    /// Rewrites authorities; only for HTTP/2 clients over a Unix socket.
    #[cfg(feature = "server")]
    authorities: Option<Box<AuthorityFilter>>,
    /// Signal that fails reads; set if the connection may have to be aborted.
    abort: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// The peer of an accepted connection, as handlers of its calls see it.
#[cfg(feature = "server")]
#[derive(Clone, Debug)]
pub struct Peer {
    /// The identity of the peer.
    pub identity: Identity,
    /// Facts from the kernel about the peer, if the listener attests.
    pub program: Option<Arc<ProgramFacts>>,
    /// The connection.
    pub connection: Arc<Connection>,
    /// Set if the peer has not sent a certificate on a secured connection.
    pub without_certificate: Option<WithoutCertificate>,
}

impl Socket {
    /// Wraps a connection whose peer the kernel or TLS has identified.
    ///
    /// # Errors
    /// If the system does not report the peer's user.
    pub(super) fn new(stream: GuardedStream<Stream>) -> io::Result<Self> {
        let identity = match stream.get_ref() {
            Stream::Unix(stream) => Identity::Local { uid: stream.peer_cred()?.uid() },
            Stream::Tls(stream) => stream.peer(),
            Stream::Tcp(_) => Identity::Anonymous,
        };
        if let (Identity::Local { uid }, Some(connection)) = (&identity, stream.connection()) {
            connection.set_user(*uid);
        }
        Ok(Self {
            stream,
            identity,
            #[cfg(feature = "server")]
            program: None,
            #[cfg(feature = "server")]
            _place: None,
            #[cfg(feature = "server")]
            takes_tokens: false,
            peeked: Bytes::new(),
            #[cfg(feature = "server")]
            authorities: None,
            abort: None,
        })
    }

    /// Reads facts from the kernel about the peer of a Unix socket.
    ///
    /// # Errors
    /// If the system does not report the peer's user.
    #[cfg(feature = "server")]
    pub(super) fn attest(mut self) -> io::Result<Self> {
        if let Stream::Unix(stream) = self.stream.get_ref() {
            self.program = Some(Arc::new(peer_program::facts(stream)?));
        }
        Ok(self)
    }

    /// Takes one of the user's places, if the kernel reports the user.
    ///
    /// # Errors
    /// If the user has no place left. The connection is then closed.
    #[cfg(feature = "server")]
    pub(super) fn placed(self, users: &UserPlaces) -> io::Result<Self> {
        let Identity::Local { uid } = self.identity else { return Ok(self) };
        if let Some(place) = users.enter(uid) {
            return Ok(Self { _place: Some(place), ..self });
        }
        if let Some(connection) = self.connection() {
            connection.close_for_user();
        }
        Err(io::Error::new(
            io::ErrorKind::QuotaExceeded,
            format!("the user {uid} has the most connections of a user"),
        ))
    }

    /// Sets whether a peer without a certificate may send a user token.
    #[cfg(feature = "server")]
    #[must_use]
    pub(super) fn taking_tokens(self, takes_tokens: bool) -> Self {
        Self { takes_tokens, ..self }
    }

    /// Aborts the connection, and all calls in flight on it, once `abort` fires.
    #[cfg(feature = "server")]
    #[must_use]
    pub(super) fn abort_on(mut self, abort: CancellationToken) -> Self {
        self.abort = Some(Box::pin(abort.cancelled_owned()));
        self
    }

    /// Rewrites the authorities that HTTP/2 clients send over Unix sockets from now on.
    #[cfg(feature = "server")]
    #[must_use]
    pub(super) fn with_calls(mut self) -> Self {
        let is_unix = matches!(self.stream.get_ref(), Stream::Unix(_));
        self.authorities = is_unix.then(|| Box::new(AuthorityFilter::new()));
        self
    }

    /// Whether the connection begins with `preamble`. Consumes the preamble only if it matches.
    #[cfg(feature = "server")]
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

    /// The raw Unix socket, for passing memory, with its slot at the listener. `abort` no longer affects the
    /// connection.
    pub fn into_unix(self) -> Option<(UnixStream, Option<ConnectionSlot>)> {
        match self.stream.into_parts() {
            (Stream::Unix(stream), place) => Some((stream, place)),
            (Stream::Tcp(_) | Stream::Tls(_), _) => None,
        }
    }

    /// Set if the peer has not sent a certificate on a secured connection.
    #[cfg(feature = "server")]
    pub fn without_certificate(&self) -> Option<WithoutCertificate> {
        let is_secured = matches!(self.stream.get_ref(), Stream::Tls(_));
        let without = WithoutCertificate { takes_tokens: self.takes_tokens };
        (is_secured && self.identity == Identity::Anonymous).then_some(without)
    }

    /// The listener's state for the connection; `None` if this side opened it.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.stream.connection()
    }

    /// The identity of the peer.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Reads, beginning with the bytes that were read to classify the connection.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.peeked.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let some = self.peeked.len().min(buf.remaining());
        buf.put_slice(&self.peeked.split_to(some));
        Poll::Ready(Ok(()))
    }

    fn poll_abort(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.abort.as_mut().map(|abort| abort.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "shutting down")),
            Some(Poll::Pending) | None => Ok(()),
        }
    }
}

#[cfg(feature = "server")]
impl Connected for Socket {
    type ConnectInfo = Option<Peer>;

    fn connect_info(&self) -> Option<Peer> {
        let connection = Arc::clone(self.connection()?);
        Some(Peer {
            identity: self.identity.clone(),
            program: self.program.clone(),
            connection,
            without_certificate: self.without_certificate(),
        })
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_abort(cx)?;
        #[cfg(feature = "server")]
        let before = buf.filled().len();
        ready!(self.poll_bytes(cx, buf))?;
        #[cfg(feature = "server")]
        if let Some(authorities) = &mut self.authorities {
            authorities.apply(&mut buf.filled_mut()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

forward_async_write!(Socket, stream);
