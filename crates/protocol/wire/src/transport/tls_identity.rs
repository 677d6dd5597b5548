use std::{error::Error, fmt, io, pin::Pin, sync::Arc};

use fairmesh_model::{Identity, ServiceName, SpiffeId};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};

use super::FederatedCallers;

/// The expected peer of a connection. The handshake verifies its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPeer<'a> {
    /// An endpoint of this service.
    Service(&'a ServiceName),
    /// A server with this id, possibly of a federated trust domain.
    Id(&'a SpiffeId),
    /// A control plane, a replica, an agent or a lookaside.
    Mesh,
    /// A control plane or a replica.
    Upstream,
    /// A key server.
    KeyServer,
    /// A gateway that serves many tenants.
    Gateway,
    /// The pages of a control plane, whose certificate is for this host name or address.
    Host(&'a str),
}

/// The content of a statement about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatedCall<'a> {
    /// The path of the call.
    pub path: &'a str,
    /// The program for which the call is made; empty if it is made for the process itself.
    pub on_behalf_of: &'a str,
    /// The request message.
    pub message: &'a [u8],
}

/// A connection on which both sides have proved their identity.
pub trait SecureStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {
    /// The socket, for access to its options and addresses.
    fn socket(&self) -> &TcpStream;

    /// The verified identity of the peer.
    fn peer(&self) -> Identity;

    /// The peer's certificate in DER; `None` if the peer sent none.
    fn peer_certificate(&self) -> Option<&[u8]>;
}

/// Prefix of the error of a failed handshake, before the reason. For display.
pub const HANDSHAKE_FAILED: &str = "the TLS handshake failed";

/// Reason of a failed handshake with a peer that speaks plaintext. For display, after [`HANDSHAKE_FAILED`].
pub const SPEAKS_PLAINTEXT: &str = "the other side speaks plaintext";

/// Reason why a process without an identity cannot verify statements.
pub(super) const NO_TRUST: &str =
    "this process has no identity yet, and so no roots to verify the statement of the call with; retry";

/// A handshake in progress.
pub type Handshake = Pin<Box<dyn Future<Output = io::Result<Box<dyn SecureStream>>> + Send>>;

/// Completes once an identity has stopped following revocations.
pub type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The identity of a process, and the identities that it trusts. Consulted for each connection, so that renewed
/// certificates and trust bundles are used immediately.
///
/// TLS is behind a trait object, so that this crate depends on no TLS implementation. The cost is an indirect call
/// for each read and write of a record.
pub trait TlsIdentity: fmt::Debug + Send + Sync {
    /// Whether there is a certificate. It may arrive later, from an agent that is not available yet.
    fn is_ready(&self) -> bool;

    /// The SPIFFE id in the certificate.
    fn id(&self) -> Option<SpiffeId>;

    /// Whether TCP connections with mesh processes are secured, as client and as server. Consulted for each
    /// connection, since a process may learn from its agent that the mesh has a trust domain. From then on it never
    /// returns to plaintext.
    fn secures_mesh(&self) -> bool {
        self.is_ready()
    }

    /// Whether servers with this identity accept mutual TLS. Consulted for each connection: a server may learn from
    /// its agent that the mesh has a trust domain after it started to serve.
    fn speaks_tls(&self) -> bool {
        true
    }

    /// Reason why there is no certificate yet, if known.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Requires security for connections with mesh processes from now on. Until there is a certificate, no such
    /// connection over TCP is opened or accepted.
    fn require(&self) {}

    /// Signs a statement about a call to `peer`. The statement reaches the control plane through processes that are
    /// not trusted with the call's content. `None` if this process signs no statements.
    fn sign_call(&self, _call: StatedCall<'_>, _peer: &Identity) -> Option<Vec<u8>> {
        None
    }

    /// Verifies a statement about a call, and returns its signer.
    ///
    /// # Errors
    /// Why the statement is not proved.
    fn verify_call(&self, _statement: &[u8], _call: StatedCall<'_>) -> Result<SpiffeId, String> {
        Err(NO_TRUST.into())
    }

    /// Receiver that changes when certificates of peers are revoked; reads and writes on their connections then fail.
    /// `None` if certificates are never revoked.
    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Receiver that changes after [`speaks_tls`](Self::speaks_tls) has changed. Connections accepted in plaintext
    /// must then be checked again. `None` if it never changes.
    fn tls_changes(&self) -> Option<watch::Receiver<()>> {
        None
    }

    /// Stops following revocations and informs the agent, which would otherwise wait for this process to reconnect.
    /// Takes about a second at most. For a process that is about to end.
    fn close(&self) -> Closed {
        Box::pin(std::future::ready(()))
    }

    /// Performs the client's handshake. The server must prove that it is `peer`.
    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake;

    /// Performs the server's handshake, which requires and verifies a client certificate.
    fn accept(&self, stream: TcpStream) -> Handshake;

    /// Like [`accept`](Self::accept), but also accepts those clients of federated trust domains that are in
    /// `callers`, as [`Federated`](Identity::Federated).
    fn accept_federated(&self, stream: TcpStream, callers: &Arc<FederatedCallers>) -> Handshake;

    /// Like [`accept`](Self::accept), but also accepts clients without a certificate, as
    /// [`Anonymous`](Identity::Anonymous). Such clients can only [join](super::Listener::with_joining).
    fn accept_joining(&self, stream: TcpStream) -> Handshake;
}

/// The connection needs an identity, and this process has none.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the endpoint accepts only mutual TLS, and this program has no identity; 'fairmesh identity whoami' and the log of the \
     agent say why"
)]
pub struct NoIdentity;

/// The endpoint uses plaintext, which its service's policy does not permit in a mesh with a trust domain.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "plaintext endpoint in a strict mesh; register the service with mutual TLS, or write 'mtls: permissive' into its policy"
)]
pub struct PlaintextRefused;

/// The mesh process speaks plaintext, and this process has an identity of another mesh.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "it speaks plaintext, and this program has the identity {} of trust domain {}; set FAIRMESH_AGENT to the agent of its mesh", .0.path, .0.domain
)]
pub(crate) struct PlaintextPeer(pub(crate) SpiffeId);

/// The connection needs an identity, and this process has none for the given reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this program has no certificate: {0}")]
pub(crate) struct LacksCertificate(pub(crate) String);

/// Whether an error is [`NoIdentity`], or caused by it.
pub(crate) fn is_no_identity(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(one) = next {
        // An error inside an `io::Error` is not reported as its source.
        let within = one.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if one.is::<NoIdentity>() || within.is_some_and(|within| is_no_identity(within)) {
            return true;
        }
        next = one.source();
    }
    false
}
