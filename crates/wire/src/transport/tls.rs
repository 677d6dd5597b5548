use std::{
    fmt,
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use fairmesh_model::{Identity, ServiceName};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, copy, sink},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        self, AlertDescription, ClientConfig, ServerConfig,
        pki_types::{CertificateDer, ServerName},
    },
};

/// The peer that a connection is opened to, whose identity is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPeer<'a> {
    /// An endpoint of this service.
    Service(&'a ServiceName),
    /// A control plane, a replica, an agent or a lookaside.
    Mesh,
}

/// The identity of a process, and the identities that it trusts. Configurations are requested for each connection, so
/// that renewed certificates and trust bundles are used at once; implementations keep them, since sessions are resumed
/// by the stores in them.
pub trait TlsIdentity: fmt::Debug + Send + Sync {
    /// For connections to a peer that must prove to be the given one. The configuration verifies that, and ignores the
    /// server name, which is the address of the peer.
    fn client(&self, peer: ExpectedPeer<'_>) -> Arc<ClientConfig>;

    /// For accepted connections. The configuration requires and verifies client certificates.
    fn server(&self) -> Arc<ServerConfig>;

    /// The identity in a verified certificate chain, the peer's own certificate first.
    fn identify(&self, chain: &[CertificateDer<'_>]) -> Identity;
}

/// The connection needs an identity that this process does not have.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the endpoint accepts only mutual TLS, and this program has no identity; give it one, or change `mtls` of the \
     endpoint"
)]
pub struct NoIdentity;

/// How long, and for how many bytes, a server reads a connection whose handshake failed.
const LINGER: Duration = Duration::from_secs(1);
const MAX_DISCARDED: u64 = 64 * 1024;

/// TLS over TCP.
#[derive(Debug)]
pub struct TlsStream(tokio_rustls::TlsStream<TcpStream>);

impl TlsStream {
    /// Performs the handshake of a client.
    pub(super) async fn connect(config: Arc<ClientConfig>, stream: TcpStream) -> io::Result<Self> {
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let handshake = TlsConnector::from(config).connect(name, stream).await;
        Ok(Self(handshake.map_err(failed_handshake)?.into()))
    }

    /// Performs the handshake of a server.
    pub(super) async fn accept(config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<Self> {
        match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(stream) => Ok(Self(stream.into())),
            Err((error, stream)) => {
                // Requests that arrived already would reset the connection, and the client lose the alert.
                let _ = timeout(LINGER, discard(stream)).await;
                Err(failed_handshake(error))
            }
        }
    }

    /// The socket.
    pub(super) fn socket(&self) -> &TcpStream {
        self.0.get_ref().0
    }

    /// The verified certificates of the peer.
    pub(super) fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.0.get_ref().1.peer_certificates().unwrap_or_default()
    }
}

/// Closes a connection once the peer has.
async fn discard(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    copy(&mut stream.take(MAX_DISCARDED), &mut sink()).await.map(drop)
}

fn failed_handshake(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the TLS handshake failed: {error}"))
}

/// In TLS 1.3 a client sends requests before it learns that the server rejects its certificate, which the server does
/// before it reads any: the connection was refused, and did not break. These alerts end handshakes only (RFC 8446 §6.2).
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
            let message = format!("the server rejected the certificate of this program: {alert:?}");
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
        // A write may have left records unsent, and callers that wait for a response do not flush.
        if self.0.get_ref().1.wants_write()
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.0).poll_flush(cx)
            && !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(ready!(Pin::new(&mut self.0).poll_read(cx, buf)).map_err(as_refusal))
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
