use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fairmesh_model::{Identity, SpiffeId};
use fairmesh_wire::transport::{HANDSHAKE_FAILED, SPEAKS_PLAINTEXT, SecureStream};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, copy, sink},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        self, AlertDescription, CertificateError, ClientConfig, InvalidMessage, ServerConfig,
        pki_types::ServerName,
    },
};

use crate::{
    Trust, Usage, chain_verification,
    tracked_connections::{CertificateFacts, Connections, StreamHalf, TrackedConnection},
};

/// Maximum time for which, and bytes up to which, a server keeps reading after a failed handshake.
const LINGER: Duration = Duration::from_secs(1);
const MAX_DISCARDED: u64 = 64 * 1024;

/// Begin of the error of a client whose certificate the server rejects; the alert follows. Only the server knows why.
pub const CERTIFICATE_REJECTED: &str = "the server rejected the certificate of this program";

/// A TLS connection over TCP.
#[derive(Debug)]
pub(crate) struct TlsStream {
    stream: tokio_rustls::TlsStream<TcpStream>,
    /// `None` if the peer sent no certificate, or none that can be verified.
    tracked: Option<TrackedConnection>,
    /// Whether the peer belongs to another trust domain than this process.
    is_foreign: bool,
}

impl TlsStream {
    /// Performs the handshake as a client.
    pub(crate) async fn connect(config: Arc<ClientConfig>, stream: TcpStream) -> io::Result<Self> {
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let handshake = TlsConnector::from(config).connect(name, stream).await;
        Ok(Self { stream: handshake.map_err(failed_handshake)?.into(), tracked: None, is_foreign: false })
    }

    /// Performs the handshake as a server.
    pub(crate) async fn accept(config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<Self> {
        match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(stream) => Ok(Self { stream: stream.into(), tracked: None, is_foreign: false }),
            Err((error, stream)) => {
                // Unread requests would reset the connection, and the client would lose the alert.
                let _ = timeout(LINGER, discard(stream)).await;
                Err(failed_handshake(error))
            }
        }
    }

    /// Checks the peer after the handshake, because a resumed session verified nothing. The stream ends when the
    /// peer's certificate is revoked. A peer of another domain is also cut off when its domain or its root is no
    /// longer federated. `own` has the roots of this process.
    ///
    /// # Errors
    /// When the certificate is revoked or has expired at `now`, or belongs to another domain and `accepts` returns
    /// false for its id.
    pub(crate) fn within(
        self,
        connections: &Arc<Connections>,
        (own, now): (&Trust, Duration),
        accepts: impl FnOnce(&SpiffeId) -> bool,
    ) -> io::Result<Self> {
        let chain = self.stream.get_ref().1.peer_certificates().unwrap_or_default();
        let Some(certificate) = chain.first() else { return Ok(self) };
        let usage = self.usage_of_peer();
        let facts = CertificateFacts::of(certificate, usage);
        let valid = facts.and_then(|facts| {
            let named = facts.at(own.domain()).check_time(now)?.check_named(accepts)?;
            let named = named.note_root(connections, (own, chain), (usage, now));
            named.check_root(&connections.federation, (chain, usage, now))
        });
        let is_foreign = valid.as_ref().is_ok_and(CertificateFacts::is_foreign);
        let tracked = valid.and_then(|facts| connections.track(facts)).map_err(|refused| {
            io::Error::new(ErrorKind::ConnectionRefused, format!("{HANDSHAKE_FAILED}: {refused}"))
        })?;
        Ok(Self { tracked: Some(tracked), is_foreign, ..self })
    }

    /// Returns the usage for which the peer's certificate must be valid.
    fn usage_of_peer(&self) -> Usage {
        match &self.stream {
            tokio_rustls::TlsStream::Client(_) => Usage::Server,
            tokio_rustls::TlsStream::Server(_) => Usage::Client,
        }
    }

    /// Returns an error if the peer is revoked.
    fn check(&self) -> io::Result<()> {
        self.tracked.as_ref().map_or(Ok(()), TrackedConnection::check)
    }

    /// Registers a waiting half, so that a revocation wakes it.
    fn or_revoked<T>(
        &self,
        polled: Poll<io::Result<T>>,
        half: StreamHalf,
        cx: &Context<'_>,
    ) -> Poll<io::Result<T>> {
        if let (Poll::Pending, Some(tracked)) = (&polled, &self.tracked) {
            tracked.wait(half, cx)?;
        }
        polled
    }
}

impl SecureStream for TlsStream {
    fn socket(&self) -> &TcpStream {
        self.stream.get_ref().0
    }

    fn peer(&self) -> Identity {
        let (_, session) = self.stream.get_ref();
        let usage = self.usage_of_peer();
        // The handshake has already verified the certificate.
        let id = session
            .peer_certificates()
            .and_then(|chain| chain_verification::id_of(chain.first()?, usage).ok());
        let identity = if self.is_foreign { Identity::Federated } else { Identity::Spiffe };
        id.map_or(Identity::Anonymous, identity)
    }

    fn peer_certificate(&self) -> Option<&[u8]> {
        let (_, session) = self.stream.get_ref();
        session.peer_certificates()?.first().map(AsRef::as_ref)
    }
}

/// Reads and discards bytes until the peer closes the connection.
async fn discard(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    copy(&mut stream.take(MAX_DISCARDED), &mut sink()).await.map(drop)
}

fn failed_handshake(error: io::Error) -> io::Error {
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    let reason = match source {
        // The `Display` form of this error prints its `Debug` form.
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(refused))) => refused.0.to_string(),
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            SPEAKS_PLAINTEXT.to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{HANDSHAKE_FAILED}: {reason}"))
}

/// Maps alerts to a refused connection. In TLS 1.3 a client sends requests before the server has verified its
/// certificate. The server reads none of these requests, so the connection was refused and did not break. These
/// alerts occur only in handshakes (RFC 8446 §6.2).
fn as_refusal(error: io::Error) -> io::Error {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, UnknownCA, UnsupportedCertificate,
    };
    let alert = match error.get_ref().and_then(|source| source.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => return error,
    };
    match alert {
        AccessDenied
        | BadCertificate
        | CertificateExpired
        | CertificateRequired
        | CertificateRevoked
        | CertificateUnknown
        | DecryptError
        | UnknownCA
        | UnsupportedCertificate => {
            let message = format!("{CERTIFICATE_REJECTED}: {alert:?}");
            io::Error::new(ErrorKind::ConnectionRefused, message)
        }
        _ => error,
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        // A write may have left TLS records unsent, and a caller that waits for a response does not flush.
        if self.stream.get_ref().1.wants_write()
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_flush(cx)
            && !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        {
            return Poll::Ready(Err(error));
        }
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf).map_err(as_refusal);
        self.or_revoked(polled, StreamHalf::Read, cx)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.or_revoked(polled, StreamHalf::Write, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.or_revoked(polled, StreamHalf::Write, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.or_revoked(polled, StreamHalf::Write, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
